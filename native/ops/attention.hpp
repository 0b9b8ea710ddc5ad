// Rotary embedding, the key/value cache, and attention over it.
//
// Positions are in device memory (int32, shape [1]: the position of the call's first token), so that a
// captured step can be replayed as the position moves on. All arrays of a call have one dtype: float32,
// float16 or bfloat16. head_dim is even and at most 256.
#pragma once

#include <cstdint>

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

// Writes k and v [tokens, kv_heads, d] into keys and values [kv_heads, capacity, d] at `position`; with
// `rope`, k is rotated on the way and q [tokens, heads, d], where given, in place. Tokens past the
// cache's end are dropped. q, k and v may be slices of one array along the heads.
void kv_append(const Array& k, const Array& v, const Array& keys, const Array& values, const Array& position,
               const Rope* rope = nullptr, const Array* q = nullptr);

// Causal attention: token i of q [tokens, heads, d] sees keys 0 .. position + i of the cache; heads is a
// multiple of kv_heads. Gives [tokens, heads, d]. `workspace`, where given, comes from
// attention_workspace() for the same sizes and makes calls with few tokens free of allocation.
Array attention(const Array& q, const Array& keys, const Array& values, const Array& position, double scale,
                const Array* out = nullptr, const Array* workspace = nullptr);

struct AttentionSize {
    std::int64_t tokens, heads, kv_heads, d, capacity;
};
// Not defined where none is needed.
Array attention_workspace(Device& device, const AttentionSize& size);

}  // namespace gpk::ops
