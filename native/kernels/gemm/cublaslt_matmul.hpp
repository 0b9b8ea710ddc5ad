// cublaslt_matmul: a product by cuBLASLt. Its parameters are a LibraryProduct; it has no device code of ours.
#pragma once

#include "driver/library_product.hpp"
#include "runtime/kernel.hpp"

namespace gpk::kernels {

const Kernel& cublaslt_matmul();

}  // namespace gpk::kernels
