// What the two kernels share: the step of one unit of one row.
#pragma once

#include "kernels/device.cuh"
#include "kernels/recurrent/lstm.hpp"

namespace gpk::kernels {

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// What a unit reads beside the sums: the input's gates, and the cell.
template <class T>
struct LstmUnit {
    float gates[4], cell;

    __device__ __forceinline__ LstmUnit(const LstmParams& p, std::int64_t row, std::int64_t unit) {
#pragma unroll
        for (int g = 0; g < 4; ++g)
            gates[g] = float(static_cast<const T*>(p.x_gates)[(row * 4 + g) * p.hidden + unit]);
        cell = p.c[row * p.hidden + unit];
    }
    // `sums`: of the last h with the unit's four rows of the weight.
    __device__ __forceinline__ void step(const LstmParams& p, std::int64_t row, std::int64_t unit,
                                         const float (&sums)[4]) const {
        const float next =
            sigmoid(gates[1] + sums[1]) * cell + sigmoid(gates[0] + sums[0]) * tanhf(gates[2] + sums[2]);
        p.c[row * p.hidden + unit] = next;
        static_cast<T*>(p.y)[row * p.y_stride + unit] = T(sigmoid(gates[3] + sums[3]) * tanhf(next));
    }
};

}  // namespace gpk::kernels
