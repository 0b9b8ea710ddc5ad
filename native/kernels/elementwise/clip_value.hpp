// The arithmetic of clip, on both sides.
#pragma once

#include "kernels/elementwise/binary_functors.hpp"
#include "kernels/elementwise/clip.hpp"

namespace gpk::kernels {

template <class C>
struct Bounds {
    C low, high;
    bool has_low, has_high;

    GPK_HD explicit Bounds(const ClipBounds& p)
        : low(load<C>(p.dtype, &p.low_bits, 0)),
          high(load<C>(p.dtype, &p.high_bits, 0)),
          has_low(p.has_low),
          has_high(p.has_high) {}
    GPK_HD C apply(C x) const {
        if (has_low) x = binary_functors::maximum::apply(x, low);
        if (has_high) x = binary_functors::minimum::apply(x, high);
        return x;
    }
};

}  // namespace gpk::kernels
