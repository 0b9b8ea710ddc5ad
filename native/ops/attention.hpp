// Attention, rotary embedding, the key/value cache, and attention over it.
//
// Positions are in device memory (int32: that of a sequence's first token in the call), so that a captured
// step can be replayed as the position moves on. All arrays of a call have one dtype: float32, float16 or
// bfloat16. head_dim is at most 256; even where it is rotated.
#pragma once

#include <cstdint>
#include <optional>

#include "array/array.hpp"

namespace gpk::ops {

// inv_freq: float32 [pairs], pairs <= d / 2. Element i of each head turns with element i + pairs by the
// angle position * inv_freq[i]; cosine and sine are multiplied by `factor`.
struct Rope {
    const Array& inv_freq;
    double factor = 1.0;
};

// x: [tokens, heads, d] or [batch, tokens, heads, d]. position: of the first token, as everywhere here, or of
// each: int32 [tokens]. `out` may be x.
Array rope(const Array& x, const Array& position, const Rope& rope, const Array* out = nullptr);

struct KvAppendOptions {
    const Rope* rope = nullptr;  // rotates k, and q where given
    const Array* q = nullptr;    // [batch, tokens, heads, d], changed in place
    // RMSNorm of each head, before the rotation: weights [d], or null for none.
    const Array* q_norm = nullptr;
    const Array* k_norm = nullptr;
    double norm_eps = 1e-6;
};
// Writes k and v [batch, tokens, kv_heads, d] into keys and values [batch, kv_heads, capacity, d]: from each
// sequence's position on, positions: int32 [batch]. Tokens past the cache's end are dropped. q, k and v may
// be slices of one array along the heads. A cache of float8_e4m3 takes 448 for all that is larger.
void kv_append(const Array& k, const Array& v, const Array& keys, const Array& values, const Array& positions,
               const KvAppendOptions& options = {});

// What the numbers of a float8 array stand for times themselves: `value`, and where given `each` (positive),
// float32, which broadcasts to [batch, heads].
struct AttentionScale {
    double value = 1;
    const Array* each = nullptr;
};

struct AttentionOptions {
    bool causal = false;               // as a window of nothing after
    std::optional<double> scale = {};  // of the products; 1 / sqrt(d) where not given
    // How many keys before and after its own place a query sees; negative: all.
    std::int64_t left = -1, right = -1;
    double soft_cap = 0;  // scores become cap * tanh(score / cap); 0: they stay
    // float32 [heads]: slope * |key - place| is taken from the scores (Press et al. 2021, arXiv:2108.12409).
    const Array* alibi_slopes = nullptr;
    // Broadcasts to [batch, heads, tokens, keys]. bool: which keys are seen; the dtype of q or float32: added
    // to the scores.
    const Array* mask = nullptr;
    // With float8 q, k and v alone: their scales, and the result's dtype, float16 or bfloat16 (the default).
    AttentionScale q_scale = {}, k_scale = {}, v_scale = {};
    std::optional<DType> dtype = {};
};

// softmax(q k^T * scale) v of q [batch, heads, tokens, d] over k and v [batch, kv_heads, keys, d]; heads is a
// multiple of kv_heads. The last query's place is the last key's, and each query stands one key before the
// next. A query that sees no key gives zeros. q, k and v may be float8_e4m3.
Array attention(const Array& q, const Array& k, const Array& v, const AttentionOptions& options,
                const Array* out = nullptr);

// Sequences of different lengths one after the other, q [tokens, heads, d], k and v [keys, kv_heads, d].
// q_starts and k_starts: int32 [sequences + 1], where each begins, and the last one's end. No sequence has
// more than max_tokens queries. options.mask cannot be had.
Array attention_packed(const Array& q, const Array& k, const Array& v, const Array& q_starts,
                       const Array& k_starts, std::int64_t max_tokens, const AttentionOptions& options,
                       const Array* out = nullptr);

// How a cache is stored.
struct CacheOptions {
    // int32 [batch, pages of a sequence]: which page holds each page_tokens keys of a sequence; or null.
    // Numbers outside are taken for the nearest page.
    const Array* pages = nullptr;
    // What the stored numbers are multiplied by.
    double key_scale = 1, value_scale = 1;
    // Spreads the keys of each sequence as if it were alone, so that its result has the same bits whatever
    // else is in the batch; over fewer blocks than is quickest for one.
    bool as_alone = false;
};

// Attention of new tokens, q [batch, tokens, heads, d], over a cache of each sequence, keys and values
// [batch, kv_heads, capacity, d]; or, with cache.pages, [pages, kv_heads, page_tokens, d]. positions: int32
// [batch], where the first token stands among its sequence's keys, which may be a number of the device; the
// others follow it; each sees the keys up to its own place, from options.left before it on. The cache has the
// dtype of q, or is float8_e4m3, which is widened before more than a few tokens. options.mask cannot be had.
Array attention_cached(const Array& q, const Array& keys, const Array& values, const Array& positions,
                       const CacheOptions& cache, const AttentionOptions& options,
                       const Array* out = nullptr);

// kv_append() of a token of each sequence, append.q among it, and then the attention_cached() of that q: at
// once, where a kernel can; then append.q stays as it was. as_alone: see CacheOptions.
Array append_and_attend(const Array& k, const Array& v, const Array& keys, const Array& values,
                        const Array& positions, const KvAppendOptions& append,
                        const AttentionOptions& options, bool as_alone = false, const Array* out = nullptr);

}  // namespace gpk::ops
