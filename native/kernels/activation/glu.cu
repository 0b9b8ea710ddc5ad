#include "kernels/activation/glu.hpp"

#include "kernels/device.cuh"
#include "kernels/elementwise/unary_fast.cuh"
#include "kernels/floats.hpp"

namespace gpk::kernels {

template <class F, class T, int N>
__device__ __forceinline__ void glu_elements(const GluParams& p) {
    using Vec = Vector<T, N>;
    const std::int64_t i = global_thread(), columns = p.n / N;
    if (i >= p.rows * columns) return;
    std::int64_t gate_at = i, up_at = i;
    if (p.gate_stride != p.n || p.up_stride != p.n) {
        // A 64-bit division takes longer than the rest.
        const bool fits = (p.rows * columns) >> 32 == 0;
        const std::int64_t row =
            fits ? static_cast<std::uint32_t>(i) / static_cast<std::uint32_t>(columns) : i / columns;
        const std::int64_t column = i - row * columns;
        gate_at = row * (p.gate_stride / N) + column;
        up_at = row * (p.up_stride / N) + column;
    }
    const Vec gate = static_cast<const Vec*>(p.gate)[gate_at];
    const Vec up = static_cast<const Vec*>(p.up)[up_at];
    Vec y;
#pragma unroll
    for (int j = 0; j < N; ++j)
        y.values[j] = T(unary_apply<F, T>(float(gate.values[j])) * float(up.values[j]));
    static_cast<Vec*>(p.y)[i] = y;
}

template <class F, class T>
__device__ __forceinline__ void glu_kernel(const GluParams& p) {
    wait_for_predecessor();
    if (p.vectorized) {
        glu_elements<F, T, 16 / sizeof(T)>(p);
    } else {
        glu_elements<F, T, 1>(p);
    }
}

#define GPK_KERNEL(name, function, suffix, T)                                         \
    extern "C" __global__ void name##_##suffix(const __grid_constant__ GluParams p) { \
        glu_kernel<unary_functors::function, T>(p);                                   \
    }
#define GPK_KERNELS(name, function)               \
    GPK_KERNEL(name, function, f32, float)        \
    GPK_KERNEL(name, function, f16, gpk::float16) \
    GPK_KERNEL(name, function, bf16, gpk::bfloat16)
GPK_GLU_OPS(GPK_KERNELS)

}  // namespace gpk::kernels
