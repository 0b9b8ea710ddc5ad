// rope: rotary position embedding (Su et al. 2021, arXiv:2104.09864) in the "half" layout of Hugging
// Face's Llama: element i of a head turns with element i + pairs by the angle position * inv_freq[i],
// computed in float32 as transformers does. Elements from 2 * pairs on pass through.
#pragma once

#include <cstdint>

#include "base/dtype.hpp"
#include "base/float_types.hpp"
#include "runtime/kernel.hpp"

namespace gpk::kernels {

struct RopeTable {
    const float* inv_freq;  // [pairs]
    std::int32_t pairs;     // 0: no rotation
    float factor;           // of cosine and sine ("attention scaling")
};

struct RopeParams {
    const void* x;                 // [batch, tokens, heads, d], d even
    void* y;                       // the same shape; may be x
    const std::int32_t* position;  // [tokens], or [1]: of the first token; the next ones follow it
    RopeTable table;
    std::int64_t batch;
    std::int64_t tokens;
    std::int64_t heads;
    std::int64_t d;
    std::int64_t x_batch_stride, x_token_stride, x_head_stride;  // in elements
    std::int64_t y_batch_stride, y_token_stride, y_head_stride;
    std::int32_t has_all_positions;
    // Where a whole head turns and everything suits accesses of 16 bytes, a thread turns so many heads by the
    // angles that it has computed; else 0.
    std::int32_t heads_per_thread;
};

GPK_HD float rope_position(const RopeParams& p, std::int64_t token) {
    return static_cast<float>(p.has_all_positions ? p.position[token] : p.position[0] + token);
}

// A head is worked on in d / 2 pairs of elements: those that turn together, then neighbours.
struct ElementPair {
    std::int64_t first, second;
};
GPK_HD ElementPair rope_pair(std::int64_t i, std::int64_t pairs) {
    return i < pairs ? ElementPair{i, i + pairs} : ElementPair{2 * i, 2 * i + 1};
}

const Kernel& rope(DType dtype);

}  // namespace gpk::kernels
