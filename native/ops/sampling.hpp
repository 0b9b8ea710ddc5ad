// Choosing tokens on the device, and the largest elements of rows.
#pragma once

#include <cstdint>
#include <utility>

#include "array/array.hpp"

namespace gpk::ops {

// An option, or an array on the device with one for each row: of the shape of the logits without the last
// axis.
template <class Value>
struct RowOption {
    Value value;
    const Array* of_rows = nullptr;  // what is there for `value`, where it is not null

    RowOption(Value of_all) : value(of_all) {}  // NOLINT(google-explicit-constructor): a number is an option
    RowOption(Value of_all, const Array* each) : value(of_all), of_rows(each) {}
};

struct SampleOptions {
    RowOption<double> temperature = 1.0;  // 0: the largest logit, of equals the lowest id; float32
    RowOption<std::int64_t> top_k = std::int64_t{0};  // only the k likeliest; 0: all; int32
    RowOption<double> top_p = 1.0;  // of these the fewest that reach p of their probability together; float32
    RowOption<double> min_p =
        0.0;  // of these what is at least min_p times as likely as the likeliest; float32
    RowOption<std::uint64_t> seed =
        std::uint64_t{0};             // uint64; with one of its own a row draws stream 0 of it
    std::uint64_t step = 0;           // which draw of the seed; every row has its own stream
    const Array* position = nullptr;  // int32 [1], or of the rows, on the device, added to `step`
    // int32 like the logits: that of each drawn token grows by one, where the position is not below 0.
    const Array* counts = nullptr;
};

// int32 tokens, of the shape of `logits` (float32, float16 or bfloat16) without its last axis. -1 where a row
// has a NaN, its largest logit is infinite, or an option of its own is out of range. The same on every device
// and in every run.
Array sample(const Array& logits, const SampleOptions& options);

struct PenalizeOptions {
    const Array* counts = nullptr;  // int32 like the logits: how often the output has each token
    const Array* prompt = nullptr;  // bool like the logits: whether the prompt has it
    const Array* bias = nullptr;    // float32, like the logits or [n]
    RowOption<double> repetition = 1.0, presence = 0.0, frequency = 0.0;  // float32
};

// float32: logits + bias, less what kernels/sampling/penalize.hpp takes off them.
Array penalize(const Array& logits, const PenalizeOptions& options);

inline constexpr std::int64_t kLargestTopK = 2048;

// The k largest along the last axis, from the largest down, and their int32 indices. A NaN counts as the
// largest; of equals the lower index comes first. 1 <= k <= kLargestTopK.
std::pair<Array, Array> top_k(const Array& x, std::int64_t k);

}  // namespace gpk::ops
