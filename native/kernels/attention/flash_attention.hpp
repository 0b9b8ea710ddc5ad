// flash_attention: softmax(q k^T * scale) v for many query tokens, where one block's keys serve a tile of
// queries and the scores never leave the block (Dao et al. 2022, arXiv:2205.14135; Milakov & Gimelshein
// 2018, arXiv:1805.02867). Several query heads may share one key/value head (Ainslie et al. 2023,
// arXiv:2305.13245).
//
// Query i of a sequence stands at key i + shift, where shift is of `positions`, or what lets the last query
// stand at the last key. It sees the keys from its place - left to its place + right that there are. A query
// that sees none gives zeros.
//
// Queries, keys and values may be float8_e4m3 with a scale for each head, with 16-bit results.
#pragma once

#include <cstdint>
#include <span>

#include "base/dtype.hpp"
#include "base/float_types.hpp"
#include "driver/driver.hpp"
#include "kernels/attention/limits.hpp"
#include "runtime/kernel.hpp"

namespace gpk::kernels {

// In elements; the last axis has no gaps.
struct AttentionStrides {
    std::int64_t batch, head, token;
};

// float32, of each batch and head, with strides in elements; or null, which is 1.
struct AttentionScales {
    const float* each = nullptr;
    std::int64_t batch = 0, head = 0;
};

enum class MaskKind : std::int32_t { none, boolean, element, float32 };

inline constexpr std::int32_t kUnbounded = 1 << 30;

struct FlashAttentionParams {
    // Of q, k and v; variants for SM 90 copy by them. With float8 the last is of transpose_values' result.
    TensorMap q_map = {}, k_map = {}, v_map = {};
    const void* q = nullptr;  // [batch, heads, tokens, d]
    const void* k = nullptr;  // [batch, kv_heads, keys, d], or with `pages` [pages, kv_heads, page_tokens, d]
    const void* v = nullptr;  // the same
    void* out = nullptr;      // [batch, heads, tokens, d]
    AttentionStrides q_at = {}, k_at = {}, v_at = {}, out_at = {};
    AttentionScales q_scales = {}, k_scales = {}, v_scales = {};  // positive
    // [batch]: place of each sequence's first query among its keys, or null
    const std::int32_t* positions = nullptr;
    // [batch, pages_of_sequence]: which page has each page_tokens keys of a sequence; not trusted; or null.
    const std::int32_t* pages = nullptr;
    // [batch + 1]: sequence i is the tokens q_starts[i] .. q_starts[i + 1] - 1 of the arrays' only batch, and
    // the same of the keys; or null.
    const std::int32_t *q_starts = nullptr, *k_starts = nullptr;
    std::uint32_t* next_tile =
        nullptr;                 // [1], zero before and after: SM 90's blocks take tiles from it; or null
    const void* mask = nullptr;  // added to the scaled scores; a boolean one says what is seen; or null
    const float* slopes =
        nullptr;  // [heads]: slope * |key - place| is taken from them (Press et al. 2021); or null
    std::int64_t mask_batch = 0, mask_head = 0,
                 mask_query = 0;  // strides in elements; keys follow one another
    MaskKind mask_kind = MaskKind::none;
    std::int32_t batch = 0, heads = 0, kv_heads = 0, d = 0;
    std::int32_t tokens = 0,
                 keys = 0;  // the most of a sequence; with `positions` keys is the cache's capacity
    std::int32_t q_total = 0, k_total = 0;  // with q_starts and k_starts: of all sequences
    std::int32_t page_tokens = 0, pages_of_sequence = 0, page_count = 0;
    std::int32_t box_keys = 0;  // that one copy by a tensor map brings
    std::int32_t left = kUnbounded,
                 right = kUnbounded;   // keys seen before and after a query's own place; kUnbounded: all
    float scale = 1, value_scale = 1;  // of the products; of the results
    float soft_cap = 0;                // scores become cap * tanh(score / cap), after the scale; 0: they stay
    // A launch makes the tiles first_tile .. end_tile - 1 in the order of flash_tile().
    std::int32_t tile_rows = 0;  // queries of a tile
    std::int32_t tiles = 0;      // of a head
    std::int32_t heads_together =
        1;  // that go side by side, so that their keys and values are in the L2 cache
    std::int32_t first_tile = 0, end_tile = 0;
    std::int32_t out_float16 = 0;  // of float8: results are float16, else bfloat16
    std::int32_t vectorized = 0;   // d, strides and addresses of keys and values suit accesses of 16 bytes
};

// What a tile works on.
struct FlashTile {
    std::int32_t batch, head;  // of the arrays: the batch is 0 where sequences are packed
    std::int32_t sequence;
    std::int32_t first_row, rows;   // of the sequence's queries; rows may be none
    std::int32_t q_start, k_start;  // where the sequence begins
    std::int32_t shift, length;     // place of query 0, number of keys
    // Keys that any of the tile's queries sees: begin .. end - 1.
    std::int32_t begin, end;
};

GPK_HD std::int32_t least(std::int32_t a, std::int32_t b) { return a < b ? a : b; }
GPK_HD std::int32_t most(std::int32_t a, std::int32_t b) { return a > b ? a : b; }
GPK_HD std::int32_t between(std::int32_t x, std::int32_t low, std::int32_t high) {
    return most(low, least(x, high));
}

// Heads go in groups; in a group the last tiles, which see the most keys of a causal mask, come first.
GPK_HD FlashTile flash_tile(const FlashAttentionParams& p, std::int32_t index) {
    const std::int32_t group_tiles = p.heads_together * p.tiles, group = index / group_tiles;
    const std::int32_t rest = index - group * group_tiles, first_head = group * p.heads_together;
    const std::int32_t width = least(p.heads_together, p.batch * p.heads - first_head);
    const std::int32_t flat = first_head + rest % width;
    FlashTile tile;
    tile.sequence = flat / p.heads;
    tile.head = flat - tile.sequence * p.heads;
    tile.first_row = (p.tiles - 1 - rest / width) * p.tile_rows;
    tile.batch = p.q_starts != nullptr ? 0 : tile.sequence;
    tile.q_start = tile.k_start = 0;
    std::int32_t tokens = p.tokens;
    tile.length = p.keys;
    if (p.q_starts != nullptr) {  // not trusted
        tile.q_start = between(p.q_starts[tile.sequence], 0, p.q_total);
        tile.k_start = between(p.k_starts[tile.sequence], 0, p.k_total);
        tokens = between(p.q_starts[tile.sequence + 1], tile.q_start, p.q_total) - tile.q_start;
        tile.length = between(p.k_starts[tile.sequence + 1], tile.k_start, p.k_total) - tile.k_start;
    }
    tile.shift = tile.length - tokens;
    if (p.positions != nullptr) {
        tile.shift = between(p.positions[tile.sequence], 0, p.keys);
        tile.length = least(tile.shift + tokens, p.keys);
    }
    tile.rows = least(p.tile_rows, tokens - tile.first_row);
    tile.begin = most(tile.first_row + tile.shift - p.left, 0);
    tile.end = least(tile.first_row + tile.rows - 1 + tile.shift + p.right + 1, tile.length);
    if (tile.rows <= 0 || tile.end <= tile.begin) tile.begin = tile.end = 0;
    return tile;
}

// Which page has key `key` of a sequence; past the end the last one.
GPK_HD std::int32_t page_of(const FlashAttentionParams& p, const FlashTile& tile, std::int32_t key) {
    const std::int32_t index = least(key / p.page_tokens, p.pages_of_sequence - 1);
    return between(p.pages[std::int64_t{tile.sequence} * p.pages_of_sequence + index], 0, p.page_count - 1);
}
// Where a key lies from the first element of its head, in keys or values.
GPK_HD std::int64_t key_offset(const FlashAttentionParams& p, const AttentionStrides& at,
                               const FlashTile& tile, std::int32_t key) {
    if (p.pages == nullptr) return tile.batch * at.batch + std::int64_t{tile.k_start + key} * at.token;
    return page_of(p, tile, key) * at.batch + std::int64_t{key % p.page_tokens} * at.token;
}

GPK_HD float scale_of(const AttentionScales& scales, std::int32_t batch, std::int32_t head) {
    return scales.each == nullptr ? 1.0f : scales.each[batch * scales.batch + head * scales.head];
}
// Of a product of a query and a key, and of a value.
GPK_HD float flash_scale(const FlashAttentionParams& p, const FlashTile& tile) {
    return p.scale * scale_of(p.q_scales, tile.batch, tile.head) *
           scale_of(p.k_scales, tile.batch, tile.head / (p.heads / p.kv_heads));
}
GPK_HD float flash_value_scale(const FlashAttentionParams& p, const FlashTile& tile) {
    return p.value_scale * scale_of(p.v_scales, tile.batch, tile.head / (p.heads / p.kv_heads));
}

// The plain kernel: products on the ordinary cores, 16 * rows queries and 32 keys at a time. A block makes
// one tile.
struct FlashPlain {
    int max_d;
    int rows;  // queries of a thread
    constexpr int tile_rows() const { return 16 * rows; }
    constexpr int shared_bytes() const {
        return ((tile_rows() + kKeys) * (max_d + 4) + tile_rows() * (kKeys + 4)) * 4;
    }
    static constexpr int kThreads = 128, kKeys = 32;
};
// X(max_d, rows)
#define GPK_FLASH_PLAIN(X, ...) X(64, 4, __VA_ARGS__) X(128, 4, __VA_ARGS__) X(256, 2, __VA_ARGS__)

// Tensor cores of SM 80 (flash_attention_mma.cuh): four warps of 16 * groups queries each; a block makes one
// tile. What is in pieces of 16 bytes.
struct FlashMma {
    int max_d;
    int keys;    // of a step
    int groups;  // of 16 queries of a warp
    int blocks;  // that should fit on a multiprocessor
    constexpr int tile_rows() const { return 64 * groups; }
    constexpr int shared_bytes() const { return (tile_rows() + 2 * keys) * max_d * 2; }
    static constexpr int kThreads = 128;
};
// X(max_d, keys, groups, blocks)
#define GPK_FLASH_MMA(X, ...)    \
    X(64, 64, 2, 2, __VA_ARGS__) \
    X(96, 64, 2, 2, __VA_ARGS__) X(128, 64, 2, 2, __VA_ARGS__) X(256, 32, 1, 2, __VA_ARGS__)

// SM 90 (flash_attention_sm90.cuh): blocks stay and take tile after tile. Heads of up to `max_d` elements,
// what a tensor map can name.
struct FlashSm90 {
    int max_d;
    int keys;        // of a step
    int warpgroups;  // of 64 queries
    int stages;      // steps that there is room for
    int element_bytes = 2;
    constexpr int tile_rows() const { return 64 * warpgroups; }
    constexpr int threads() const { return 128 * (warpgroups + 1); }
    constexpr int shared_bytes() const {
        return (max_d * element_bytes + 127) / 128 * 128 * (tile_rows() + 2 * stages * keys) + 1024;
    }
};
// X(max_d, keys, warpgroups, stages)
#define GPK_FLASH_SM90(X, ...)    \
    X(64, 128, 3, 2, __VA_ARGS__) \
    X(96, 128, 2, 2, __VA_ARGS__) X(128, 128, 2, 2, __VA_ARGS__) X(256, 80, 2, 2, __VA_ARGS__)
// The same of float8_e4m3.
#define GPK_FLASH_FLOAT8(X, ...) \
    X(64, 128, 3, 2, __VA_ARGS__) X(128, 128, 2, 2, __VA_ARGS__) X(256, 128, 2, 2, __VA_ARGS__)

constexpr FlashSm90 flash_sm90(int max_d, int element_bytes) {
#define X(d, keys, warpgroups, stages, bytes) \
    if (element_bytes == bytes && max_d == d) return {d, keys, warpgroups, stages, bytes};
    GPK_FLASH_SM90(X, 2)
    GPK_FLASH_FLOAT8(X, 1)
#undef X
    return {};
}
constexpr FlashMma flash_mma(int max_d) {
#define X(d, keys, groups, blocks, ...) \
    if (max_d == d) return {d, keys, groups, blocks};
    GPK_FLASH_MMA(X, )
#undef X
    return {};
}

// A row of the family's table; smallest first of those that are alike.
struct FlashVariant {
    const Kernel* kernel;
    bool pieces;       // q, k, v and the result are in pieces of 16 bytes
    bool tensor_maps;  // SM 90
    int max_d, tile_rows, keys, threads, shared_bytes;
};
// For queries of this dtype. `options`: a mask, slopes or a soft cap, or a scale that is not positive.
std::span<const FlashVariant> flash_attention(DType dtype, bool options);

}  // namespace gpk::kernels
