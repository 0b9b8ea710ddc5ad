// token_logprobs: of each row the natural logarithms of the softmax probabilities of a token and of the
// likeliest ones, in float32, written to pinned host memory, where the host finds them while later steps run.
// An entry is the token's, then those of `best` in their order.
#pragma once

#include <cstdint>

#include "runtime/kernel.hpp"

namespace gpk::kernels {

struct TokenLogprobsParams {
    const float* logits;           // [rows, count], rows `pitch` elements apart
    const std::int32_t* token;     // [rows]; outside 0 to count - 1: NaN
    const std::int32_t* position;  // [rows]: a row's entry is position % entries; below 0: none
    const std::int32_t* best;      // [rows, k]: tokens, as top_k gives them
    float* logprobs;               // [rows, entries, most + 1], in pinned host memory
    std::int32_t* ids;             // [rows, entries, most]: those of `best`
    std::int64_t rows, pitch;
    std::int32_t count;
    std::int32_t k;  // 0 to most
    std::int32_t entries, most;
};

const Kernel& token_logprobs();  // a block of 1024 threads for each row

}  // namespace gpk::kernels
