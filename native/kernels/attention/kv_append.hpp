// kv_append: writes the keys and values of new tokens into a cache, at the position held in device
// memory. The keys, and the queries where given, are rotated on the way (see rope.hpp).
#pragma once

#include <cstdint>

#include "kernels/attention/rope.hpp"

namespace gpk::kernels {

// Heads follow one another without a gap in q, k and v. Tokens past the cache's end are dropped.
struct KvAppendParams {
    void* q;                       // [tokens, heads, d], rotated in place, or null
    const void* k;                 // [tokens, kv_heads, d]
    const void* v;                 // [tokens, kv_heads, d]
    void* keys;                    // [kv_heads, capacity, d]
    void* values;                  // [kv_heads, capacity, d]
    const std::int32_t* position;  // [1]: of the first token
    RopeTable rope;
    std::int64_t tokens;
    std::int64_t heads;  // 0 without q
    std::int64_t kv_heads;
    std::int64_t d;  // even
    std::int64_t capacity;
    std::int64_t q_stride, k_stride, v_stride;        // elements from token to token
    std::int64_t key_head_stride, value_head_stride;  // elements from head to head of the cache
};

const Kernel& kv_append(DType dtype);

}  // namespace gpk::kernels
