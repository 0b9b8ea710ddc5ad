// Matrix products.
#pragma once

#include "array/array.hpp"

namespace gpk::ops {

enum class MatmulPrecision : std::uint8_t { exact, tf32 };
// Whose kernels: ours, or those of cuBLASLt, which a GPU needs installed.
enum class MatmulBackend : std::uint8_t { own, cublaslt };

// NumPy's matmul: the last two dimensions are matrices, those before broadcast; a 1-d operand is a row
// or column whose dimension is dropped. dtypes promote. float32 multiplies in float32 unless tf32 is
// asked for; float16 and bfloat16 accumulate in float32; integers wrap, bool is any-of-and.
// `out`, where given, has the result's shape and dtype and is written; it may be any view.
Array matmul(const Array& a, const Array& b, const Array* out = nullptr,
             MatmulBackend backend = MatmulBackend::own);

// x @ weight.T + bias: x (..., k), weight (n, k), bias (n,). What a layer of a model is.
Array linear(const Array& x, const Array& weight, const Array* bias = nullptr, const Array* out = nullptr);

// The process's setting for float32 products: PYGPUKIT_ALLOW_TF32=1 makes tf32 the first value.
MatmulPrecision matmul_precision();
void set_matmul_precision(MatmulPrecision precision);

}  // namespace gpk::ops
