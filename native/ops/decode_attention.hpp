// The choice of an attention_decode kernel, over how many blocks it spreads, and its launch.
#pragma once

#include <initializer_list>

#include "array/array.hpp"
#include "kernels/attention/attention_decode.hpp"

namespace gpk::ops {

struct DecodeCall {
    const Array& q;       // [batch, tokens, heads, d]; the last axis without gaps, as in the others
    const Array& keys;    // [batch, kv_heads, capacity, d], or pages of them, [pages, kv_heads, tokens, d]
    const Array& values;  // the same
    const Array& out;     // [batch, tokens, heads, d]
    // Options, sizes and what is read beside the arrays. The launch fills in their pointers and strides, and
    // how the keys are spread.
    kernels::AttentionDecodeParams params;
    bool as_alone;  // see CacheOptions
    Cost cost;
    std::initializer_list<const Array*> reads;
    std::initializer_list<const Array*> more_reads = {};  // null ones aside
};

// q, or a copy that can be read in pieces of 16 bytes: queries are few.
Array decode_query(const Array& q);
// False where it should append and no kernel can; then nothing was done.
bool launch_decode(const DecodeCall& call);

}  // namespace gpk::ops
