#include "kernels/gemm/gemv_bulk.cuh"

namespace gpk::kernels {

GPK_GEMV_BULK_BFLOAT16(GPK_GEMV_BULK_SYMBOL)

}  // namespace gpk::kernels
