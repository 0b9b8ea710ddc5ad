#include "kernels/attention/attention_decode_mma.cuh"

namespace gpk::kernels {

GPK_DECODE_MMA_FLOAT8(GPK_DECODE_MMA_KERNEL)

}  // namespace gpk::kernels
