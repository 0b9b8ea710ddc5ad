#include "kernels/gemm/gemm_grouped_wgmma.cuh"

namespace gpk::kernels {

GPK_GROUPED_FLOAT16(GPK_GROUPED_SYMBOL)

}  // namespace gpk::kernels
