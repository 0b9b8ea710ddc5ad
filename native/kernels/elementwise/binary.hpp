// Element-wise functions of two arrays: their names, rules, parameters and kernels.
#pragma once

#include <cstdint>

#include "kernels/elementwise/elements.hpp"
#include "kernels/elementwise/packs.hpp"

namespace gpk {

class Kernel;

// Which dtypes an op takes and what it gives, after promotion; NumPy's rules.
enum class BinaryRule : std::uint8_t {
    any,         // every dtype, kept
    number,      // not bool
    widened,     // bool computes and gives int8
    quotient,    // integers and bool compute and give float64
    floating,    // integers and bool compute and give the float that holds them
    comparison,  // gives bool
    logical,     // gives bool
    bitwise,     // integers and bool
    shift,       // integers; bool computes and gives int8
};

// X(name, rule): one list for the enum, the tables and the kernels.
#define GPK_BINARY_OPS(X)        \
    X(add, any)                  \
    X(subtract, number)          \
    X(multiply, any)             \
    X(divide, quotient)          \
    X(floor_divide, widened)     \
    X(remainder, widened)        \
    X(fmod, widened)             \
    X(power, widened)            \
    X(minimum, any)              \
    X(maximum, any)              \
    X(arctan2, floating)         \
    X(hypot, floating)           \
    X(logaddexp, floating)       \
    X(equal, comparison)         \
    X(not_equal, comparison)     \
    X(less, comparison)          \
    X(less_equal, comparison)    \
    X(greater, comparison)       \
    X(greater_equal, comparison) \
    X(logical_and, logical)      \
    X(logical_or, logical)       \
    X(logical_xor, logical)      \
    X(bitwise_and, bitwise)      \
    X(bitwise_or, bitwise)       \
    X(bitwise_xor, bitwise)      \
    X(left_shift, shift)         \
    X(right_shift, shift)

enum class BinaryOp : std::uint8_t {
#define GPK_ENUMERATOR(name, rule) name,
    GPK_BINARY_OPS(GPK_ENUMERATOR)
#undef GPK_ENUMERATOR
};

struct BinaryInfo {
    const char* name;
    BinaryRule rule;
};

inline constexpr BinaryInfo kBinaryOps[] = {
#define GPK_ROW(name, rule) {#name, BinaryRule::rule},
    GPK_BINARY_OPS(GPK_ROW)
#undef GPK_ROW
};
inline constexpr int kBinaryOpCount = sizeof(kBinaryOps) / sizeof(kBinaryOps[0]);

constexpr const BinaryInfo& info(BinaryOp op) { return kBinaryOps[static_cast<int>(op)]; }

namespace kernels {

// Whether a rule's ops compute in floating types, and in integer ones.
constexpr bool computes_in(BinaryRule rule, bool floating) {
    switch (rule) {
        case BinaryRule::quotient:
        case BinaryRule::floating: return floating;
        case BinaryRule::bitwise:
        case BinaryRule::shift: return !floating;
        default: return true;
    }
}
template <BinaryRule rule, class C>
inline constexpr bool binary_computes = computes_in(rule, std::is_floating_point_v<C>);

constexpr bool gives_bool(BinaryRule rule) {
    return rule == BinaryRule::comparison || rule == BinaryRule::logical;
}

// One side of an op: an array, its only element, or a number that travels with the launch.
enum class OperandKind : std::uint32_t { array, element, immediate };

struct Operand {
    const void* data;
    std::uint64_t bits;  // of an immediate, as stored in `dtype`
    OperandKind kind;
    DType dtype;
};

// Any shape and strides (in the layout: out, a, b), any op of one compute type. The dtypes of a and b
// are of its class; the result is too, or bool.
struct BinaryStridedParams {
    Layout<3> layout;
    Operand a, b;
    void* out;
    DType out_dtype;
    BinaryOp op;
};
const Kernel& binary_strided(ComputeType type);

// A contiguous result of operands of one dtype, the kernel's, which are runs along the innermost axis
// (OperandKind::array) or repeat one element along it (element), packs of 16 bytes at a time. Arrays are
// aligned to 16 bytes (a bool result of N-byte elements: to 16 / N). A thread a pack or element that fills
// none.
struct BinaryPacksParams {
    std::int64_t count;  // elements of the result
    Operand a, b;
    void* out;
    PackLayout<2> layout;  // a, b
};
// Null where an op has no such kernel for the dtype; the strided one takes all.
const Kernel* binary_packs(BinaryOp op, DType dtype);

// X(name): the ops with such kernels, which cost less than the memory they touch.
#define GPK_PACKS_FLOAT_OPS(X) \
    X(add) X(subtract) X(multiply) X(divide) X(minimum) X(maximum) GPK_PACKS_COMPARISONS(X)
#define GPK_PACKS_INTEGER_OPS(X) X(add) X(subtract) X(multiply) X(minimum) X(maximum) GPK_PACKS_COMPARISONS(X)
#define GPK_PACKS_BOOL_OPS(X) X(logical_and) X(logical_or) X(logical_xor)
#define GPK_PACKS_COMPARISONS(X) X(equal) X(not_equal) X(less) X(less_equal) X(greater) X(greater_equal)

}  // namespace kernels
}  // namespace gpk
