// PackLayout: how the packs of a contiguous result (elements that move as one access) find theirs in K
// operands that broadcast to it. Less general than Layout, and shorter: it goes with every launch.
#pragma once

#include <cstdint>

#include "kernels/elementwise/layout.hpp"

namespace gpk::kernels {

inline constexpr int kPackAxes = 4;

template <int K>
struct PackLayout {
    struct Axis {
        std::uint32_t extent;  // in packs along the innermost; not set where there is one axis, of any length
        std::uint32_t magic, shift;  // as Layout::Axis
        std::int32_t stride[K];      // in packs of a run; in elements where one element is repeated in a pack
    };
    std::int32_t rank;     // at least 1
    Axis axis[kPackAxes];  // the innermost first; those past rank are not initialised

    // Where pack i of the result begins in each operand, in what its strides count.
    GPK_HD void offsets(std::int64_t i, std::int64_t (&at)[K]) const {
        if (rank == 1) {
            for (int k = 0; k < K; ++k) at[k] = i * axis[0].stride[k];
            return;
        }
        for (int k = 0; k < K; ++k) at[k] = 0;
        std::uint32_t n = static_cast<std::uint32_t>(i);
        for (int d = 0; d < kPackAxes; ++d) {
            const bool last = d == rank - 1;
            const std::uint32_t rest = last ? 0 : divide_by(n, axis[d]);
            const auto index = static_cast<std::int32_t>(n - rest * axis[d].extent);
            for (int k = 0; k < K; ++k) at[k] += static_cast<std::int64_t>(index) * axis[d].stride[k];
            if (last) return;
            n = rest;
        }
    }
};

// The layout of operands that are runs of one axis.
template <int K>
PackLayout<K> one_run() {
    PackLayout<K> layout;
    layout.rank = 1;
    layout.axis[0].extent = layout.axis[0].magic = layout.axis[0].shift = 0;
    for (auto& stride : layout.axis[0].stride) stride = 1;
    return layout;
}

}  // namespace gpk::kernels
