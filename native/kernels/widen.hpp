// Many float16 or bfloat16 to float32, as vectors.
#pragma once

#include <cstdint>

#include "base/float_types.hpp"

namespace gpk::kernels {

// to[i] = from[i] * scale, for a scale that is a power of two.
void widen(const float16* from, float* to, std::int64_t count, float scale = 1);
void widen(const bfloat16* from, float* to, std::int64_t count, float scale = 1);

}  // namespace gpk::kernels
