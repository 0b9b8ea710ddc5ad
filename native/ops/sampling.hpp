// Choosing tokens on the device, and the largest elements of rows.
#pragma once

#include <cstdint>
#include <utility>

#include "array/array.hpp"

namespace gpk::ops {

struct SampleOptions {
    double temperature = 1;  // 0: the largest logit, of equals the lowest id
    std::int64_t top_k = 0;  // only the k likeliest; 0: all
    double top_p = 1;        // of these the fewest that reach p of their probability together
    double min_p = 0;        // of these what is at least min_p times as likely as the likeliest
    std::uint64_t seed = 0;
    std::uint64_t step = 0;           // which draw of the seed; every row has its own
    const Array* position = nullptr;  // int32 [1] on the device, added to `step`
};

// int32 tokens, of the shape of `logits` (float32, float16 or bfloat16) without its last axis. -1 where a row
// has a NaN or its largest logit is infinite. The same on every device and in every run.
Array sample(const Array& logits, const SampleOptions& options);

inline constexpr std::int64_t kLargestTopK = 2048;

// The k largest along the last axis, from the largest down, and their int32 indices. A NaN counts as the
// largest; of equals the lower index comes first. 1 <= k <= kLargestTopK.
std::pair<Array, Array> top_k(const Array& x, std::int64_t k);

}  // namespace gpk::ops
