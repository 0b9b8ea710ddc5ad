#include "kernels/attention/attention_decode_mma.cuh"

namespace gpk::kernels {

GPK_DECODE_MMA(GPK_DECODE_MMA_KERNEL)

}  // namespace gpk::kernels
