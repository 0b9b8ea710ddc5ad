// The C library's functions by one name for float and double, on both sides. On the device these are
// CUDA's accurate ones (within 1 to 4 ulp; CUDA C++ Programming Guide, "Mathematical Functions").
#pragma once

#include <math.h>

#include "base/float_types.hpp"

namespace gpk::kernels::math {

#define GPK_MATH1(name)                                 \
    GPK_HD float name(float x) { return ::name##f(x); } \
    GPK_HD double name(double x) { return ::name(x); }
#define GPK_MATH2(name)                                             \
    GPK_HD float name(float x, float y) { return ::name##f(x, y); } \
    GPK_HD double name(double x, double y) { return ::name(x, y); }

GPK_MATH1(sqrt)
GPK_MATH1(cbrt)
GPK_MATH1(exp) GPK_MATH1(exp2) GPK_MATH1(expm1) GPK_MATH1(log) GPK_MATH1(log2) GPK_MATH1(log10)
    GPK_MATH1(log1p) GPK_MATH1(sin) GPK_MATH1(cos) GPK_MATH1(tan) GPK_MATH1(asin) GPK_MATH1(acos)
        GPK_MATH1(atan) GPK_MATH1(sinh) GPK_MATH1(cosh) GPK_MATH1(tanh) GPK_MATH1(asinh) GPK_MATH1(acosh)
            GPK_MATH1(atanh) GPK_MATH1(floor) GPK_MATH1(ceil) GPK_MATH1(trunc) GPK_MATH1(rint) GPK_MATH1(fabs)
                GPK_MATH1(erf) GPK_MATH1(erfc) GPK_MATH2(pow) GPK_MATH2(fmod) GPK_MATH2(atan2)
                    GPK_MATH2(hypot) GPK_MATH2(copysign)
#undef GPK_MATH1
#undef GPK_MATH2

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
