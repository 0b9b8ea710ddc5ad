#include "kernels/gemm/gemm_grouped_wgmma.cuh"

namespace gpk::kernels {

GPK_GROUPED_BFLOAT16(GPK_GROUPED_SYMBOL)

}  // namespace gpk::kernels
