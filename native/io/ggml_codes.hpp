// The block formats of ggml as codes with scales and offsets, which loses nothing.
#pragma once

#include <optional>

#include "io/tensor_view.hpp"
#include "ops/quantize.hpp"

namespace gpk::io {

// A matrix (n, k) of blocks, as its codes; nothing for another tensor. An element is code * scale + offset,
// each as ggml has it: products of a block's numbers are exact in float32. The file must be open while it is
// read. `rows`, where given: row i is row rows[i] of the tensor.
std::optional<ops::CodedMatrix> coded_matrix(const TensorView& tensor, DType dtype,
                                             std::span<const std::int64_t> rows = {});

}  // namespace gpk::io
