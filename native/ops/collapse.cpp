#include "ops/collapse.hpp"

#include <bit>

namespace gpk::ops {

static_assert(kernels::kMaxAxes == kMaxRank);

namespace {

// The multiplier and shift for division by `extent` below 2^31; see Layout::Axis.
template <class Axis>
void set_divisor(Axis& axis) {
    const auto divisor = static_cast<std::uint64_t>(axis.extent);          // at least 1
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

kernels::Layout<2> without_axes(const kernels::Layout<2>& layout, int a, int b) {
    kernels::Layout<2> rest;
    rest.rank = 0;
    for (int d = 0; d < layout.rank; ++d) {
        if (d != a && d != b) rest.axis[rest.rank++] = layout.axis[d];
    }
    if (rest.rank == 0) {
        rest.rank = 1;
        rest.axis[0].extent = 1;
        rest.axis[0].stride[0] = rest.axis[0].stride[1] = 0;
    }
    finish(rest);
    return rest;
}

template <int K>
bool in_packs(const kernels::Layout<K + 1>& layout, int elements, PackOperands<K>& operands,
              kernels::PackLayout<K>& packs) {
    if (layout.rank > kernels::kPackAxes || layout.count == 0) return false;
    const bool one_axis = layout.rank == 1;
    if (!one_axis && (layout.axis[0].extent % elements != 0 || layout.count / elements > INT32_MAX))
        return false;
    std::int64_t run = 1;  // of the contiguous result
    for (int d = 0; d < layout.rank; run *= layout.axis[d++].extent) {
        if (layout.axis[d].stride[0] != run) return false;
    }
    packs.rank = layout.rank;
    for (int d = 0; d < layout.rank; ++d) {
        const std::int64_t extent = layout.axis[d].extent / (d == 0 && !one_axis ? elements : 1);
        packs.axis[d].extent = one_axis ? 0 : static_cast<std::uint32_t>(extent);
        if (!one_axis) set_divisor(packs.axis[d]);
    }
    for (int k = 0; k < K; ++k) {
        const std::int64_t inner = layout.axis[0].stride[k + 1];
        operands.runs[k] = inner == 1 && operands.pointers[k] != 0;
        if (inner != 0 && inner != 1) return false;
        const bool is_run = operands.runs[k];
        if (is_run &&
            operands.pointers[k] % static_cast<std::uint64_t>(elements * operands.item_bytes[k]) != 0) {
            return false;
        }
        for (int d = 0; d < layout.rank; ++d) {
            std::int64_t stride = layout.axis[d].stride[k + 1];
            if (is_run && d > 0) {
                if (stride % elements != 0) return false;
                stride /= elements;
            }
            if (stride < INT32_MIN || stride > INT32_MAX) return false;
            packs.axis[d].stride[k] = static_cast<std::int32_t>(stride);
        }
    }
    return true;
}

template bool in_packs<2>(const kernels::Layout<3>&, int, PackOperands<2>&, kernels::PackLayout<2>&);
template bool in_packs<3>(const kernels::Layout<4>&, int, PackOperands<3>&, kernels::PackLayout<3>&);
template kernels::Layout<1> collapse<1>(const Dims&, const std::array<Dims, 1>&);
template kernels::Layout<2> collapse<2>(const Dims&, const std::array<Dims, 2>&);
template kernels::Layout<3> collapse<3>(const Dims&, const std::array<Dims, 3>&);
template kernels::Layout<4> collapse<4>(const Dims&, const std::array<Dims, 4>&);
template int widen<1>(kernels::Layout<1>&, int, const std::array<std::uint64_t, 1>&);
template int widen<2>(kernels::Layout<2>&, int, const std::array<std::uint64_t, 2>&);

}  // namespace gpk::ops
