// Turns a shape and the strides of several operands into the layout that a kernel walks.
#pragma once

#include <array>

#include "base/dims.hpp"
#include "kernels/elementwise/layout.hpp"
#include "kernels/elementwise/packs.hpp"

namespace gpk::ops {

// Extents of 1 go, and neighbouring axes merge where every operand allows it, so that contiguous
// operands become one axis. `strides[k]` has the shape's rank, 0 where operand k is broadcast.
template <int N>
kernels::Layout<N> collapse(const Dims& shape, const std::array<Dims, N>& strides);

// What x's strides are in a shape that it broadcasts to: 0 along the axes where its one element repeats.
Dims broadcast_strides(const Dims& from_shape, const Dims& from_strides, const Dims& shape);

// The layout of the axes but for a and b.
kernels::Layout<2> without_axes(const kernels::Layout<2>& layout, int a, int b);

// The same walk in packs of `elements` neighbours of a contiguous first operand; of the others, each is a run
// along the innermost axis too (`runs[k]` is set) or repeats one element along it. False where the layout, or
// an address of a run (`pointers`, of elements of item_bytes[k]), does not suit packs.
template <int K>
struct PackOperands {
    std::array<std::uint64_t, K> pointers;  // 0: of a number, which has none
    std::array<int, K> item_bytes;
    std::array<bool, K> runs;
};
template <int K>
bool in_packs(const kernels::Layout<K + 1>& layout, int elements, PackOperands<K>& operands,
              kernels::PackLayout<K>& packs);

// Takes 16, 8, 4 or 2 times larger units of copying, as far as the innermost axis and all addresses
// (`pointers`) and strides allow; returns the unit's size in bytes.
template <int N>
int widen(kernels::Layout<N>& layout, int element_bytes, const std::array<std::uint64_t, N>& pointers);

}  // namespace gpk::ops
