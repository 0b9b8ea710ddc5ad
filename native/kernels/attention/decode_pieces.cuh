// What attention_decode on tensor cores multiplies: pieces of 16 bytes, as lanes hold them.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/device.cuh"

namespace gpk::kernels {

using Piece = Vector<std::uint32_t, 4>;

template <class T>
__device__ __forceinline__ void multiply(float (&d)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2,
                                         std::uint32_t a3, std::uint32_t b0, std::uint32_t b1) {
    if constexpr (std::is_same_v<T, bfloat16>) {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, "
            "%9}, "
            "{%0, %1, %2, %3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    } else {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    }
}

template <class T>
__device__ __forceinline__ std::uint32_t pack(float low, float high) {
    return static_cast<std::uint32_t>(T(low).bits) | static_cast<std::uint32_t>(T(high).bits) << 16;
}
__device__ __forceinline__ std::uint32_t transpose(std::uint32_t x) {
    std::uint32_t y;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}
// Two neighbouring e4m3 numbers in the low half of `bytes`, or the high half, as two of T.
template <class T>
__device__ __forceinline__ std::uint32_t widen(std::uint32_t bytes, int half) {
    const auto two = static_cast<std::uint16_t>(bytes >> 16 * half);
#if __CUDA_ARCH__ >= 890
    std::uint32_t halves;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(two));
    if constexpr (std::is_same_v<T, float16>) return halves;
    float16 low, high;
    low.bits = static_cast<std::uint16_t>(halves);
    high.bits = static_cast<std::uint16_t>(halves >> 16);
    return pack<T>(float(low), float(high));
#else
    // The bits moved to their places are 2^-8 of the number as float16.
    const std::uint32_t apart = __byte_perm(two, 0, 0x1404);  // in the high bytes
    const std::uint32_t small = (apart & 0x80008000u) | ((apart >> 1) & 0x3f803f80u);
    float16 low, high;
    low.bits = static_cast<std::uint16_t>(small);
    high.bits = static_cast<std::uint16_t>(small >> 16);
    const auto number = [&](float16 x, std::uint32_t byte) {
        return (byte & 0x7f) == 0x7f ? __uint_as_float(0x7fffffffu) : float(x) * 256;
    };
    return pack<T>(number(low, two & 0xff), number(high, two >> 8));
#endif
}

}  // namespace gpk::kernels
