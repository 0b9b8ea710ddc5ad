#include "kernels/elementwise/access.cuh"
#include "kernels/elementwise/clip_value.hpp"

namespace gpk::kernels {

#define GPK_KERNEL(name, C)                                                                                 \
    extern "C" __global__ void clip_##name(const __grid_constant__ ClipParams p) {                          \
        wait_for_predecessor();                                                                             \
        const Bounds<C> bounds(p.bounds);                                                                   \
        for (std::int64_t i = global_thread(); i < p.layout.count; i += grid_threads()) {                   \
            std::int64_t at[2];                                                                             \
            p.layout.offsets(i, at);                                                                        \
            store_same<C>(p.bounds.dtype, p.out, at[0], bounds.apply(load<C>(p.bounds.dtype, p.x, at[1]))); \
        }                                                                                                   \
    }
GPK_COMPUTE_TYPES(GPK_KERNEL)

template <class T>
__device__ __forceinline__ void clip_packs_of(const ClipPacksParams& p) {
    wait_for_predecessor();
    using C = compute_type_t<T>;
    constexpr int N = 16 / sizeof(T);
    const Bounds<C> bounds(p.bounds);
    const auto apply = [&](T x) { return encode<T>(bounds.apply(decode<T, C>(x))); };
    const std::int64_t packs = p.count / N, i = global_thread();
    if (i < packs) {
        auto x = Pack<T, N>::load(p.x, i);
#pragma unroll
        for (int k = 0; k < N; ++k) x.values[k] = apply(x.values[k]);
        x.store(p.out, i);
        return;
    }
    const std::int64_t element = packs * N + i - packs;
    if (element < p.count) static_cast<T*>(p.out)[element] = apply(static_cast<const T*>(p.x)[element]);
}

#undef GPK_KERNEL
#define GPK_KERNEL(name, T)                                                                   \
    extern "C" __global__ void clip_packs_##name(const __grid_constant__ ClipPacksParams p) { \
        clip_packs_of<T>(p);                                                                  \
    }
GPK_CLIP_PACKS(GPK_KERNEL)

}  // namespace gpk::kernels
