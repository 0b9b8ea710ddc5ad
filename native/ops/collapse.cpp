#include "ops/collapse.hpp"

#include <bit>

namespace gpk::ops {

static_assert(kernels::kMaxAxes == kMaxRank);

namespace {

// The multiplier and shift for division by `extent` below 2^31; see Layout::Axis.
template <class Axis>
void set_divisor(Axis& axis) {
    const auto divisor = static_cast<std::uint64_t>(axis.extent);
    axis.shift = static_cast<std::uint32_t>(std::bit_width(divisor - 1));  // ceil(log2)
    axis.magic = static_cast<std::uint32_t>(
        (std::uint64_t{1} << 32) * ((std::uint64_t{1} << axis.shift) - divisor) / divisor + 1);
}

template <int N>
void finish(kernels::Layout<N>& layout) {
    layout.count = 1;
    for (int d = 0; d < layout.rank; ++d) layout.count *= layout.axis[d].extent;
    layout.wide = layout.count >= (std::int64_t{1} << 31);
    if (layout.wide || layout.count == 0) return;
    for (int d = 0; d < layout.rank; ++d) set_divisor(layout.axis[d]);
}

}  // namespace

template <int N>
kernels::Layout<N> collapse(const Dims& shape, const std::array<Dims, N>& strides) {
    kernels::Layout<N> layout;
    layout.rank = 0;
    for (int i = shape.size() - 1; i >= 0; --i) {
        if (shape[i] == 1) continue;
        bool merges = layout.rank > 0;
        if (merges) {
            const auto& inner = layout.axis[layout.rank - 1];
            for (int k = 0; k < N; ++k) merges &= strides[k][i] == inner.stride[k] * inner.extent;
        }
        if (merges) {
            layout.axis[layout.rank - 1].extent *= shape[i];
        } else {
            auto& axis = layout.axis[layout.rank++];
            axis.extent = shape[i];
            for (int k = 0; k < N; ++k) axis.stride[k] = strides[k][i];
        }
    }
    if (layout.rank == 0) {
        layout.rank = 1;
        layout.axis[0].extent = 1;
        for (int k = 0; k < N; ++k) layout.axis[0].stride[k] = 1;
    }
    finish(layout);
    return layout;
}

Dims broadcast_strides(const Dims& from_shape, const Dims& from_strides, const Dims& shape) {
    Dims strides = Dims::filled(shape.size(), 0);
    const int added = shape.size() - from_shape.size();
    for (int i = 0; i < from_shape.size(); ++i) strides[i + added] = from_shape[i] == 1 ? 0 : from_strides[i];
    return strides;
}

template <int N>
int widen(kernels::Layout<N>& layout, int element_bytes, const std::array<std::uint64_t, N>& pointers) {
    for (int factor = 16 / element_bytes; factor > 1; factor /= 2) {
        const auto unit_bytes = static_cast<std::uint64_t>(factor * element_bytes);
        bool fits = layout.axis[0].extent % factor == 0;
        for (int k = 0; k < N; ++k) {
            fits &= layout.axis[0].stride[k] == 1 && pointers[k] % unit_bytes == 0;
            for (int d = 1; d < layout.rank; ++d) fits &= layout.axis[d].stride[k] % factor == 0;
        }
        if (!fits) continue;
        layout.axis[0].extent /= factor;
        for (int d = 1; d < layout.rank; ++d) {
            for (int k = 0; k < N; ++k) layout.axis[d].stride[k] /= factor;
        }
        finish(layout);
        return factor * element_bytes;
    }
    return element_bytes;
}

template kernels::Layout<1> collapse<1>(const Dims&, const std::array<Dims, 1>&);
template kernels::Layout<2> collapse<2>(const Dims&, const std::array<Dims, 2>&);
template kernels::Layout<3> collapse<3>(const Dims&, const std::array<Dims, 3>&);
template kernels::Layout<4> collapse<4>(const Dims&, const std::array<Dims, 4>&);
template int widen<1>(kernels::Layout<1>&, int, const std::array<std::uint64_t, 1>&);
template int widen<2>(kernels::Layout<2>&, int, const std::array<std::uint64_t, 2>&);

}  // namespace gpk::ops
