// The parameters of kv_append, for the kernels that append on their way.
#pragma once

#include "kernels/attention/kv_append.hpp"
#include "ops/attention.hpp"

namespace gpk::ops {

// Checked as kv_append() does.
kernels::KvAppendParams kv_append_params(const Array& k, const Array& v, const Array& keys,
                                         const Array& values, const Array& positions,
                                         const KvAppendOptions& options);

}  // namespace gpk::ops
