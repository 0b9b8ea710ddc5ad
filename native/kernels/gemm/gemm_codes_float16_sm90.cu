#include "kernels/gemm/gemm_codes.cuh"

namespace gpk::kernels {

GPK_GEMM_CODES_FLOAT16(GPK_GEMM_CODES_SYMBOL)
GPK_ARRANGE_ROWS_SYMBOL(gpk::float16, float16)

}  // namespace gpk::kernels
