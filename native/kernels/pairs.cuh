// Two numbers of 16 bits in a word, the first in its low half.
#pragma once

#include <cstdint>
#include <type_traits>

#include "base/float_types.hpp"

namespace gpk::kernels {

template <class T>
__device__ __forceinline__ std::uint32_t pack_pair(float low, float high) {
    std::uint32_t pair;
    if constexpr (std::is_same_v<T, bfloat16>) {
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    } else {
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    }
    return pair;
}
template <class T>
__device__ __forceinline__ float2 unpack_pair(std::uint32_t pair) {
    if constexpr (std::is_same_v<T, bfloat16>) {
        return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)};
    } else {
        float2 both;
        asm("{\n.reg .b16 l, h;\nmov.b32 {l, h}, %2;\ncvt.f32.f16 %0, l;\ncvt.f32.f16 %1, h;\n}\n"
            : "=f"(both.x), "=f"(both.y)
            : "r"(pair));
        return both;
    }
}

}  // namespace gpk::kernels
