// Gated products, and products of rows sorted by expert: what feed-forward layers of language models are made
// of, dense ones and mixtures of experts.
//
// Gates and ups are one weight [2 n, k], gates first, as a checkpoint's two matrices are when one is loaded
// after the other, and as glu() has its input: one array can be quantised, moved and multiplied at once, and
// the kernels read a gate with its up by one tensor map.
#pragma once

#include <optional>

#include "array/array.hpp"
#include "kernels/activation/glu.hpp"  // GluOp
#include "ops/matmul.hpp"

namespace gpk::ops {

// f(x @ gate.T) * (x @ up.T): x (..., k), weight (2 n, k), float32, float16 or bfloat16 both; the result
// (..., n). One kernel on SM 90 for 16-bit types, with sums in float32; else each step rounds.
Array gated_linear(const Array& x, const Array& weight, GluOp op, const Array* out = nullptr,
                   const LinearOptions& options = {});

// Row r of expert e, which has the rows offsets[e] to offsets[e + 1]: x[r] @ weight[e].T, or with `gate` as
// gated_linear. x (rows, k), weight (experts, n, k) or (experts, 2 n, k), offsets (experts + 1) int32 that do
// not fall; they stay on the device. What rows hold that no expert has is not defined.
Array grouped_linear(const Array& x, const Array& weight, const Array& offsets,
                     std::optional<GluOp> gate = std::nullopt, const Array* out = nullptr);

}  // namespace gpk::ops
