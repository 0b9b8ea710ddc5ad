// SwiGLU's activation.
#pragma once

#include "array/array.hpp"

namespace gpk::ops {

// silu(gate) * up, element by element; gate and up: one shape, float32, float16 or bfloat16.
Array silu_mul(const Array& gate, const Array& up, const Array* out = nullptr);
// The same with both in one array [..., 2 n]: gate, then up.
Array silu_mul(const Array& gate_up, const Array* out = nullptr);

}  // namespace gpk::ops
