// What each BinaryOp computes, on a compute type (elements.hpp): float, double, int64 or uint64.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/elementwise/binary.hpp"
#include "kernels/elementwise/math.hpp"

namespace gpk::kernels::binary_functors {

template <class C>
inline constexpr bool is_float = std::is_floating_point_v<C>;
template <class C>
inline constexpr bool is_signed = std::is_same_v<C, std::int64_t>;

// Integer arithmetic in uint64: overflow wraps instead of being undefined.
GPK_HD std::uint64_t wrap(std::int64_t x) { return static_cast<std::uint64_t>(x); }
GPK_HD std::uint64_t wrap(std::uint64_t x) { return x; }

#define GPK_WRAPPING(name, symbol)                             \
    struct name {                                              \
        template <class C>                                     \
        GPK_HD static C apply(C a, C b) {                      \
            if constexpr (is_float<C>) {                       \
                return a symbol b;                             \
            } else {                                           \
                return static_cast<C>(wrap(a) symbol wrap(b)); \
            }                                                  \
        }                                                      \
    };
#define GPK_COMPARISON(name, symbol)         \
    struct name {                            \
        template <class C>                   \
        GPK_HD static bool apply(C a, C b) { \
            return a symbol b;               \
        }                                    \
    };
#define GPK_LOGICAL(name, symbol)            \
    struct name {                            \
        template <class C>                   \
        GPK_HD static bool apply(C a, C b) { \
            return (a != 0) symbol(b != 0);  \
        }                                    \
    };
#define GPK_BITWISE(name, symbol)         \
    struct name {                         \
        template <class C>                \
        GPK_HD static C apply(C a, C b) { \
            return a symbol b;            \
        }                                 \
    };

GPK_WRAPPING(add, +)
GPK_WRAPPING(subtract, -)
GPK_WRAPPING(multiply, *)
GPK_COMPARISON(equal, ==)
GPK_COMPARISON(not_equal, !=)
GPK_COMPARISON(less, <)
GPK_COMPARISON(less_equal, <=)
GPK_COMPARISON(greater, >)
GPK_COMPARISON(greater_equal, >=)
GPK_LOGICAL(logical_and, &)
GPK_LOGICAL(logical_or, |)
GPK_LOGICAL(logical_xor, ^)
GPK_BITWISE(bitwise_and, &)
GPK_BITWISE(bitwise_or, |)
GPK_BITWISE(bitwise_xor, ^)
#undef GPK_WRAPPING
#undef GPK_COMPARISON
#undef GPK_LOGICAL
#undef GPK_BITWISE

struct divide {
    template <class C>
    GPK_HD static C apply(C a, C b) {
        return a / b;
    }
};

// b = -1 apart: the most negative integer has no counterpart, and dividing it traps on the host.
struct fmod {
    template <class C>
    GPK_HD static C apply(C a, C b) {
        if constexpr (is_float<C>) {
            return math::fmod(a, b);
        } else {
            if (b == 0) return 0;
            if (is_signed<C> && b == static_cast<C>(-1)) return 0;
            return a % b;
        }
    }
};

// Quotient and remainder of floats as in Python and NumPy (npy_divmod, numpy/core/src/npymath).
template <class C>
GPK_HD C float_remainder(C a, C b) {
    const C mod = math::fmod(a, b);
    if (b == 0) return mod;  // NaN
    if (mod == 0) return math::copysign(C{0}, b);
    return (b < 0) != (mod < 0) ? mod + b : mod;
}
template <class C>
GPK_HD C float_floor_divide(C a, C b) {
    if (b == 0) return a / b;
    const C mod = math::fmod(a, b);
    C quotient = (a - mod) / b;
    if (mod != 0 && (b < 0) != (mod < 0)) quotient -= 1;
    if (quotient == 0) return math::copysign(C{0}, a / b);
    const C whole = math::floor(quotient);
    return quotient - whole > C(0.5) ? whole + 1 : whole;
}

struct floor_divide {
    template <class C>
    GPK_HD static C apply(C a, C b) {
        if constexpr (is_float<C>) {
            return float_floor_divide(a, b);
        } else {
            if (b == 0) return 0;
            if constexpr (is_signed<C>) {
                if (b == -1) return static_cast<C>(0 - wrap(a));
                const C quotient = a / b;
                return quotient * b != a && (a < 0) != (b < 0) ? quotient - 1 : quotient;
            } else {
                return a / b;
            }
        }
    }
};

struct remainder {
    template <class C>
    GPK_HD static C apply(C a, C b) {
        if constexpr (is_float<C>) {
            return float_remainder(a, b);
        } else {
            const C mod = fmod::apply(a, b);
            if constexpr (is_signed<C>) {
                return mod != 0 && (mod < 0) != (b < 0) ? mod + b : mod;
            } else {
                return mod;
            }
        }
    }
};

// Integers wrap. To a negative exponent they give the truncated quotient: 1 and -1 keep their size,
// everything else, 0 included, gives 0. NumPy would raise, which needs a look at the data.
struct power {
    template <class C>
    GPK_HD static C apply(C a, C b) {
        if constexpr (is_float<C>) {
            return math::pow(a, b);
        } else {
            if constexpr (is_signed<C>) {
                if (b < 0) return a == 1 ? 1 : a == -1 ? (b & 1 ? -1 : 1) : 0;
            }
            std::uint64_t result = 1, factor = wrap(a);
            for (std::uint64_t n = wrap(b); n != 0; n >>= 1) {
                if (n & 1) result *= factor;
                factor *= factor;
            }
            return static_cast<C>(result);
        }
    }
};

// A NaN in either wins.
struct minimum {
    template <class C>
    GPK_HD static C apply(C a, C b) {
        return a < b || a != a ? a : b;
    }
};
struct maximum {
    template <class C>
    GPK_HD static C apply(C a, C b) {
        return a > b || a != a ? a : b;
    }
};

struct arctan2 {
    template <class C>
    GPK_HD static C apply(C a, C b) {
        return math::atan2(a, b);
    }
};
struct hypot {
    template <class C>
    GPK_HD static C apply(C a, C b) {
        return math::hypot(a, b);
    }
};
// log(exp(a) + exp(b)), as NumPy's npy_logaddexp: right for equal infinities and NaN too.
struct logaddexp {
    template <class C>
    GPK_HD static C apply(C a, C b) {
        if (a == b) return a + C(0.693147180559945309417232121458176568);
        const C difference = a - b;
        if (difference > 0) return a + math::log1p(math::exp(-difference));
        if (difference <= 0) return b + math::log1p(math::exp(difference));
        return difference;  // NaN
    }
};

// A count past the width, a negative one included, shifts everything out.
struct left_shift {
    template <class C>
    GPK_HD static C apply(C a, C b) {
        return wrap(b) < 64 ? static_cast<C>(wrap(a) << wrap(b)) : 0;
    }
};
struct right_shift {
    template <class C>
    GPK_HD static C apply(C a, C b) {
        if (wrap(b) < 64) return a >> b;
        return is_signed<C> && a < 0 ? static_cast<C>(-1) : 0;
    }
};

}  // namespace gpk::kernels::binary_functors
