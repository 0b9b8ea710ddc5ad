// attention_decode: softmax(q k^T * scale) v of a few tokens over many keys, such as a cache whose length is
// in device memory. One sequence's keys are spread over many blocks, and the one of its last keys joins
// what all have (Dao et al. 2023, "Flash-Decoding"). The query heads that share a key/value head (Ainslie et
// al. 2023, arXiv:2305.13245) are worked on together, so that its keys are read once. The softmax is computed
// online in float32 (Milakov & Gimelshein 2018, arXiv:1805.02867).
//
// A kernel that appends first does what kv_append does for one token of each sequence, but leaves q as it
// was.
//
// Token i of sequence b stands at key positions[b] + i and sees the keys from its place - left to its place +
// right that there are. A token that sees none gives zeros.
#pragma once

#include <cstdint>
#include <span>

#include "base/dtype.hpp"
#include "base/float_types.hpp"
#include "kernels/attention/limits.hpp"
#include "kernels/attention/rope.hpp"
#include "runtime/kernel.hpp"

namespace gpk::kernels {

// In elements; the last axis has no gaps.
struct DecodeStrides {
    std::int64_t batch, head, token;  // of paged keys `batch` is from page to page
};

// Where a sequence's new key and value come from, [batch, kv_heads, d] with heads without gaps, and what is
// done to them and to q on the way: see kv_append.hpp.
struct DecodeAppend {
    const void* k = nullptr;  // null: they are in the cache
    const void* v = nullptr;
    const void* q_norm = nullptr;
    const void* k_norm = nullptr;
    RopeTable rope = {};
    float norm_eps = 0;
    std::int64_t k_batch_stride = 0, v_batch_stride = 0;  // elements
};

struct AttentionDecodeParams {
    const void* q = nullptr;       // [batch, tokens, heads, d]
    const void* keys = nullptr;    // [batch, kv_heads, capacity, d], or [pages, kv_heads, page_tokens, d]
    const void* values = nullptr;  // the same
    void* out = nullptr;           // [batch, tokens, heads, d]
    DecodeStrides q_at = {}, k_at = {}, v_at = {}, out_at = {};
    const std::int32_t* positions = nullptr;  // [batch]: of the first token; or null: `position` for all
    const std::int32_t* pages = nullptr;      // [batch, pages_of_sequence]: numbers of pages, or null
    // splits > 1: [batch, tokens, heads, splits, 2 + d] and 3 words, zero before and after: see
    // decode_split.cuh
    float* partial = nullptr;
    const float* slopes = nullptr;  // [heads]: slope * |key - place| is taken from the scores; or null
    float scale = 1;                // of the products; with float8 keys, their scale too
    float value_scale = 1;
    float soft_cap = 0;  // scores become cap * tanh(score / cap), after the scale; 0: they stay
    std::int32_t batch = 0, tokens = 0;
    std::int32_t heads = 0, kv_heads = 0;  // kv_heads divides heads
    std::int32_t d = 0;                    // at most kMaxHeadDim
    std::int32_t capacity = 0;             // keys that a sequence has room for
    std::int32_t position = 0;
    std::int32_t left = 0, right = 0;  // kDecodeUnbounded: all
    std::int32_t page_tokens = 1, pages_of_sequence = 0, page_count = 0;
    std::int32_t splits = 1;       // blocks that one sequence's keys may be spread over
    std::int32_t least_keys = 64;  // of a block, where there are more than one reads alone
    std::int32_t has_options = 0;  // soft_cap or slopes
    std::int32_t vectorized = 0;   // d, strides and addresses of keys and values suit accesses of 16 bytes
    // Of kernels with accesses of 16 bytes alone; with one token and no pages.
    DecodeAppend append = {};
};

inline constexpr std::int32_t kDecodeUnbounded = 1 << 29;
// So many keys one block reads alone, sooner than two could join what they found.
GPK_HD constexpr std::int32_t decode_alone(std::int32_t d) { return d <= 64 ? 256 : d <= 128 ? 192 : 128; }
inline constexpr int kDecodeMaxSplits = 64;

// Rows are the query heads of a key/value head for one token, then for the next. A block works on a tile of
// them: grid = (splits, kv_heads * tiles of rows, batch).
struct DecodeVariant {
    const Kernel* kernel;
    bool needs_16_bytes;  // accesses of 16 bytes (`vectorized`)
    int max_d, rows, threads, shared_bytes;
    int blocks_per_multiprocessor;
};
// For queries of this dtype over keys and values of the same or of float8_e4m3, best first for many rows; the
// last one takes any layout.
std::span<const DecodeVariant> attention_decode(DType dtype, DType stored);

// Plain: X(rows, suffix, T, suffix of Stored, Stored)
inline constexpr int kDecodeThreads = 128;
#define GPK_DECODE_PLAIN_OF(X, suffix, T) \
    X(1, suffix, T, , T)                  \
    X(4, suffix, T, , T)                  \
    X(1, suffix, T, _e4m3, ::gpk::float8_e4m3) X(4, suffix, T, _e4m3, ::gpk::float8_e4m3)
#define GPK_DECODE_PLAIN(X)                     \
    GPK_DECODE_PLAIN_OF(X, f32, float)          \
    GPK_DECODE_PLAIN_OF(X, f16, ::gpk::float16) \
    GPK_DECODE_PLAIN_OF(X, bf16, ::gpk::bfloat16)

// On tensor cores: X(suffix, T, suffix of Stored, Stored, max_d, rows, threads, blocks of a multiprocessor,
// times 16 keys that a warp has under way)
#define GPK_DECODE_MMA_OF(X, suffix, T)   \
    X(suffix, T, , T, 64, 8, 192, 2, 2)   \
    X(suffix, T, , T, 128, 8, 192, 2, 1)  \
    X(suffix, T, , T, 64, 8, 384, 1, 2)   \
    X(suffix, T, , T, 128, 16, 256, 1, 1) \
    X(suffix, T, , T, 128, 8, 384, 1, 1)  \
    X(suffix, T, , T, 256, 8, 256, 1, 1)
#define GPK_DECODE_FLOAT8_OF(X, suffix, T)                      \
    X(suffix, T, _e4m3, ::gpk::float8_e4m3, 64, 8, 384, 1, 2)   \
    X(suffix, T, _e4m3, ::gpk::float8_e4m3, 128, 16, 256, 1, 2) \
    X(suffix, T, _e4m3, ::gpk::float8_e4m3, 128, 8, 384, 1, 1)  \
    X(suffix, T, _e4m3, ::gpk::float8_e4m3, 256, 8, 256, 1, 1)
#define GPK_DECODE_MMA(X) \
    GPK_DECODE_MMA_OF(X, f16, ::gpk::float16) GPK_DECODE_MMA_OF(X, bf16, ::gpk::bfloat16)
#define GPK_DECODE_MMA_FLOAT8(X) \
    GPK_DECODE_FLOAT8_OF(X, f16, ::gpk::float16) GPK_DECODE_FLOAT8_OF(X, bf16, ::gpk::bfloat16)

// What a block of row tile `tile` works on, on both sides.
struct DecodeRows {
    std::int32_t position;     // of token 0
    std::int32_t first, last;  // token of the tile's first row and of its last
    std::int32_t begin, end;   // keys that any of them sees
    std::int32_t low_of_last, end_of_first;
};
// `position` is positions[batch], where there are any.
GPK_HD DecodeRows decode_rows(const AttentionDecodeParams& p, std::int32_t position, std::int32_t first_row,
                              std::int32_t rows) {
    const auto least = [](std::int32_t a, std::int32_t b) { return a < b ? a : b; };
    const auto most = [](std::int32_t a, std::int32_t b) { return a > b ? a : b; };
    const std::int32_t group = p.heads / p.kv_heads;
    DecodeRows r;
    r.position = p.positions == nullptr ? p.position : most(least(position, p.capacity - 1), 0);
    r.first = first_row / group;
    r.last = least((first_row + rows - 1) / group, p.tokens - 1);
    r.begin = most(r.position + r.first - p.left, 0);
    r.low_of_last = most(r.position + r.last - p.left, 0);
    r.end = least(r.position + r.last + p.right + 1, p.capacity);
    r.end_of_first = least(r.position + r.first + p.right + 1, p.capacity);
    return r;
}

}  // namespace gpk::kernels
