// What rope, kv_append and attention check alike.
#pragma once

#include "kernels/attention/rope.hpp"
#include "ops/attention.hpp"

namespace gpk::ops {

// [tokens, heads, d] of a model float, d even; else Error.
void require_heads(const char* call, const char* argument, const Array& x);
// Checks the frequencies against a head of d elements.
kernels::RopeTable rope_table(const char* call, const Rope& rope, std::int64_t d);
// keys and values: [kv_heads, capacity, d] of this dtype, the last axis without gaps.
void require_cache(const char* call, const Array& keys, const Array& values, std::int64_t d, DType dtype);

}  // namespace gpk::ops
