#include "kernels/gemm/gemv_bulk.cuh"

namespace gpk::kernels {

GPK_GEMV_BULK_FLOAT16(GPK_GEMV_BULK_SYMBOL)
GPK_GEMV_QUANTIZED_FLOAT16(GPK_GEMV_BULK_QUANTIZED_SYMBOL)

}  // namespace gpk::kernels
