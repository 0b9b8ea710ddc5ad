#include "kernels/elementwise/where.hpp"

#include "kernels/elementwise/access.cuh"

namespace gpk::kernels {

template <class W>
__device__ __forceinline__ void where_loop(const WhereParams& p) {
    const W a_value = static_cast<W>(p.a_bits), b_value = static_cast<W>(p.b_bits);
    const W *a = static_cast<const W*>(p.a), *b = static_cast<const W*>(p.b);
    for (std::int64_t i = global_thread(); i < p.layout.count; i += grid_threads()) {
        std::int64_t at[4];
        p.layout.offsets(i, at);
        W value;
        if (p.condition[at[1]] != 0) {
            value = a != nullptr ? a[at[2]] : a_value;
        } else {
            value = b != nullptr ? b[at[3]] : b_value;
        }
        static_cast<W*>(p.out)[at[0]] = value;
    }
}

extern "C" __global__ void where_strided(const __grid_constant__ WhereParams p) {
    wait_for_predecessor();
    switch (p.element_bytes) {
        case 1: where_loop<std::uint8_t>(p); break;
        case 2: where_loop<std::uint16_t>(p); break;
        case 4: where_loop<std::uint32_t>(p); break;
        case 8: where_loop<std::uint64_t>(p); break;
    }
}

// One of the choices: N elements, or one that is repeated.
template <class W, int N>
struct Choices {
    Pack<W, N> pack;

    __device__ __forceinline__ Choices(const void* data, std::uint64_t bits, bool is_run, std::int64_t at) {
        if (is_run) {
            pack = Pack<W, N>::load(data, at);
            return;
        }
        const W one = data == nullptr ? static_cast<W>(bits) : static_cast<const W*>(data)[at];
#pragma unroll
        for (int k = 0; k < N; ++k) pack.values[k] = one;
    }
};

template <class W, int N>
__device__ __forceinline__ void where_pack(const WherePacksParams& p, std::int64_t i,
                                           const std::int64_t (&at)[3]) {
    const Choices<std::uint8_t, N> condition(p.condition, 0, p.is_run[0], at[0]);
    const Choices<W, N> a(p.a, p.a_bits, p.is_run[1], at[1]), b(p.b, p.b_bits, p.is_run[2], at[2]);
    Pack<W, N> out;
#pragma unroll
    for (int k = 0; k < N; ++k) {
        out.values[k] = condition.pack.values[k] != 0 ? a.pack.values[k] : b.pack.values[k];
    }
    out.store(p.out, i);
}

template <class W>
__device__ __forceinline__ void where_packs_of(const WherePacksParams& p) {
    constexpr int N = 16 / sizeof(W);
    const std::int64_t packs = p.count / N, i = global_thread();
    std::int64_t at[3];
    if (i < packs) {
        p.layout.offsets(i, at);
        where_pack<W, N>(p, i, at);
        return;
    }
    const std::int64_t element = packs * N + i - packs;
    if (element >= p.count) return;
    for (int k = 0; k < 3; ++k) at[k] = element * p.layout.axis[0].stride[k];
    where_pack<W, 1>(p, element, at);
}

extern "C" __global__ void where_packs(const __grid_constant__ WherePacksParams p) {
    wait_for_predecessor();
    switch (p.element_bytes) {
        case 1: where_packs_of<std::uint8_t>(p); break;
        case 2: where_packs_of<std::uint16_t>(p); break;
        case 4: where_packs_of<std::uint32_t>(p); break;
        case 8: where_packs_of<std::uint64_t>(p); break;
    }
}

}  // namespace gpk::kernels
