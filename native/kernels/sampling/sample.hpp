// sample: a token for each row of logits, drawn from softmax(logits / temperature) cut to its top_k, then of
// these the fewest that reach top_p together, then what is at least min_p as likely as the likeliest. The
// likelier first, of equals the lower id. The draw is number `step` of a stream of the seed, and everything
// that decides is an integer (weights.hpp), so the token is the same on every device.
//
// The order is that of transformers' GenerationMixin._get_logits_processor: temperature, top-k, top-p, min-p.
#pragma once

#include <cstdint>

#include "base/dtype.hpp"
#include "base/float_types.hpp"
#include "kernels/sampling/per_row.hpp"
#include "kernels/sampling/weights.hpp"
#include "runtime/kernel.hpp"

namespace gpk::kernels {

struct SampleParams {
    const void* logits;            // [rows, n], rows `pitch` elements apart
    std::int32_t* tokens;          // [rows]; -1 where a logit is NaN, the highest is infinite, or an option
                                   // is out of range
    std::int32_t* counts;          // [rows, n], where the token's grows by one; or null
    const std::int32_t* position;  // [1] or [rows], added to `step`; below 0 nothing is counted; or null
    bool position_of_row;          // it is [rows]
    std::int64_t rows, pitch;
    std::int32_t n;                     // at most kMaxWeights
    PerRow<std::int32_t> top_k;         // 0: all
    PerRow<double, float> temperature;  // 0: the highest logit, whatever the rest says
    PerRow<double, float> top_p;        // above 0; 1: all
    PerRow<double, float> min_p;        // 0 to 1
    PerRow<std::uint64_t> seed;         // where each row has its own, it draws from stream 0 of it
    std::uint64_t step;
};

// A row's options as the draw needs them.
struct SampleRow {
    bool valid;
    bool greedy;
    std::int32_t top_k;  // 1 to n
    float rate;          // log2(e) / temperature
    double top_p;
    std::uint64_t min_weight;  // min_p in units of weights.hpp
    std::uint64_t random;      // the draw
};

GPK_HD SampleRow sample_row(const SampleParams& p, std::int64_t row) {
    // Below the smallest temperature whose rate is finite in float32, only the likeliest are left anyway.
    constexpr double kLog2E = 1.4426950408889634, kMostRate = 0x1p126, kMost = 1e308;
    SampleRow o;
    const double temperature = p.temperature[row], min_p = p.min_p[row];
    const std::int32_t k = p.top_k[row];
    o.top_p = p.top_p[row];
    o.valid = temperature >= 0 && temperature <= kMost && k >= 0 && o.top_p > 0 && o.top_p <= 1 &&
              min_p >= 0 && min_p <= 1;
    o.greedy = temperature == 0;
    o.top_k = k == 0 || k > p.n ? p.n : k;
    const double exact = o.greedy ? 1.0 : kLog2E / temperature;
    o.rate = static_cast<float>(exact < kMostRate ? exact : kMostRate);
    const double weight = min_p * static_cast<double>(kWeightOne);
    o.min_weight = o.valid ? static_cast<std::uint64_t>(weight) : 0;
    if (static_cast<double>(o.min_weight) < weight) ++o.min_weight;
    const std::int32_t* at = p.position;
    const std::uint64_t draw =
        p.step + (at != nullptr ? static_cast<std::uint64_t>(at[p.position_of_row ? row : 0]) : 0);
    o.random = random_bits(p.seed[row], draw, p.seed.values != nullptr ? 0 : static_cast<std::uint64_t>(row));
    return o;
}

// Whether what a row draws is counted. A row whose position is below 0 is of no text.
GPK_HD bool sample_counts(const SampleParams& p, std::int64_t row) {
    return p.counts != nullptr && (p.position == nullptr || p.position[p.position_of_row ? row : 0] >= 0);
}

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
