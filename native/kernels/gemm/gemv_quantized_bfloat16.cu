#include "kernels/gemm/gemv_quantized.cuh"

namespace gpk::kernels {

GPK_GEMV_QUANTIZED_BFLOAT16(GPK_GEMV_QUANTIZED_SYMBOL)

}  // namespace gpk::kernels
