// Normalisation along the last or any axis.
#pragma once

#include "array/array.hpp"

namespace gpk::ops {

// Both normalise the last axis of x: [..., n], float32, float16 or bfloat16. weight, bias: [n], of x's dtype,
// or not defined for ones and zeros. With `residual` (x's shape), x + residual takes the place of x and is
// written to `sum`, or, where that is null, back to `residual`; what is written is contiguous. `out` may be
// x.

// y = x / sqrt(mean(x^2) + eps) * weight.
Array rms_norm(const Array& x, const Array& weight, double eps, const Array* residual = nullptr,
               const Array* out = nullptr, const Array* sum = nullptr);
// y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias.
Array layer_norm(const Array& x, const Array& weight, const Array& bias, double eps,
                 const Array* residual = nullptr, const Array* out = nullptr, const Array* sum = nullptr);

// exp(x - max) / sum(exp(x - max)) along one axis of a float32, float16 or bfloat16 array.
Array softmax(const Array& x, int axis);

}  // namespace gpk::ops
