// Ops that rearrange elements.
#pragma once

#include <vector>

#include "array/array.hpp"

namespace gpk::ops {

// A view where the strides allow it, else a contiguous copy.
Array reshape(const Array& x, const Dims& shape);
// All of one rank, equal but along axis; dtypes promote.
Array concat(const std::vector<Array>& arrays, int axis);
Array stack(const std::vector<Array>& arrays, int axis);
// Elements of x along axis at `indices` (any integer dtype, any shape): result shape
// x.shape[:axis] + indices.shape + x.shape[axis+1:]. Negative indices count from the end; an index out
// of range cannot raise without a wait, so it gives zero on both devices.
Array take(const Array& x, const Array& indices, int axis);

}  // namespace gpk::ops
