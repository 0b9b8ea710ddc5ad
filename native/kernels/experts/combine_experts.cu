#include "kernels/experts/combine_experts.hpp"

#include "kernels/device.cuh"
#include "kernels/floats.hpp"

namespace gpk::kernels {

namespace {

template <class T, int N>
__device__ __forceinline__ void combine(const CombineExpertsParams& p) {
    using Vec = Vector<T, N>;
    const std::int64_t column = global_thread(), columns = p.n / N;
    if (column >= columns) return;
    for (std::int64_t token = blockIdx.y; token < p.tokens; token += gridDim.y) {
        float sums[N] = {};
        for (int i = 0; i < p.top; ++i) {
            const std::int64_t row = p.places[token * p.top + i];
            if (row < 0 || row >= p.rows) continue;
            const float weight = p.weights[token * p.top + i];
            const Vec y = static_cast<const Vec*>(p.y)[row * columns + column];
#pragma unroll
            for (int j = 0; j < N; ++j) sums[j] = fmaf(weight, convert<float>(y.values[j]), sums[j]);
        }
        if (p.residual != nullptr) {
            const Vec residual = static_cast<const Vec*>(p.residual)[token * columns + column];
#pragma unroll
            for (int j = 0; j < N; ++j) sums[j] += convert<float>(residual.values[j]);
        }
        Vec out;
#pragma unroll
        for (int j = 0; j < N; ++j) out.values[j] = convert<T>(sums[j]);
        static_cast<Vec*>(p.out)[token * columns + column] = out;
    }
}

}  // namespace

#define X(suffix, T)                                                               \
    extern "C" __global__ void __launch_bounds__(kCombineThreads)                  \
        combine_experts_##suffix(const __grid_constant__ CombineExpertsParams p) { \
        wait_for_predecessor();                                                    \
        if (p.vectorized != 0) {                                                   \
            combine<T, 16 / sizeof(T)>(p);                                         \
        } else {                                                                   \
            combine<T, 1>(p);                                                      \
        }                                                                          \
    }
GPK_FLOAT_TYPES(X)
#undef X

}  // namespace gpk::kernels
