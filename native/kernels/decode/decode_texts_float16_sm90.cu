#include "kernels/decode/decode_texts.cuh"

namespace gpk::kernels {

GPK_DECODE_TEXTS_FLOAT16(GPK_DECODE_TEXTS_SYMBOL)

}  // namespace gpk::kernels
