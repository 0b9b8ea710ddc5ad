// Element-wise functions of one array: their names, rules, parameters and kernels.
#pragma once

#include <cstdint>

#include "kernels/elementwise/elements.hpp"
#include "kernels/elementwise/layout.hpp"

namespace gpk {

class Kernel;

// Which dtypes an op takes and what it gives; NumPy's rules.
enum class UnaryRule : std::uint8_t {
    any,        // every dtype, kept
    number,     // not bool
    widened,    // bool computes and gives int8
    floating,   // integers and bool compute and give the float that holds them
    predicate,  // gives bool
    bitwise,    // integers and bool
};

// X(name, rule): one list for the enum, the tables and the kernels.
#define GPK_UNARY_OPS(X)      \
    X(negative, number)       \
    X(absolute, any)          \
    X(sign, number)           \
    X(square, widened)        \
    X(reciprocal, widened)    \
    X(sqrt, floating)         \
    X(rsqrt, floating)        \
    X(cbrt, floating)         \
    X(exp, floating)          \
    X(exp2, floating)         \
    X(expm1, floating)        \
    X(log, floating)          \
    X(log2, floating)         \
    X(log10, floating)        \
    X(log1p, floating)        \
    X(sin, floating)          \
    X(cos, floating)          \
    X(tan, floating)          \
    X(arcsin, floating)       \
    X(arccos, floating)       \
    X(arctan, floating)       \
    X(sinh, floating)         \
    X(cosh, floating)         \
    X(tanh, floating)         \
    X(arcsinh, floating)      \
    X(arccosh, floating)      \
    X(arctanh, floating)      \
    X(floor, any)             \
    X(ceil, any)              \
    X(trunc, any)             \
    X(rint, floating)         \
    X(isnan, predicate)       \
    X(isinf, predicate)       \
    X(isfinite, predicate)    \
    X(logical_not, predicate) \
    X(invert, bitwise)        \
    X(erf, floating)          \
    X(sigmoid, floating)      \
    X(relu, any)              \
    X(silu, floating)         \
    X(gelu, floating)         \
    X(gelu_tanh, floating)

enum class UnaryOp : std::uint8_t {
#define GPK_ENUMERATOR(name, rule) name,
    GPK_UNARY_OPS(GPK_ENUMERATOR)
#undef GPK_ENUMERATOR
};

struct UnaryInfo {
    const char* name;
    UnaryRule rule;
};

inline constexpr UnaryInfo kUnaryOps[] = {
#define GPK_ROW(name, rule) {#name, UnaryRule::rule},
    GPK_UNARY_OPS(GPK_ROW)
#undef GPK_ROW
};
inline constexpr int kUnaryOpCount = sizeof(kUnaryOps) / sizeof(kUnaryOps[0]);

constexpr const UnaryInfo& info(UnaryOp op) { return kUnaryOps[static_cast<int>(op)]; }

namespace kernels {

// Whether a rule's ops compute in floating types, and in integer ones.
constexpr bool computes_in(UnaryRule rule, bool floating) {
    switch (rule) {
        case UnaryRule::floating: return floating;
        case UnaryRule::bitwise: return !floating;
        default: return true;
    }
}
template <UnaryRule rule, class C>
inline constexpr bool unary_computes = computes_in(rule, std::is_floating_point_v<C>);

constexpr bool gives_bool(UnaryRule rule) { return rule == UnaryRule::predicate; }

// Any shape and strides (in the layout: out, x), any op of one compute type; the result is of x's
// dtype, or bool.
struct UnaryStridedParams {
    Layout<2> layout;
    const void* x;
    void* out;
    DType x_dtype, out_dtype;
    UnaryOp op;
};
const Kernel& unary_strided(ComputeType type);

// Contiguous arrays of one dtype, aligned to 16 bytes.
struct UnaryContiguousParams {
    std::int64_t count;
    const void* x;
    void* out;
};
// Null where an op has no such kernel for the dtype; the strided one takes all.
const Kernel* unary_contiguous(UnaryOp op, DType dtype);

// X(name): the ops with contiguous kernels, for float16, bfloat16 and float32.
#define GPK_CONTIGUOUS_UNARY_OPS(X) \
    X(negative)                     \
    X(absolute)                     \
    X(square)                       \
    X(reciprocal)                   \
    X(sqrt)                         \
    X(rsqrt)                        \
    X(exp)                          \
    X(exp2)                         \
    X(log)                          \
    X(log2)                         \
    X(log1p)                        \
    X(sin)                          \
    X(cos)                          \
    X(tanh)                         \
    X(erf)                          \
    X(floor)                        \
    X(rint)                         \
    X(sigmoid)                      \
    X(relu)                         \
    X(silu)                         \
    X(gelu)                         \
    X(gelu_tanh)

}  // namespace kernels
}  // namespace gpk
