// A stored tensor -> an array on a device.
#pragma once

#include "array/array.hpp"
#include "io/tensor_view.hpp"

namespace gpk::io {

// A read-only array of `target` elements, on the calling thread's current stream. The file may be
// closed once this returns. `rows`, where given, reorders the first axis: row i of the result is row
// rows[i] of the tensor (a permutation, as GGUF's Llama files need for Q and K).
Array load_tensor(Device& device, const TensorView& tensor, DType target,
                  std::span<const std::int64_t> rows = {});

// The same into part of a larger array: `to` is contiguous and has the tensor's shape.
void load_into(const Array& to, const TensorView& tensor, std::span<const std::int64_t> rows = {});

}  // namespace gpk::io
