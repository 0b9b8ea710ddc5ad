// Products of more than a few rows with the codes of a quantised weight (SM 90).
#pragma once

#include "ops/quantize.hpp"

namespace gpk::ops {

// Whether gemm_codes can make it, and is quicker than a product with the dequantised weight.
bool prefers_gemm_codes(const Array& x, const QuantizedWeight& weight);

// out = x @ weight.T: x [m, k] of float16 or bfloat16 with rows that are contiguous, out [m, n] of x's dtype
// or float32, so too. shares: blocks that share k, at most 8; 0: as many as suit the device.
void gemm_codes(const Array& x, const QuantizedWeight& weight, const Array& out, int shares = 0);

}  // namespace gpk::ops
