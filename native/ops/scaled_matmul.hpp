// Products of float8 matrices with their scales.
#pragma once

#include "array/array.hpp"

namespace gpk::ops {

// (a * scale_a) @ (b * scale_b), rounded once to `dtype` (bfloat16, float16 or float32). a is (m, k) and b
// (k, n), both float8_e4m3 or both float8_e5m2; the scales are float32 and cover, both the same way:
//   all of an operand         a: ()                         b: ()
//   a row, a column           a: (m, 1)                     b: (1, n)
//   blocks of 128             a: (m, ceil(k / 128))         b: (ceil(k / 128), ceil(n / 128))
// Of the first two either may go with the other. Quickest on SM 90, where b is contiguous along k (the
// transpose of a weight) and k is a multiple of 16: the sums of a block of k are then added up in float32,
// those of the first two ways by the tensor cores, which keep 14 bits of each addition. Elsewhere in float32.
Array scaled_matmul(const Array& a, const Array& b, const Array& scale_a, const Array& scale_b, DType dtype,
                    const Array* out = nullptr);

}  // namespace gpk::ops
