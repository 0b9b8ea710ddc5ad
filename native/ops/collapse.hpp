// Turns a shape and the strides of several operands into the layout that a kernel walks.
#pragma once

#include <array>

#include "base/dims.hpp"
#include "kernels/elementwise/layout.hpp"

namespace gpk::ops {

// Extents of 1 go, and neighbouring axes merge where every operand allows it, so that contiguous
// operands become one axis. `strides[k]` has the shape's rank, 0 where operand k is broadcast.
template <int N>
kernels::Layout<N> collapse(const Dims& shape, const std::array<Dims, N>& strides);

// What x's strides are in a shape that it broadcasts to: 0 along the axes where its one element repeats.
Dims broadcast_strides(const Dims& from_shape, const Dims& from_strides, const Dims& shape);

// Takes 16, 8, 4 or 2 times larger units of copying, as far as the innermost axis and all addresses
// (`pointers`) and strides allow; returns the unit's size in bytes.
template <int N>
int widen(kernels::Layout<N>& layout, int element_bytes, const std::array<std::uint64_t, N>& pointers);

}  // namespace gpk::ops
