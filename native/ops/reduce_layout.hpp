// How a reduction is laid out: which dimensions go, and how threads share the elements.
#pragma once

#include <array>

#include "array/array.hpp"
#include "kernels/reduce/layout.hpp"
#include "runtime/stream.hpp"

namespace gpk::ops {

using ReducedAxes = std::array<bool, kMaxRank>;  // which of the axes go

// `axes` empty: all. Throws Error (value), naming `call`, for axes that are not there or come twice.
ReducedAxes reduced_axes(const char* call, const Dims& axes, int rank);

Dims result_shape(const Array& x, const ReducedAxes& reduced, bool keepdims);

// Where the order of the reduced elements is free, they are taken in the order of memory.
ReduceLayout dimensions_of(const Array& x, const ReducedAxes& reduced, bool free_order);

// A power of two, at most `limit` (itself one).
int power_of_two(std::int64_t at_least, int limit);

// Which elements a thread takes at a time, of `vector` elements in 16 bytes.
ReduceWalk walk_of(const ReduceLayout& layout, DevicePtr input, std::int64_t vector);

// How threads share the work: see ReduceLayout. `may_split`: into parts that a second pass joins.
void share(ReduceLayout& layout, ReduceWalk walk, std::int64_t vector, const Stream& stream, bool may_split);

// The second pass over the parts * outputs values that a first one left.
ReduceLayout over_parts(const ReduceLayout& first);

std::int64_t vector_elements(DType dtype);

LaunchConfig config_of(const ReduceLayout& layout, std::int64_t vector);

}  // namespace gpk::ops
