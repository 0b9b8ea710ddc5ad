// The C library's functions by one name for float and double, on both sides. On the device these are
// CUDA's accurate ones (within 1 to 4 ulp; CUDA C++ Programming Guide, "Mathematical Functions").
#pragma once

#include <math.h>

#include "base/float_types.hpp"

namespace gpk::kernels::math {

// clang-format off
#define GPK_OF_ONE(X)                                                                                \
    X(sqrt) X(cbrt) X(exp) X(exp2) X(expm1) X(log) X(log2) X(log10) X(log1p) X(sin) X(cos) X(tan)    \
    X(asin) X(acos) X(atan) X(sinh) X(cosh) X(tanh) X(asinh) X(acosh) X(atanh) X(floor) X(ceil)      \
    X(trunc) X(rint) X(fabs) X(erf) X(erfc)
#define GPK_OF_TWO(X) X(pow) X(fmod) X(atan2) X(hypot) X(copysign)
// clang-format on

#define GPK_DEFINE_ONE(name)                            \
    GPK_HD float name(float x) { return ::name##f(x); } \
    GPK_HD double name(double x) { return ::name(x); }
#define GPK_DEFINE_TWO(name)                                        \
    GPK_HD float name(float x, float y) { return ::name##f(x, y); } \
    GPK_HD double name(double x, double y) { return ::name(x, y); }

GPK_OF_ONE(GPK_DEFINE_ONE)
GPK_OF_TWO(GPK_DEFINE_TWO)
#undef GPK_OF_ONE
#undef GPK_OF_TWO
#undef GPK_DEFINE_ONE
#undef GPK_DEFINE_TWO

template <class C>
GPK_HD C rsqrt(C x) {
#ifdef __CUDA_ARCH__
    if constexpr (sizeof(C) == 4) {
        return ::rsqrtf(x);
    } else {
        return ::rsqrt(x);
    }
#else
    return 1 / sqrt(x);
#endif
}

template <class C>
GPK_HD bool is_nan(C x) {
    return x != x;
}
// Infinity minus itself, and NaN, are the values that are not 0.
template <class C>
GPK_HD bool is_finite(C x) {
    return x - x == 0;
}

}  // namespace gpk::kernels::math
