// Gated linear units.
#pragma once

#include "array/array.hpp"
#include "kernels/activation/glu.hpp"  // GluOp

namespace gpk::ops {

// f(gate) * up, element by element, with f by the op; gate and up: one shape, float32, float16 or bfloat16.
Array glu(GluOp op, const Array& gate, const Array& up, const Array* out = nullptr);
// The same with both in one array [..., 2 n]: gate, then up.
Array glu(GluOp op, const Array& gate_up, const Array* out = nullptr);

}  // namespace gpk::ops
