#include "kernels/activation/silu_mul.hpp"

#include "kernels/device.cuh"
#include "kernels/floats.hpp"

namespace gpk::kernels {

template <class T, int N>
__device__ __forceinline__ void silu_mul_elements(const SiluMulParams& p) {
    using Vec = Vector<T, N>;
    const std::int64_t columns = p.n / N;
    for (std::int64_t i = global_thread(); i < p.rows * columns; i += grid_threads()) {
        const std::int64_t row = i / columns, column = i % columns;
        const Vec gate = static_cast<const Vec*>(p.gate)[row * (p.gate_stride / N) + column];
        const Vec up = static_cast<const Vec*>(p.up)[row * (p.up_stride / N) + column];
        Vec y;
#pragma unroll
        for (int j = 0; j < N; ++j) {
            const float g = float(gate.values[j]);
            y.values[j] = T(g / (1.0f + expf(-g)) * float(up.values[j]));
        }
        static_cast<Vec*>(p.y)[i] = y;
    }
}

template <class T>
__device__ __forceinline__ void silu_mul_kernel(const SiluMulParams& p) {
    wait_for_predecessor();
    if (p.vectorized) {
        silu_mul_elements<T, 16 / sizeof(T)>(p);
    } else {
        silu_mul_elements<T, 1>(p);
    }
}

#define X(suffix, T)                                                                        \
    extern "C" __global__ void silu_mul_##suffix(const __grid_constant__ SiluMulParams p) { \
        silu_mul_kernel<T>(p);                                                              \
    }
GPK_FLOAT_TYPES(X)
#undef X

}  // namespace gpk::kernels
