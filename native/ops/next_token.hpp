// The greedy choice of a token, on the device.
#pragma once

#include <cstdint>
#include <span>

#include "array/array.hpp"

namespace gpk::ops {

// token[0] = the id of the largest of the first `count` logits (float32 [vocab], contiguous), the lowest
// among equals; position[0] += advance. token and position: int32 [1]. `log`: pinned host memory that
// outlives the work; log[position[0]] = token[0], where that is inside.
void next_token(const Array& logits, std::int64_t count, std::int64_t advance, const Array& token,
                const Array& position, std::span<std::int32_t> log = {});

}  // namespace gpk::ops
