#include "kernels/decode/decode_step.cuh"

namespace gpk::kernels {

GPK_DECODE_STEP_BFLOAT16(GPK_DECODE_STEP_SYMBOL)

}  // namespace gpk::kernels
