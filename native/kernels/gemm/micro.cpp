#include "kernels/gemm/micro.hpp"

#include "kernels/host.hpp"

// A tile is sized by the registers: rows * vectors sums, the row of b, and one value of a must fit.
// `bytes` is a vector's size. GCC and clang turn arithmetic on these types into the target's vectors,
// and a product and a sum in one expression into a fused multiply-add.
#define GPK_MICRO(function, target, bytes)                                                                \
    template <class C, int kRows, int kVectors>                                                           \
    target void function(std::int64_t depth, const C* a, const C* b, C* c, std::int64_t pitch) {          \
        typedef C V __attribute__((vector_size(bytes)));                                                  \
        typedef C Loose __attribute__((vector_size(bytes), aligned(alignof(C)), may_alias));              \
        constexpr int kWide = bytes / static_cast<int>(sizeof(C));                                        \
        V sums[kRows][kVectors];                                                                          \
        _Pragma("GCC unroll 16") for (int i = 0; i < kRows; ++i) {                                        \
            _Pragma("GCC unroll 4") for (int j = 0; j < kVectors; ++j) sums[i][j] = V{};                  \
        }                                                                                                 \
        for (std::int64_t l = 0; l < depth; ++l, a += kRows, b += kVectors * kWide) {                     \
            V right[kVectors];                                                                            \
            _Pragma("GCC unroll 4") for (int j = 0; j < kVectors; ++j) {                                  \
                right[j] = *reinterpret_cast<const Loose*>(b + j * kWide);                                \
            }                                                                                             \
            _Pragma("GCC unroll 16") for (int i = 0; i < kRows; ++i) {                                    \
                _Pragma("GCC unroll 4") for (int j = 0; j < kVectors; ++j) sums[i][j] += a[i] * right[j]; \
            }                                                                                             \
        }                                                                                                 \
        _Pragma("GCC unroll 16") for (int i = 0; i < kRows; ++i) {                                        \
            _Pragma("GCC unroll 4") for (int j = 0; j < kVectors; ++j) {                                  \
                *reinterpret_cast<Loose*>(c + i * pitch + j * kWide) += sums[i][j];                       \
            }                                                                                             \
        }                                                                                                 \
    }

namespace gpk::kernels {

namespace {

GPK_MICRO(micro_plain, , 16)
#if defined(__x86_64__)
GPK_MICRO(micro_avx2, __attribute__((target("avx2,fma"))), 32)
GPK_MICRO(micro_avx512, __attribute__((target("avx512f,avx512vl,avx512dq,avx512bw,fma"))), 64)
#endif

template <class C>
Micro<C> choose() {
    constexpr int kSize = sizeof(C);
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw")) {
        return {12, 2 * 64 / kSize, micro_avx512<C, 12, 2>};
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        return {6, 2 * 32 / kSize, micro_avx2<C, 6, 2>};
    }
#endif
    return {4, 2 * 16 / kSize, micro_plain<C, 4, 2>};
}

}  // namespace

template <class C>
const Micro<C>& micro() {
    static const Micro<C> chosen = choose<C>();
    return chosen;
}

template const Micro<float>& micro<float>();
template const Micro<double>& micro<double>();
template const Micro<std::uint32_t>& micro<std::uint32_t>();
template const Micro<std::uint64_t>& micro<std::uint64_t>();

}  // namespace gpk::kernels
