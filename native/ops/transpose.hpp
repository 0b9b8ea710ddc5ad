// Copies whose innermost dimensions swap.
#pragma once

#include "array/array.hpp"
#include "kernels/elementwise/layout.hpp"

namespace gpk::ops {

// Launches the copy and returns true where the layout (to, from: in units of unit_bytes) is such a one.
bool copy_transposed(const kernels::Layout<2>& layout, int unit_bytes, const Array& to, const Array& from);

// Whether x is large and its memory runs across its innermost dimension: a copy first, in tiles, then costs
// less than reading it element by element.
bool runs_across(const Array& x);

}  // namespace gpk::ops
