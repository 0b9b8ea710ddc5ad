// What each UnaryOp computes, on a compute type (elements.hpp): float, double, int64 or uint64.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/elementwise/math.hpp"
#include "kernels/elementwise/unary.hpp"

namespace gpk::kernels::unary_functors {

template <class C>
inline constexpr bool is_float = std::is_floating_point_v<C>;

struct negative {
    template <class C>
    GPK_HD static C apply(C x) {
        if constexpr (is_float<C>) {
            return -x;
        } else {
            return static_cast<C>(0 - static_cast<std::uint64_t>(x));  // wraps
        }
    }
};

struct absolute {
    template <class C>
    GPK_HD static C apply(C x) {
        if constexpr (is_float<C>) {
            return math::fabs(x);
        } else {
            return is_negative(x) ? negative::apply(x) : x;
        }
    }
};

struct sign {
    template <class C>
    GPK_HD static C apply(C x) {
        return x != x ? x : static_cast<C>((x > 0) - is_negative(x));
    }
};

struct square {
    template <class C>
    GPK_HD static C apply(C x) {
        if constexpr (is_float<C>) {
            return x * x;
        } else {
            return static_cast<C>(static_cast<std::uint64_t>(x) * static_cast<std::uint64_t>(x));  // wraps
        }
    }
};

// Of integers truncated; of 0 it is 0, as everywhere where integers divide by zero.
struct reciprocal {
    template <class C>
    GPK_HD static C apply(C x) {
        if constexpr (is_float<C>) {
            return 1 / x;
        } else {
            const bool is_minus_one = is_negative(x) && x == static_cast<C>(-1);
            return x == 1 || is_minus_one ? x : 0;
        }
    }
};

struct isfinite {
    template <class C>
    GPK_HD static bool apply(C x) {
        if constexpr (is_float<C>) {
            return math::is_finite(x);
        } else {
            return true;
        }
    }
};

// Integers are whole already.
#define GPK_ROUNDING(name)               \
    struct name {                        \
        template <class C>               \
        GPK_HD static C apply(C x) {     \
            if constexpr (is_float<C>) { \
                return math::name(x);    \
            } else {                     \
                return x;                \
            }                            \
        }                                \
    };
GPK_ROUNDING(floor)
GPK_ROUNDING(ceil)
GPK_ROUNDING(trunc)
#undef GPK_ROUNDING

#define GPK_UNARY(name, Result, ...)      \
    struct name {                         \
        template <class C>                \
        GPK_HD static Result apply(C x) { \
            __VA_ARGS__                   \
        }                                 \
    };
#define GPK_LIBRARY(name, function) GPK_UNARY(name, C, return math::function(x);)

GPK_LIBRARY(sqrt, sqrt)
GPK_LIBRARY(rsqrt, rsqrt)
GPK_LIBRARY(cbrt, cbrt)
GPK_LIBRARY(exp, exp)
GPK_LIBRARY(exp2, exp2)
GPK_LIBRARY(expm1, expm1)
GPK_LIBRARY(log, log)
GPK_LIBRARY(log2, log2)
GPK_LIBRARY(log10, log10)
GPK_LIBRARY(log1p, log1p)
GPK_LIBRARY(sin, sin)
GPK_LIBRARY(cos, cos)
GPK_LIBRARY(tan, tan)
GPK_LIBRARY(arcsin, asin)
GPK_LIBRARY(arccos, acos)
GPK_LIBRARY(arctan, atan)
GPK_LIBRARY(sinh, sinh)
GPK_LIBRARY(cosh, cosh)
GPK_LIBRARY(tanh, tanh)
GPK_LIBRARY(arcsinh, asinh)
GPK_LIBRARY(arccosh, acosh)
GPK_LIBRARY(arctanh, atanh)
GPK_LIBRARY(rint, rint)
GPK_LIBRARY(erf, erf)
GPK_UNARY(isnan, bool, return x != x;)
GPK_UNARY(isinf, bool, return x == x && !isfinite::apply(x);)
GPK_UNARY(logical_not, bool, return x == 0;)
GPK_UNARY(invert, C, return ~x;)
GPK_UNARY(relu, C, return is_negative(x) ? C{0} : x;)
// The exponential of a negative number only, so that neither side overflows or cancels.
GPK_UNARY(sigmoid, C, const C e = math::exp(-math::fabs(x)); return (x < 0 ? e : C{1}) / (1 + e);)
GPK_UNARY(silu, C, return x * sigmoid::apply(x);)
// x * Phi(x); erfc does not cancel in the left tail. 0.7071... is 1 / sqrt(2).
GPK_UNARY(gelu, C, return C(0.5) * x * math::erfc(x * C(-0.707106781186547524400844362104849039));)
// 0.5 x (1 + tanh(u)) = x sigmoid(2u), u = sqrt(2 / pi) (x + 0.044715 x^3) (Hendrycks and Gimpel 2016).
GPK_UNARY(gelu_tanh, C, const C u = C(0.797884560802865355879892119868763737) * (x + C(0.044715) * x * x * x);
          return x * sigmoid::apply(2 * u);)

#undef GPK_UNARY
#undef GPK_LIBRARY

}  // namespace gpk::kernels::unary_functors
