// Element-wise functions of one array: their names, parameters and kernels.
#pragma once

#include <cstdint>

namespace gpk {

// X(name): one list for the enum, the tables and the kernels.
#define GPK_UNARY_OPS(X)                                                                         \
    X(negative) X(absolute) X(sign) X(square) X(reciprocal) X(sqrt) X(rsqrt) X(cbrt)             \
    X(exp) X(exp2) X(expm1) X(log) X(log2) X(log10) X(log1p)                                     \
    X(sin) X(cos) X(tan) X(arcsin) X(arccos) X(arctan)                                           \
    X(sinh) X(cosh) X(tanh) X(arcsinh) X(arccosh) X(arctanh)                                     \
    X(floor) X(ceil) X(trunc) X(rint) X(isnan) X(isinf) X(isfinite) X(logical_not) X(invert)     \
    X(erf) X(sigmoid) X(relu) X(silu) X(gelu) X(gelu_tanh)

enum class UnaryOp : std::uint8_t {
#define GPK_ENUMERATOR(name) name,
    GPK_UNARY_OPS(GPK_ENUMERATOR)
#undef GPK_ENUMERATOR
};

#define GPK_COUNT(name) +1
inline constexpr int kUnaryOpCount = 0 GPK_UNARY_OPS(GPK_COUNT);
#undef GPK_COUNT

}  // namespace gpk
