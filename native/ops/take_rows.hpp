// What take and embedding launch.
#pragma once

#include "array/array.hpp"

namespace gpk::ops {

// out[o, j, ...] = x[o, indices[j], ...] for x seen as [outer, extent, rest of row_bytes]; all contiguous. An
// index out of range gives zeros; `wraps`: a negative one counts from the end.
void take_rows(const Array& out, const Array& x, const Array& indices, std::int64_t outer,
               std::int64_t extent, std::int64_t row_bytes, bool wraps);

}  // namespace gpk::ops
