// Layout: how one flat index walks N operands of a common shape, each with its own strides.
#pragma once

#include <cstdint>

#include "base/float_types.hpp"

namespace gpk::kernels {

inline constexpr int kMaxAxes = 16;  // kMaxRank of base/dims.hpp, which is not for device code

// n / axis.extent, for n below 2^31.
template <class Axis>
GPK_HD std::uint32_t divide_by(std::uint32_t n, const Axis& axis) {
#ifdef __CUDA_ARCH__
    const std::uint32_t high = __umulhi(n, axis.magic);
#else
    const auto high = static_cast<std::uint32_t>((static_cast<std::uint64_t>(n) * axis.magic) >> 32);
#endif
    return (high + n) >> axis.shift;
}

template <int N>
struct Layout {
    struct Axis {
        std::int64_t extent;
        std::int64_t stride[N];  // in elements
        // extent as a divisor of 31-bit numbers: n / extent = (mulhi(n, magic) + n) >> shift
        // (Granlund and Montgomery 1994, figure 4.1).
        std::uint32_t magic;
        std::uint32_t shift;
    };

    std::int64_t count;   // the product of the extents
    std::int32_t rank;    // at least 1
    std::int32_t wide;    // count needs 64-bit index arithmetic
    Axis axis[kMaxAxes];  // the innermost first; those past rank are not initialised

    // The element offsets of flat index i.
    GPK_HD void offsets(std::int64_t i, std::int64_t (&offset)[N]) const {
        for (int k = 0; k < N; ++k) offset[k] = 0;
        if (wide) {
            for (int d = 0; d < rank - 1; ++d) {
                const std::int64_t rest = i / axis[d].extent;
                step(d, i - rest * axis[d].extent, offset);
                i = rest;
            }
            step(rank - 1, i, offset);
        } else {
            std::uint32_t n = static_cast<std::uint32_t>(i);
            for (int d = 0; d < rank - 1; ++d) {
                const std::uint32_t rest = divide_by(n, axis[d]);
                step(d, n - rest * static_cast<std::uint32_t>(axis[d].extent), offset);
                n = rest;
            }
            step(rank - 1, n, offset);
        }
    }

   private:
    GPK_HD void step(int d, std::int64_t index, std::int64_t (&offset)[N]) const {
        for (int k = 0; k < N; ++k) offset[k] += index * axis[d].stride[k];
    }
};

}  // namespace gpk::kernels
