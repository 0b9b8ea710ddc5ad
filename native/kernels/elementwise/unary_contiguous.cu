#include "kernels/elementwise/access.cuh"
#include "kernels/elementwise/unary_fast.cuh"

namespace gpk::kernels {

template <class F, class T>
__device__ __forceinline__ void unary_contiguous_body(const UnaryContiguousParams& p) {
    wait_for_predecessor();
    constexpr int N = 16 / sizeof(T);
    const auto apply = [](T x) { return encode<T>(unary_apply<F, T>(decode<T, float>(x))); };
    const std::int64_t packs = p.count / N, i = global_thread();
    if (i < packs) {
        auto x = Pack<T, N>::load(p.x, i);
#pragma unroll
        for (int k = 0; k < N; ++k) x.values[k] = apply(x.values[k]);
        x.store(p.out, i);
        return;
    }
    const std::int64_t element = packs * N + i - packs;  // of those that fill no pack
    if (element < p.count) static_cast<T*>(p.out)[element] = apply(static_cast<const T*>(p.x)[element]);
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
