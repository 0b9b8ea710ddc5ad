// next_token: of each row the id of the largest logit (the lowest id among equals), or one that was drawn,
// and the step of the position, so that the following step of a model needs nothing from the host. -1 where a
// logit is NaN or the largest is infinite. The host reads which token it was from a log, while later steps
// run already. Rows with a position below 0 are left alone.
#pragma once

#include <cstdint>

#include "runtime/kernel.hpp"

namespace gpk::kernels {

struct NextTokenParams {
    const float* logits;        // [rows, count], rows `pitch` elements apart
    const std::int32_t* drawn;  // [rows]: the tokens, whatever the logits are; or null
    std::int32_t* token;        // [rows], written
    std::int32_t* position;     // [rows], advanced
    std::int32_t* log;  // [rows, log_size] in pinned host memory: the token, at the new position; or null
    std::int64_t log_size;
    std::int64_t rows, pitch;
    std::int32_t count;
    std::int32_t advance;  // tokens that this step put into the cache
};

const Kernel& next_token();  // a block for each row

}  // namespace gpk::kernels
