#include "kernels/gemm/gemm_wgmma.cuh"

namespace gpk::kernels {

GPK_WGMMA_TF32(GPK_WGMMA_SYMBOL)

}  // namespace gpk::kernels
