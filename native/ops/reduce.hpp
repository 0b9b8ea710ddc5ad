// Reductions over any axes.
#pragma once

#include "array/array.hpp"
#include "kernels/reduce/arg_reduce.hpp"  // ArgReduceOp
#include "kernels/reduce/reduce.hpp"      // ReduceOp

namespace gpk::ops {

// `axes` empty: all axes. Result dtypes are NumPy's (sum and prod of small integers widen to 64 bits;
// mean of integers is float64; float16 and bfloat16 accumulate in float32). sum, prod, any and all of
// nothing give their identity, mean of nothing NaN; max and min of nothing throw Error (value).
Array reduce(ReduceOp op, const Array& x, const Dims& axes, bool keepdims);
// The mean of the squares of the differences from the mean, but over the count less `correction` (where that
// is below 0: over 0), or its root. float64 of integers and bools; float16 and bfloat16 compute in float32.
Array variance(const Array& x, const Dims& axes, double correction, bool keepdims, bool root);
// int64 index of the first largest (smallest) along one axis, or in the flattened array where `axis`
// is kAllAxes. A NaN counts as the largest and as the smallest, as in NumPy.
inline constexpr int kAllAxes = -(1 << 20);
Array arg_reduce(ArgReduceOp op, const Array& x, int axis, bool keepdims);

}  // namespace gpk::ops
