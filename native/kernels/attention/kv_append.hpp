// kv_append: writes the keys and values of new tokens into a cache, at the positions held in device memory.
// On the way the keys, and the queries where given, are normalised head by head (RMSNorm) where the model
// does so, and rotated (see rope.hpp).
#pragma once

#include <cstdint>

#include "kernels/attention/rope.hpp"

namespace gpk::kernels {

// Heads follow one another without a gap in q, k and v. Tokens past a cache's end are dropped.
struct KvAppendParams {
    void* q;                        // [batch, tokens, heads, d], changed in place, or null
    const void* k;                  // [batch, tokens, kv_heads, d]
    const void* v;                  // [batch, tokens, kv_heads, d]
    void* keys;                     // [batch, kv_heads, capacity, d]
    void* values;                   // [batch, kv_heads, capacity, d]
    const std::int32_t* positions;  // [batch]: of each sequence's first token
    const void* q_norm;             // [d]: weights of the norm of each head of q, or null for none
    const void* k_norm;
    RopeTable rope;
    std::int64_t batch;
    std::int64_t tokens;
    std::int64_t capacity;
    std::int32_t heads;  // 0 without q
    std::int32_t kv_heads;
    std::int32_t d;  // even, at most kMaxAppendDim
    float norm_eps;
    std::int64_t q_token_stride, k_token_stride, v_token_stride;  // elements
    std::int64_t q_batch_stride, k_batch_stride, v_batch_stride;
    std::int64_t key_head_stride, value_head_stride;  // from head to head of a cache
    std::int64_t key_batch_stride, value_batch_stride;
};

inline constexpr int kMaxAppendDim = 256;
inline constexpr int kAppendWarps = 4;  // of a block; each takes a token's heads by turns

const Kernel& kv_append(DType dtype);

}  // namespace gpk::kernels
