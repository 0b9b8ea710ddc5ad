// kv_append: writes the keys and values of new tokens into a cache, at the positions held in device memory.
// On the way the keys, and the queries where given, are normalised head by head (RMSNorm) where the model
// does so, and rotated (see rope.hpp). A cache of float8_e4m3 takes the nearest of its numbers.
#pragma once

#include <cstdint>

#include "base/float_types.hpp"
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

// X(suffix, T, suffix of the cache, its type): the caches of T, then those of float8_e4m3.
#define GPK_KV_APPEND(X)                              \
    X(f32, float, , float)                            \
    X(f16, ::gpk::float16, , ::gpk::float16)          \
    X(bf16, ::gpk::bfloat16, , ::gpk::bfloat16)       \
    X(f32, float, _e4m3, ::gpk::float8_e4m3)          \
    X(f16, ::gpk::float16, _e4m3, ::gpk::float8_e4m3) \
    X(bf16, ::gpk::bfloat16, _e4m3, ::gpk::float8_e4m3)

// As a cache holds it. The largest float8_e4m3 stands for what is larger, which would be no number else.
template <class Stored>
GPK_HD Stored to_cache(float x) {
    return Stored(x);
}
template <>
GPK_HD float8_e4m3 to_cache<float8_e4m3>(float x) {
    constexpr float kLargest = 448;
    return float8_e4m3(x > kLargest ? kLargest : x < -kLargest ? -kLargest : x);
}

const Kernel& kv_append(DType dtype, DType cache);

}  // namespace gpk::kernels
