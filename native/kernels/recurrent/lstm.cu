#include "kernels/device.cuh"
#include "kernels/floats.hpp"
#include "kernels/recurrent/lstm.hpp"

namespace gpk::kernels {

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

template <class T>
__device__ __forceinline__ void lstm_unit(const LstmParams& p, std::int64_t row, std::int64_t unit,
                                          const float (&sums)[4]) {
    float gates[4];
#pragma unroll
    for (int g = 0; g < 4; ++g) {
        const std::int64_t at = (row * 4 + g) * p.hidden + unit;
        gates[g] = float(static_cast<const T*>(p.x_gates)[at]) +
                   (p.h_gates != nullptr ? float(static_cast<const T*>(p.h_gates)[at]) : sums[g]);
    }
    float& c = p.c[row * p.hidden + unit];
    const float next = sigmoid(gates[1]) * c + sigmoid(gates[0]) * tanhf(gates[2]);
    c = next;
    static_cast<T*>(p.y)[row * p.y_stride + unit] = T(sigmoid(gates[3]) * tanhf(next));
}

// Each lane's share of the products of a unit's four rows of the weight with R rows of h. Rows past the batch
// repeat the last one: what comes of them is dropped.
template <class T, int R, int N>
__device__ __forceinline__ void lstm_sums(const LstmParams& p, std::int64_t unit, std::int64_t first_row,
                                          float (&sums)[R * 4]) {
    using Vec = Vector<T, N>;
    const T* weight = static_cast<const T*>(p.weight) + unit * p.hidden;
    const T* rows[R];
#pragma unroll
    for (int r = 0; r < R; ++r) {
        const std::int64_t row = first_row + r < p.batch ? first_row + r : p.batch - 1;
        rows[r] = static_cast<const T*>(p.h) + row * p.h_stride;
    }
    for (std::int64_t k = threadIdx.x % 32 * N; k < p.hidden; k += 32 * N) {
        Vec w[4], h[R];
#pragma unroll
        for (int g = 0; g < 4; ++g)
            w[g] = *reinterpret_cast<const Vec*>(weight + g * p.hidden * p.hidden + k);
#pragma unroll
        for (int r = 0; r < R; ++r) h[r] = *reinterpret_cast<const Vec*>(rows[r] + k);
#pragma unroll
        for (int j = 0; j < N; ++j) {
#pragma unroll
            for (int r = 0; r < R; ++r) {
                const float value = float(h[r].values[j]);
#pragma unroll
                for (int g = 0; g < 4; ++g) sums[r * 4 + g] += float(w[g].values[j]) * value;
            }
        }
    }
}

// Adds up over the warp: lane i gets the sum of everyone's i-th of 32 values, in 31 exchanges.
template <int half = 16>
__device__ __forceinline__ float sum_of_lane(float (&values)[32]) {
    const bool upper = threadIdx.x & half;
#pragma unroll
    for (int i = 0; i < half; ++i) {
        const float mine = upper ? values[i + half] : values[i];
        const float others = upper ? values[i] : values[i + half];
        values[i] = mine + __shfl_xor_sync(0xffffffffu, others, half);
    }
    if constexpr (half > 1) return sum_of_lane<half / 2>(values);
    return values[0];
}

// A warp has a unit, and all rows of the batch: one alone, or eight at a time.
template <class T, int N>
__device__ __forceinline__ void lstm_fused(const LstmParams& p) {
    const std::int64_t unit = global_thread() / 32;
    const int lane = threadIdx.x % 32;
    if (unit >= p.hidden) return;
    if (p.batch == 1) {
        float sums[4] = {};
        lstm_sums<T, 1, N>(p, unit, 0, sums);
#pragma unroll
        for (float& sum : sums) sum = warp_reduce(sum, [](float x, float y) { return x + y; });
        if (lane == 0) lstm_unit<T>(p, 0, unit, sums);
        return;
    }
    for (std::int64_t row = 0; row < p.batch; row += kLstmRows) {
        float sums[kLstmRows * 4] = {};
        lstm_sums<T, kLstmRows, N>(p, unit, row, sums);
        const float own = sum_of_lane(sums);  // of row lane / 4, gate lane % 4
        float gates[4];
#pragma unroll
        for (int g = 0; g < 4; ++g) gates[g] = __shfl_sync(0xffffffffu, own, lane / 4 * 4 + g);
        if (lane % 4 == 0 && row + lane / 4 < p.batch) lstm_unit<T>(p, row + lane / 4, unit, gates);
    }
}

template <class T>
__device__ __forceinline__ void lstm_kernel(const LstmParams& p) {
    wait_for_predecessor();
    if (p.h_gates != nullptr) {
        const float none[4] = {};
        for (std::int64_t i = global_thread(); i < p.batch * p.hidden; i += grid_threads())
            lstm_unit<T>(p, i / p.hidden, i % p.hidden, none);
    } else if (p.vectorized) {
        lstm_fused<T, 16 / sizeof(T)>(p);
    } else {
        lstm_fused<T, 1>(p);
    }
}

#define X(suffix, T) \
    extern "C" __global__ void lstm_##suffix(const __grid_constant__ LstmParams p) { lstm_kernel<T>(p); }
GPK_FLOAT_TYPES(X)
#undef X

}  // namespace gpk::kernels
