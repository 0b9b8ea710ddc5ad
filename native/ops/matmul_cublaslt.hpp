// Products by cuBLASLt, for who asks for it: backend="cublaslt". It is never needed.
#pragma once

#include <optional>

#include "array/array.hpp"
#include "driver/library_product.hpp"
#include "kernels/gemm/problem.hpp"
#include "ops/matmul.hpp"
#include "runtime/cost.hpp"

namespace gpk::ops {

// The problem's innermost batch dimension as the library is asked for it; nothing where a stride fits no
// leading dimension. `workspace` stays unset.
std::optional<LibraryProduct> library_product(const GemmProblem& p, DType dtype, MatmulPrecision precision);

// c = a b, all of one dtype, as batch + matrices. Operands whose strides the library does not know are copied
// first. Throws Error (type) for a dtype other than float16, bfloat16 and float32, and (unsupported) on a GPU
// without the library.
void matmul_cublaslt(const Array& a, const Array& b, const Array& c, MatmulPrecision precision,
                     const Cost& cost);

}  // namespace gpk::ops
