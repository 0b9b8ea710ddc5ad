#include "kernels/decode/decode_codes.cuh"

namespace gpk::kernels {

GPK_DECODE_CODES_BFLOAT16(GPK_DECODE_CODES_SYMBOL)

}  // namespace gpk::kernels
