#include "kernels/norm/rms_norm.hpp"

#include "kernels/device.cuh"
#include "kernels/floats.hpp"

namespace gpk::kernels {

// One block a row. A thread keeps its first vector, so rows of up to 1024 vectors are read once.
template <class T, int N>
__device__ __forceinline__ void normalize_row(const RmsNormParams& p, std::int64_t row, float* shared) {
    using Vec = Vector<T, N>;
    const std::int64_t vectors = p.n / N;
    const Vec* x = static_cast<const Vec*>(p.x) + row * vectors;
    Vec* residual = p.residual == nullptr ? nullptr : static_cast<Vec*>(p.residual) + row * vectors;
    const Vec* weight = static_cast<const Vec*>(p.weight);
    Vec* y = static_cast<Vec*>(p.y) + row * vectors;

    Vec first;
    float squares = 0;
    for (std::int64_t i = threadIdx.x; i < vectors; i += blockDim.x) {
        Vec v = x[i];
        if (residual != nullptr) {
            const Vec r = residual[i];
#pragma unroll
            for (int j = 0; j < N; ++j) v.values[j] = T(float(v.values[j]) + float(r.values[j]));
            residual[i] = v;
        }
#pragma unroll
        for (int j = 0; j < N; ++j) {
            const float value = float(v.values[j]);
            squares += value * value;
        }
        if (i == threadIdx.x) first = v;
    }
    const auto add = [](float a, float b) { return a + b; };
    squares = block_reduce(squares, add, 0.0f, shared);
    const float scale = 1.0f / sqrtf(squares / static_cast<float>(p.n) + p.eps);

    const Vec* source = residual != nullptr ? residual : x;
    for (std::int64_t i = threadIdx.x; i < vectors; i += blockDim.x) {
        const Vec v = i == threadIdx.x ? first : source[i];
        const Vec w = weight[i];
        Vec result;
#pragma unroll
        for (int j = 0; j < N; ++j) {
            result.values[j] = T(float(v.values[j]) * scale * float(w.values[j]));
        }
        y[i] = result;
    }
}

template <class T>
__device__ __forceinline__ void rms_norm_rows(const RmsNormParams& p) {
    wait_for_predecessor();
    __shared__ float shared[32];
    for (std::int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
        if (p.vectorized) {
            normalize_row<T, 16 / sizeof(T)>(p, row, shared);
        } else {
            normalize_row<T, 1>(p, row, shared);
        }
    }
}

#define X(suffix, T)                                                                        \
    extern "C" __global__ void rms_norm_##suffix(const __grid_constant__ RmsNormParams p) { \
        rms_norm_rows<T>(p);                                                                \
    }
GPK_FLOAT_TYPES(X)
#undef X

}  // namespace gpk::kernels
