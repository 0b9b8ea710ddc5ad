// float16, bfloat16 and the two float8 types as storage, with conversions to and from float32, on
// both sides. Rounding is to nearest even. float8_e4m3 is the OCP "fn" form: no infinity, and a
// finite value too large becomes NaN, as in ml_dtypes (OCP 8-bit floating point, rev. 1.0).
#pragma once

#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#define GPK_HD __host__ __device__ __forceinline__
#else
#define GPK_HD inline
#endif

namespace gpk {

namespace detail {

template <class To, class From>
GPK_HD To bit_cast(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    memcpy(&to, &from, sizeof(To));
    return to;
}

// One small format: `exponent_bits`, `mantissa_bits`, and whether it has infinities.
template <int exponent_bits, int mantissa_bits, bool has_infinity>
struct SmallFloat {
    static constexpr int kBias = (1 << (exponent_bits - 1)) - 1;
    static constexpr std::uint32_t kMaxExponent = (1u << exponent_bits) - 1;
    static constexpr std::uint32_t kMantissaMask = (1u << mantissa_bits) - 1;
    static constexpr std::uint32_t kSign = 1u << (exponent_bits + mantissa_bits);
    static constexpr std::uint32_t kInfinity = kMaxExponent << mantissa_bits;
    // The format's one NaN where there is no infinity; otherwise the quiet one.
    static constexpr std::uint32_t kNaN = has_infinity ? kInfinity | (1u << (mantissa_bits - 1)) : kSign - 1;
    static constexpr std::uint32_t kLargest = has_infinity ? kInfinity - 1 : kNaN - 1;

    GPK_HD static float decode(std::uint32_t bits) {
        const std::uint32_t sign = (bits & kSign) ? 0x80000000u : 0u;
        const std::uint32_t magnitude = bits & (kSign - 1);
        if (has_infinity ? magnitude > kInfinity : magnitude == kNaN) {
            return bit_cast<float>(sign | 0x7fc00000u);
        }
        if (has_infinity && magnitude == kInfinity) return bit_cast<float>(sign | 0x7f800000u);
        const std::uint32_t exponent = magnitude >> mantissa_bits;
        if (exponent == 0) {  // subnormal: mantissa * 2^(1 - bias - mantissa_bits), exact in float32
            const float scale =
                bit_cast<float>(static_cast<std::uint32_t>(127 + 1 - kBias - mantissa_bits) << 23);
            const float value = static_cast<float>(magnitude) * scale;
            return sign ? -value : value;
        }
        return bit_cast<float>(sign | ((exponent + 127 - kBias) << 23) |
                               ((magnitude & kMantissaMask) << (23 - mantissa_bits)));
    }

    GPK_HD static std::uint32_t encode(float value) {
        const std::uint32_t bits = bit_cast<std::uint32_t>(value);
        const std::uint32_t sign = (bits >> 31) ? kSign : 0u;
        const std::uint32_t magnitude = bits & 0x7fffffffu;
        if (magnitude > 0x7f800000u) return sign | kNaN;
        const int exponent = static_cast<int>(magnitude >> 23) - 127 + kBias;
        std::uint32_t mantissa = magnitude & 0x7fffffu;
        int drop = 23 - mantissa_bits;  // mantissa bits that go
        std::uint32_t base;
        if (exponent <= 0) {
            drop += 1 - exponent;
            if (drop > 24) return sign;  // below half of the smallest subnormal
            mantissa |= 0x800000u;
            base = 0;
        } else {
            if (exponent > static_cast<int>(kMaxExponent)) return sign | (has_infinity ? kInfinity : kNaN);
            base = static_cast<std::uint32_t>(exponent) << mantissa_bits;
        }
        const std::uint32_t half = 1u << (drop - 1);
        const std::uint32_t kept = base + (mantissa >> drop);
        const std::uint32_t rest = mantissa & ((1u << drop) - 1);
        const std::uint32_t rounded = kept + ((rest > half || (rest == half && (kept & 1))) ? 1 : 0);
        if (rounded > kLargest) return sign | (has_infinity ? kInfinity : kNaN);
        return sign | rounded;
    }
};

}  // namespace detail

struct float16 {
    std::uint16_t bits;
    float16() = default;
    GPK_HD explicit float16(float value) {
#ifdef __CUDA_ARCH__
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
#else
        // Selects instead of SmallFloat's branches, so that loops over arrays become vector code.
        const std::uint32_t full = detail::bit_cast<std::uint32_t>(value);
        const std::uint32_t magnitude = full & 0x7fffffffu;
        const std::uint32_t normal = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1)) >> 13;
        // 0.5 has the last place 2^-24, a subnormal's unit: the addition rounds to it.
        const std::uint32_t subnormal =
            detail::bit_cast<std::uint32_t>(detail::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
        const std::uint32_t special = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
        const std::uint32_t finite = magnitude < 0x38800000u ? subnormal : normal;
        bits = static_cast<std::uint16_t>(((full >> 16) & 0x8000u) |
                                          (magnitude < 0x47800000u ? finite : special));
#endif
    }
    GPK_HD explicit operator float() const {
#ifdef __CUDA_ARCH__
        float value;
        asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
        return value;
#else
        const std::uint32_t magnitude = bits & 0x7fffu;
        const std::uint32_t normal = (magnitude << 13) + (112u << 23);
        // One exponent more, and its implicit bit taken off again: the mantissa times 2^-24.
        const float subnormal = detail::bit_cast<float>(normal + (1u << 23)) - 0x1p-14f;
        const std::uint32_t special = magnitude > 0x7c00u ? 0x7fc00000u : 0x7f800000u;
        const std::uint32_t finite = magnitude < 0x400u ? detail::bit_cast<std::uint32_t>(subnormal) : normal;
        return detail::bit_cast<float>((bits & 0x8000u) << 16 | (magnitude < 0x7c00u ? finite : special));
#endif
    }
};

struct bfloat16 {
    std::uint16_t bits;
    bfloat16() = default;
    GPK_HD explicit bfloat16(float value) {
#ifdef __CUDA_ARCH__
        asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
#else
        std::uint32_t full = detail::bit_cast<std::uint32_t>(value);
        // NaN keeps a set mantissa bit; everything else rounds by carrying into the upper half.
        full = (full & 0x7fffffffu) > 0x7f800000u ? full | 0x400000u : full + 0x7fffu + ((full >> 16) & 1);
        bits = static_cast<std::uint16_t>(full >> 16);
#endif
    }
    GPK_HD explicit operator float() const {
        return detail::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
    }
};

struct float8_e4m3 {
    std::uint8_t bits;
    float8_e4m3() = default;
    GPK_HD explicit float8_e4m3(float value)
        : bits(static_cast<std::uint8_t>(detail::SmallFloat<4, 3, false>::encode(value))) {}
    GPK_HD explicit operator float() const { return detail::SmallFloat<4, 3, false>::decode(bits); }
};

struct float8_e5m2 {
    std::uint8_t bits;
    float8_e5m2() = default;
    GPK_HD explicit float8_e5m2(float value)
        : bits(static_cast<std::uint8_t>(detail::SmallFloat<5, 2, true>::encode(value))) {}
    GPK_HD explicit operator float() const { return detail::SmallFloat<5, 2, true>::decode(bits); }
};

// What arithmetic on a stored type runs in: float32 for the small floats, otherwise the type itself.
template <class T>
struct ComputeType {
    using type = T;
};
template <>
struct ComputeType<float16> {
    using type = float;
};
template <>
struct ComputeType<bfloat16> {
    using type = float;
};
template <>
struct ComputeType<float8_e4m3> {
    using type = float;
};
template <>
struct ComputeType<float8_e5m2> {
    using type = float;
};
template <class T>
using compute_t = typename ComputeType<T>::type;

template <class T>
inline constexpr bool is_small_float = false;
template <>
inline constexpr bool is_small_float<float16> = true;
template <>
inline constexpr bool is_small_float<bfloat16> = true;
template <>
inline constexpr bool is_small_float<float8_e4m3> = true;
template <>
inline constexpr bool is_small_float<float8_e5m2> = true;

// One conversion for every pair of stored types; the small floats go through float32.
template <class To, class From>
GPK_HD To convert(From value) {
    if constexpr (is_small_float<From> && is_small_float<To>) {
        return To(static_cast<float>(value));
    } else if constexpr (is_small_float<From>) {
        return static_cast<To>(static_cast<float>(value));
    } else if constexpr (is_small_float<To>) {
        return To(static_cast<float>(value));
    } else {
        return static_cast<To>(value);
    }
}

}  // namespace gpk
