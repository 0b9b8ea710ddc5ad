// sample: a token for each row of logits, drawn from softmax(logits / temperature) cut to its top_k, then of
// these the fewest that reach top_p together, then what is at least min_p as likely as the likeliest. The
// likelier first, of equals the lower id. The draw is number `step` of stream `row` of the seed, and
// everything that decides is an integer (weights.hpp), so the token is the same on every device.
#pragma once

#include <cstdint>

#include "base/dtype.hpp"
#include "base/float_types.hpp"
#include "runtime/kernel.hpp"

namespace gpk::kernels {

struct SampleParams {
    const void* logits;            // [rows, n], rows `pitch` elements apart
    std::int32_t* tokens;          // [rows]; -1 where a logit is NaN or the highest is infinite
    const std::int32_t* position;  // [1], added to `step`; or null
    std::int64_t rows, pitch;
    std::int32_t n;            // at most kMaxWeights
    std::int32_t top_k;        // 1 to n
    float rate;                // log2(e) / temperature
    bool greedy;               // the highest logit, whatever the rest says
    double top_p;              // above 0; 1 and more: all
    std::uint64_t min_weight;  // min_p in units of weights.hpp
    std::uint64_t seed, step;
};

const Kernel& sample(DType dtype);

// A cluster of blocks of kSelectThreads takes a row. Each block has a part of it, and keeps that in dynamic
// shared memory where it has as much.
inline constexpr int kSelectThreads = 1024;
inline constexpr std::uint32_t kSelectStaticBytes = 20 * 1024;  // what a block has beside that, at most
// Elements of a block's part: whole 16-byte chunks for each of its warps.
GPK_HD constexpr std::int64_t select_part(std::int64_t n, std::int64_t blocks) {
    return (n / 32 / (blocks * (kSelectThreads / 32)) + 1) * kSelectThreads;
}

}  // namespace gpk::kernels
