// Matrix products.
#pragma once

#include <optional>

#include "array/array.hpp"
#include "kernels/gemm/problem.hpp"

namespace gpk::ops {

enum class MatmulPrecision : std::uint8_t { exact, tf32 };
// Whose kernels: ours, or those of cuBLASLt, which a GPU needs installed.
enum class MatmulBackend : std::uint8_t { own, cublaslt };

// NumPy's matmul: the last two dimensions are matrices, those before broadcast; a 1-d operand is a row
// or column whose dimension is dropped. dtypes promote. float32 multiplies in float32 unless tf32 is
// asked for; float16 and bfloat16 accumulate in float32; integers wrap, bool is any-of-and.
// `out`, where given, has the result's shape and dtype and is written; it may be any view. `dtype`: as if
// both were converted to it first, so that float16 gives the float32 sums and int8 whole int32 ones; what
// they promote to must be safe to convert to it.
Array matmul(const Array& a, const Array& b, const Array* out = nullptr,
             MatmulBackend backend = MatmulBackend::own, std::optional<DType> dtype = std::nullopt);

// What follows a product, in the product's kernel where that can: activation(scale * product + bias) +
// residual.
struct LinearEpilogue {
    const Array* bias = nullptr;  // (n,)
    GemmActivation activation = GemmActivation::none;
    const Array* residual = nullptr;  // of the result's shape, or one that broadcasts to it
    float scale = 1;
};

// What else a product of a model's layer may be given.
struct LinearOptions {
    // (k,): the rows of x are normalised first, as rms_norm(x, norm, norm_eps) does.
    const Array* norm = nullptr;
    double norm_eps = 1e-6;
    // The weight was there before the work that comes before this on the stream, such as a model's is: it may
    // be read while that still runs.
    bool weight_settled = false;
};

// x @ weight.T and what follows: x (..., k), weight (n, k). What a layer of a model is. The result has the
// dtype that x and weight promote to, or `dtype`, which matmul() explains; bias and residual are converted to
// it.
Array linear(const Array& x, const Array& weight, const LinearEpilogue& epilogue = {},
             const Array* out = nullptr, std::optional<DType> dtype = std::nullopt,
             const LinearOptions& options = {});

// For the parameters of kernels; none where it does not fit x as it is.
GemmRowNorm norm_of(const Array& x, const Array& weight, double eps);

// The process's setting for float32 products: PYGPUKIT_ALLOW_TF32=1 makes tf32 the first value.
MatmulPrecision matmul_precision();
void set_matmul_precision(MatmulPrecision precision);

}  // namespace gpk::ops
