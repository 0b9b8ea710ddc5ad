// How element-wise kernels read, compute and write elements, on both sides.
//
// Arithmetic runs in four compute types: float (float16, bfloat16, float32 and the float8 types),
// double, int64 and uint64 (with bool). A result is cut to the stored type, which for integers is the
// same as computing in that type: all of the ops agree modulo 2^bits. So one kernel serves a class of
// dtypes, and its dtype is a run-time switch.
#pragma once

#include <cstdint>
#include <limits>
#include <type_traits>

#include "base/dtype.hpp"
#include "base/float_types.hpp"

namespace gpk::kernels {

// X(dtype, type): the stored types of each compute type. A stored bool is a byte, true where not 0.
#define GPK_FLOAT_CLASS(X)           \
    X(float16, gpk::float16)         \
    X(bfloat16, gpk::bfloat16)       \
    X(float32, float)                \
    X(float8_e4m3, gpk::float8_e4m3) \
    X(float8_e5m2, gpk::float8_e5m2)
#define GPK_DOUBLE_CLASS(X) X(float64, double)
#define GPK_INT64_CLASS(X) \
    X(int8, std::int8_t)   \
    X(int16, std::int16_t) \
    X(int32, std::int32_t) \
    X(int64, std::int64_t)
#define GPK_UINT64_CLASS(X)  \
    X(bool_, bool)           \
    X(uint8, std::uint8_t)   \
    X(uint16, std::uint16_t) \
    X(uint32, std::uint32_t) \
    X(uint64, std::uint64_t)
#define GPK_ALL_STORED(X) GPK_FLOAT_CLASS(X) GPK_DOUBLE_CLASS(X) GPK_INT64_CLASS(X) GPK_UINT64_CLASS(X)

// X(name, type): the compute types.
#define GPK_COMPUTE_TYPES(X) \
    X(float32, float) X(float64, double) X(int64, std::int64_t) X(uint64, std::uint64_t)

enum class ComputeType : std::uint8_t { float32, float64, int64, uint64 };
inline constexpr int kComputeTypeCount = 4;

constexpr ComputeType compute_type(DType dtype) {
    switch (info(dtype).kind) {
        case DTypeKind::floating:
            return dtype == DType::float64 ? ComputeType::float64 : ComputeType::float32;
        case DTypeKind::signed_integer: return ComputeType::int64;
        default: return ComputeType::uint64;
    }
}

// x < 0, without asking an unsigned number.
template <class C>
GPK_HD bool is_negative(C x) {
    if constexpr (std::is_unsigned_v<C>) {
        return false;
    } else {
        return x < 0;
    }
}

template <class T>
using compute_type_t =
    std::conditional_t<!std::is_integral_v<T>, compute_t<T>,
                       std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>>;

template <class T>
using stored_t = std::conditional_t<std::is_same_v<T, bool>, std::uint8_t, T>;

namespace detail {

// float64 to a float32 that rounds on to any shorter format as the float64 itself would: towards zero,
// with the last bit set where anything was lost (round to odd; Boldo and Melquiond 2008).
GPK_HD float round_to_odd(double value) {
    float result = static_cast<float>(value);
    std::uint32_t bits = gpk::detail::bit_cast<std::uint32_t>(result);
    const double magnitude = value < 0 ? -value : value;
    const float rounded = gpk::detail::bit_cast<float>(bits & 0x7fffffffu);
    if (static_cast<double>(rounded) > magnitude) --bits;
    result = gpk::detail::bit_cast<float>(bits);
    if (value == value && static_cast<double>(result) != value) bits |= 1u;
    return gpk::detail::bit_cast<float>(bits);
}

// Towards zero; what does not fit saturates and NaN gives 0, on both sides.
template <class To, class From>
GPK_HD To float_to_integer(From value) {
    constexpr int bits = std::numeric_limits<To>::digits;
    constexpr From limit = static_cast<From>(std::uint64_t{1} << (bits - 1)) * 2;  // 2^bits, one too many
    constexpr To largest = static_cast<To>(~std::uint64_t{0} >> (64 - bits));
    if (!(value == value)) return 0;
    if (value >= limit) return largest;
    if constexpr (std::is_signed_v<To>) {
        if (value <= -limit) return -largest - 1;
    } else {
        if (value <= 0) return 0;
    }
    return static_cast<To>(value);
}

}  // namespace detail

// A value of a compute type as a stored one. Integers wrap, as in C and NumPy.
template <class To, class C>
GPK_HD stored_t<To> encode(C value) {
    if constexpr (std::is_same_v<To, bool>) {
        return value != 0 ? 1 : 0;
    } else if constexpr (is_small_float<To> && std::is_same_v<C, double>) {
        return To(detail::round_to_odd(value));
    } else if constexpr (std::is_floating_point_v<C> && std::is_integral_v<To>) {
        return detail::float_to_integer<To>(value);
    } else {
        return convert<To>(value);
    }
}

template <class T, class C>
GPK_HD C decode(stored_t<T> value) {
    if constexpr (std::is_same_v<T, bool>) {
        return value != 0 ? 1 : 0;
    } else {
        return convert<C>(value);
    }
}

template <class T>
GPK_HD stored_t<T> load_stored(const void* data, std::int64_t i) {
    return static_cast<const stored_t<T>*>(data)[i];
}

// Element i of an array whose dtype is of C's class.
template <class C>
GPK_HD C load(DType dtype, const void* data, std::int64_t i);

#define GPK_LOAD_CASE(name, T) \
    case DType::name: return decode<T, Compute>(load_stored<T>(data, i));
#define GPK_DEFINE_LOAD(C, TYPES)                                     \
    template <>                                                       \
    GPK_HD C load<C>(DType dtype, const void* data, std::int64_t i) { \
        using Compute = C;                                            \
        switch (dtype) {                                              \
            TYPES(GPK_LOAD_CASE)                                      \
            default: return C{};                                      \
        }                                                             \
    }
GPK_DEFINE_LOAD(float, GPK_FLOAT_CLASS)
GPK_DEFINE_LOAD(double, GPK_DOUBLE_CLASS)
GPK_DEFINE_LOAD(std::int64_t, GPK_INT64_CLASS)
GPK_DEFINE_LOAD(std::uint64_t, GPK_UINT64_CLASS)
#undef GPK_DEFINE_LOAD
#undef GPK_LOAD_CASE

// Writes element i of an array of any dtype: every conversion there is.
template <class C>
GPK_HD void store(DType dtype, void* data, std::int64_t i, C value) {
    switch (dtype) {
#define GPK_STORE_CASE(name, T) \
    case DType::name: static_cast<stored_t<T>*>(data)[i] = encode<T>(value); break;
        GPK_ALL_STORED(GPK_STORE_CASE)
    }
}

// Writes element i of an array whose dtype is of C's class.
template <class C>
GPK_HD void store_same(DType dtype, void* data, std::int64_t i, C value);
#define GPK_DEFINE_STORE(C, TYPES)                                                \
    template <>                                                                   \
    GPK_HD void store_same<C>(DType dtype, void* data, std::int64_t i, C value) { \
        switch (dtype) {                                                          \
            TYPES(GPK_STORE_CASE)                                                 \
            default: break;                                                       \
        }                                                                         \
    }
GPK_DEFINE_STORE(float, GPK_FLOAT_CLASS)
GPK_DEFINE_STORE(double, GPK_DOUBLE_CLASS)
GPK_DEFINE_STORE(std::int64_t, GPK_INT64_CLASS)
GPK_DEFINE_STORE(std::uint64_t, GPK_UINT64_CLASS)
#undef GPK_DEFINE_STORE
#undef GPK_STORE_CASE

}  // namespace gpk::kernels
