#include "kernels/gemm/gemm_codes.cuh"

namespace gpk::kernels {

GPK_GEMM_CODES_BFLOAT16(GPK_GEMM_CODES_SYMBOL)
GPK_ARRANGE_ROWS_SYMBOL(gpk::bfloat16, bfloat16)

}  // namespace gpk::kernels
