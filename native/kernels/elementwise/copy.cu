#include "kernels/elementwise/copy.hpp"

#include "kernels/elementwise/access.cuh"

namespace gpk::kernels {

template <class W>
__device__ __forceinline__ void copy_loop(const CopyParams& p) {
    for (std::int64_t i = global_thread(); i < p.layout.count; i += grid_threads()) {
        std::int64_t at[2];
        p.layout.offsets(i, at);
        static_cast<W*>(p.to)[at[0]] = static_cast<const W*>(p.from)[at[1]];
    }
}

extern "C" __global__ void copy_strided(const __grid_constant__ CopyParams p) {
    wait_for_predecessor();
    switch (p.element_bytes) {
        case 1: copy_loop<std::uint8_t>(p); break;
        case 2: copy_loop<std::uint16_t>(p); break;
        case 4: copy_loop<std::uint32_t>(p); break;
        case 8: copy_loop<uint2>(p); break;
        case 16: copy_loop<uint4>(p); break;
    }
}

#define GPK_KERNEL(name, C)                                                                      \
    extern "C" __global__ void convert_strided_##name(const __grid_constant__ ConvertParams p) { \
        wait_for_predecessor();                                                                  \
        for (std::int64_t i = global_thread(); i < p.layout.count; i += grid_threads()) {        \
            std::int64_t at[2];                                                                  \
            p.layout.offsets(i, at);                                                             \
            store<C>(p.to_dtype, p.to, at[0], load<C>(p.from_dtype, p.from, at[1]));             \
        }                                                                                        \
    }
GPK_COMPUTE_TYPES(GPK_KERNEL)
#undef GPK_KERNEL

template <class From, class To>
__device__ __forceinline__ void convert_contiguous_body(const ConvertContiguousParams& p) {
    wait_for_predecessor();
    using C = compute_type_t<From>;
    constexpr int wide = sizeof(From) > sizeof(To) ? sizeof(From) : sizeof(To);
    constexpr int N = 16 / wide;
    const auto apply = [](stored_t<From> from) { return encode<To>(decode<From, C>(from)); };
    const std::int64_t packs = p.count / N, i = global_thread();
    if (i < packs) {
        const auto from = Pack<stored_t<From>, N>::load(p.from, i);
        Pack<stored_t<To>, N> to;
#pragma unroll
        for (int k = 0; k < N; ++k) to.values[k] = apply(from.values[k]);
        to.store(p.to, i);
        return;
    }
    const std::int64_t element = packs * N + i - packs;  // of those that fill no pack
    if (element < p.count)
        static_cast<stored_t<To>*>(p.to)[element] = apply(load_stored<From>(p.from, element));
}

#define GPK_KERNEL(from, From, to, To)                                                                    \
    extern "C" __global__ void convert_##from##_##to(const __grid_constant__ ConvertContiguousParams p) { \
        convert_contiguous_body<From, To>(p);                                                             \
    }
GPK_CONVERT_PAIRS(GPK_KERNEL)

}  // namespace gpk::kernels
