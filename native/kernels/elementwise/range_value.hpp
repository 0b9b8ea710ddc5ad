// The arithmetic of ranges, on both sides.
#pragma once

#include "kernels/elementwise/math.hpp"
#include "kernels/elementwise/range.hpp"

namespace gpk::kernels {

GPK_HD void write_range(const RangeParams& p, std::int64_t i) {
#ifdef __CUDA_ARCH__
    double value = __dadd_rn(p.start, __dmul_rn(static_cast<double>(i), p.step));  // never one fma
#else
    const volatile double product = static_cast<double>(i) * p.step;
    double value = p.start + product;
#endif
    if (p.has_last && i == p.count - 1) value = p.last;
    store<double>(p.dtype, p.out, i, p.floor ? math::floor(value) : value);
}

GPK_HD void write_range(const IntegerRangeParams& p, std::int64_t i) {
    const std::uint64_t value = static_cast<std::uint64_t>(p.start) +
                                static_cast<std::uint64_t>(i) * static_cast<std::uint64_t>(p.step);
    if (p.dtype == DType::uint64) {
        store<std::uint64_t>(p.dtype, p.out, i, value);
    } else {
        store<std::int64_t>(p.dtype, p.out, i, static_cast<std::int64_t>(value));
    }
}

}  // namespace gpk::kernels
