#include "kernels/decode/decode_texts.cuh"

namespace gpk::kernels {

GPK_DECODE_TEXTS_BFLOAT16(GPK_DECODE_TEXTS_SYMBOL)

}  // namespace gpk::kernels
