// Normalisation along the last or any axis.
#pragma once

#include "array/array.hpp"

namespace gpk::ops {

// y = x / sqrt(mean(x^2) + eps) * weight over the last axis. x: [..., n], weight: [n], both float32,
// float16 or bfloat16. With `residual` (x's shape, contiguous), x + residual takes the place of x and
// is written back to `residual`. `out` may be x.
Array rms_norm(const Array& x, const Array& weight, double eps, const Array* residual = nullptr,
               const Array* out = nullptr);

// exp(x - max) / sum(exp(x - max)) along one axis of a float32, float16 or bfloat16 array.
Array softmax(const Array& x, int axis);

}  // namespace gpk::ops
