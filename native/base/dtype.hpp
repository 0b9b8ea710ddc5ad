// Element types: their names, sizes, kinds and promotion.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace gpk {

enum class DType : std::uint8_t {
    bool_,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
    float16,
    bfloat16,
    float32,
    float64,
    float8_e4m3,  // storage and conversion only
    float8_e5m2,  // storage and conversion only
};

inline constexpr int kDTypeCount = 15;

enum class DTypeKind : std::uint8_t { boolean, signed_integer, unsigned_integer, floating };

struct DTypeInfo {
    std::string_view name;
    std::uint8_t size_bytes;
    DTypeKind kind;
};

inline constexpr DTypeInfo kDTypes[kDTypeCount] = {
    {"bool", 1, DTypeKind::boolean},
    {"int8", 1, DTypeKind::signed_integer},
    {"int16", 2, DTypeKind::signed_integer},
    {"int32", 4, DTypeKind::signed_integer},
    {"int64", 8, DTypeKind::signed_integer},
    {"uint8", 1, DTypeKind::unsigned_integer},
    {"uint16", 2, DTypeKind::unsigned_integer},
    {"uint32", 4, DTypeKind::unsigned_integer},
    {"uint64", 8, DTypeKind::unsigned_integer},
    {"float16", 2, DTypeKind::floating},
    {"bfloat16", 2, DTypeKind::floating},
    {"float32", 4, DTypeKind::floating},
    {"float64", 8, DTypeKind::floating},
    {"float8_e4m3", 1, DTypeKind::floating},
    {"float8_e5m2", 1, DTypeKind::floating},
};

constexpr const DTypeInfo& info(DType dtype) { return kDTypes[static_cast<int>(dtype)]; }
constexpr std::string_view name(DType dtype) { return info(dtype).name; }
constexpr std::size_t itemsize(DType dtype) { return info(dtype).size_bytes; }
constexpr bool is_floating(DType dtype) { return info(dtype).kind == DTypeKind::floating; }
constexpr bool is_integer(DType dtype) {
    return info(dtype).kind == DTypeKind::signed_integer || info(dtype).kind == DTypeKind::unsigned_integer;
}
constexpr bool is_float8(DType dtype) { return dtype == DType::float8_e4m3 || dtype == DType::float8_e5m2; }

// Throws Error (type), listing the names, for an unknown one.
DType dtype_from_name(std::string_view name);

// The common type of two arrays, as NumPy promotes (NEP 50). float16 with bfloat16 gives float32.
// float8 types promote only with themselves: anything else throws Error (type).
DType promote(DType a, DType b);

// What a function of real numbers computes and gives: floats keep their type, integers and bool the
// smallest float that NumPy finds large enough for them.
DType float_for(DType dtype);

// What a Python scalar is to promotion: weak, it adapts to the array's dtype within its kind.
enum class ScalarKind : std::uint8_t { boolean, integer, floating };

// The type of `array op scalar` (NEP 50): an integer or bool array with a float scalar gives float64.
DType promote_scalar(DType array, ScalarKind scalar);

}  // namespace gpk
