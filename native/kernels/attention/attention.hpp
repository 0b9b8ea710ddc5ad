// attention: causal softmax(q k^T * scale) v over a key/value cache whose length is in device memory.
// Several query heads may share one key/value head (grouped queries; Ainslie et al. 2023,
// arXiv:2305.13245). The softmax is computed online in float32 (Milakov & Gimelshein 2018,
// arXiv:1805.02867; Dao et al. 2022, arXiv:2205.14135).
//
// Token i of the call stands at *position + i and sees the keys 0 .. *position + i.
//
// Two device kernels: attention_decode for a few tokens (attention_decode.cu), which spreads one
// query's keys over many blocks, and attention_prefill for many (attention_prefill.cu), where one
// block's keys serve a tile of queries.
#pragma once

#include <cstdint>

#include "base/dtype.hpp"
#include "runtime/kernel.hpp"

namespace gpk::kernels {

struct AttentionParams {
    const void* q;                 // [tokens, heads, d]
    const void* keys;              // [kv_heads, capacity, d]
    const void* values;            // [kv_heads, capacity, d]
    void* out;                     // [tokens, heads, d], without gaps
    const std::int32_t* position;  // [1]: of the first token
    float* partial;                // decode, splits > 1: [tokens, heads, splits, d + 2]
    std::uint32_t* counters;       // decode, splits > 1: [tokens * head tiles], zero before and after
    std::int64_t q_token_stride, q_head_stride;  // in elements
    std::int64_t key_head_stride, key_stride;    // from key to key; the last axis has no gaps
    std::int64_t value_head_stride, value_stride;
    std::int32_t tokens;
    std::int32_t heads;
    std::int32_t kv_heads;  // divides heads
    std::int32_t d;         // even, at most kMaxHeadDim
    std::int32_t capacity;
    std::int32_t splits;      // decode: blocks that one query's keys may be spread over
    std::int32_t vectorized;  // d, strides and addresses of keys and values suit accesses of 16 bytes
    float scale;
    // prefill: a launch makes the tokens first_token .. tokens - 1, of which the first begins a tile.
    std::int32_t first_token;
};

inline constexpr int kMaxHeadDim = 256;

// attention_decode: a block has this many threads and works on up to `head_tile` query heads of one
// key/value head. grid = (splits, kv_heads * tiles of its query heads, tokens).
inline constexpr int kDecodeThreads = 128;
inline constexpr int kDecodeMinKeys = 64;  // fewest keys worth a block of their own
inline constexpr int kDecodeHeadTiles[] = {1, 4};
// X(head tile)
#define GPK_DECODE_HEAD_TILES(X, ...) X(1, __VA_ARGS__) X(4, __VA_ARGS__)

// attention_prefill: one variant for each largest head_dim. A block works on 16 * rows queries of one
// head, 32 keys at a time. grid = (heads, tiles of tokens, from first_token on).
struct PrefillVariant {
    int max_d;
    int rows;  // queries of a thread
    constexpr int query_tile() const { return 16 * rows; }
    constexpr int shared_bytes() const {
        return ((query_tile() + kKeyTile) * (max_d + 4) + query_tile() * (kKeyTile + 4)) * 4;
    }
    static constexpr int kThreads = 128;
    static constexpr int kKeyTile = 32;
};
inline constexpr PrefillVariant kPrefillVariants[] = {{64, 4}, {128, 4}, {256, 2}};
// X(max_d, rows), in the order of kPrefillVariants
#define GPK_PREFILL_VARIANTS(X, ...) X(64, 4, __VA_ARGS__) X(128, 4, __VA_ARGS__) X(256, 2, __VA_ARGS__)

const Kernel& attention_decode(DType dtype, int head_tile);
const Kernel& attention_prefill(DType dtype, int variant);  // an index into kPrefillVariants

}  // namespace gpk::kernels
