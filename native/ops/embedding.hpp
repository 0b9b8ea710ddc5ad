// Token embedding.
#pragma once

#include "array/array.hpp"

namespace gpk::ops {

// Rows of table [rows, n] by ids (int32 or int64, any shape): ids.shape + (n,).
// An id outside the table cannot raise without a wait, so it gives zeros on both devices.
Array embedding(const Array& table, const Array& ids, const Array* out = nullptr);

}  // namespace gpk::ops
