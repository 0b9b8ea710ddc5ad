// The host twin of kv_append, for the twins of kernels that append on their way.
#pragma once

#include "kernels/attention/kv_append.hpp"

namespace gpk::kernels {

template <class T, class Stored>
void kv_append_host(const KvAppendParams& p);

}  // namespace gpk::kernels
