// The last step of a choice of tokens, on the device.
#pragma once

#include <cstdint>

#include "array/array.hpp"

namespace gpk::ops {

// For each row of logits, float32 [rows, vocab]: token[row] = the id of the largest of the first `count`, the
// lowest among equals, -1 where one is NaN or the largest is infinite; or drawn[row] (int32 [rows]) where
// that is given; position[row] += advance. Rows whose position is below 0 are left alone. token and position:
// int32 [rows]. `log`: [rows, log_size] in pinned host memory that outlives the work; log[row][position[row]]
// = token[row], where that is inside.
void next_token(const Array& logits, std::int64_t count, std::int64_t advance, const Array& token,
                const Array& position, std::int32_t* log = nullptr, std::int64_t log_size = 0,
                const Array* drawn = nullptr);

}  // namespace gpk::ops
