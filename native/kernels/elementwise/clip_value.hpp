// The arithmetic of clip, on both sides.
#pragma once

#include "kernels/elementwise/binary_functors.hpp"
#include "kernels/elementwise/clip.hpp"

namespace gpk::kernels {

template <class C>
struct Bounds {
    C low, high;

    GPK_HD explicit Bounds(const ClipParams& p)
        : low(load<C>(p.dtype, &p.low_bits, 0)), high(load<C>(p.dtype, &p.high_bits, 0)) {}
    GPK_HD C apply(const ClipParams& p, C x) const {
        if (p.has_low) x = binary_functors::maximum::apply(x, low);
        if (p.has_high) x = binary_functors::minimum::apply(x, high);
        return x;
    }
};

}  // namespace gpk::kernels
