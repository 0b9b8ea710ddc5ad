// The log-probabilities of chosen tokens and of the likeliest, for the host to read later.
#pragma once

#include <cstdint>

#include "array/array.hpp"

namespace gpk::ops {

// Where they are written: pinned host memory that outlives the work. Row r's are entry position[r] % entries
// of the row: logprobs [rows, entries, most + 1], the token's before the best ones'; ids [rows, entries,
// most].
struct LogprobsLog {
    float* logprobs;
    std::int32_t* ids;
    std::int64_t entries, most;
};

// log_softmax in float32 over the first `count` of each row of logits, float32 [rows, vocab], of token
// (int32 [rows]) and of `best` (int32 [rows, k], as top_k gives them). Rows whose position (int32 [rows]) is
// below 0 are left alone. Where a logit is NaN, so is what is written.
void token_logprobs(const Array& logits, std::int64_t count, const Array& token, const Array& position,
                    const Array& best, const LogprobsLog& log);

}  // namespace gpk::ops
