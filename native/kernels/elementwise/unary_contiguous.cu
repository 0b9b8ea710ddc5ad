#include "kernels/elementwise/access.cuh"
#include "kernels/elementwise/unary_functors.hpp"

namespace gpk::kernels {

template <class F, class T>
__device__ __forceinline__ void unary_contiguous_body(const UnaryContiguousParams& p) {
    wait_for_predecessor();
    constexpr int N = 16 / sizeof(T);
    const std::int64_t packs = p.count / N;
    for (std::int64_t i = global_thread(); i < packs; i += grid_threads()) {
        auto x = Pack<T, N>::load(p.x, i);
#pragma unroll
        for (int k = 0; k < N; ++k) x.values[k] = encode<T>(F::apply(decode<T, float>(x.values[k])));
        x.store(p.out, i);
    }
    // The elements that fill no pack.
    const std::int64_t i = packs * N + global_thread();
    if (i < p.count) {
        static_cast<T*>(p.out)[i] = encode<T>(F::apply(decode<T, float>(load_stored<T>(p.x, i))));
    }
}

#define GPK_KERNEL(op, dtype, T)                                                                       \
    extern "C" __global__ void unary_##op##_##dtype(const __grid_constant__ UnaryContiguousParams p) { \
        unary_contiguous_body<unary_functors::op, T>(p);                                               \
    }
#define GPK_KERNELS(op)                \
    GPK_KERNEL(op, float16, float16)   \
    GPK_KERNEL(op, bfloat16, bfloat16) \
    GPK_KERNEL(op, float32, float)

GPK_CONTIGUOUS_UNARY_OPS(GPK_KERNELS)

}  // namespace gpk::kernels
