// Elements as they are stored -> elements of a dtype, on the host, over all cores.
//
// Floating types and block formats convert to every floating dtype, by way of float32 (one rounding
// for a 16- or 8-bit target). Integers and bools come only as themselves.
#pragma once

#include <vector>

#include "io/tensor_view.hpp"

namespace gpk::io {

// Throws Error (type), naming the tensor, where convert() cannot give `target`.
void check_convertible(const TensorView& tensor, DType target);

// Elements [first, first + count) in row-major order. `out` has room for exactly these; first and
// count are whole blocks.
void convert(const TensorView& tensor, std::int64_t first, std::int64_t count, DType target,
             std::span<std::byte> out);

std::vector<float> read_float32(const TensorView& tensor);

}  // namespace gpk::io
