#include "kernels/gemm/gemv_bulk_quantized.cuh"

namespace gpk::kernels {

GPK_GEMV_QUANTIZED_BFLOAT16(GPK_GEMV_BULK_QUANTIZED_SYMBOL)

}  // namespace gpk::kernels
