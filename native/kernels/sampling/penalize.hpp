// penalize: logits as they are before a draw: float32 of each logit and its bias, then the penalties of what
// a row holds already. Repetition divides a positive logit and multiplies another (Keskar et al. 2019,
// arXiv:1909.05858) of what the prompt or the output has; frequency times the count, and presence, are taken
// from a logit of the output's.
//
// The order is that of vLLM's V1 sampler: logit bias, repetition, frequency, presence.
#pragma once

#include <cmath>
#include <cstdint>

#include "base/dtype.hpp"
#include "kernels/sampling/per_row.hpp"
#include "runtime/kernel.hpp"

namespace gpk::kernels {

struct PenalizeParams {
    const void* logits;          // [rows, n], rows `pitch` elements apart
    float* out;                  // [rows, n]
    const std::int32_t* counts;  // [rows, n]: how often the output has a token; or null
    const bool* prompt;          // [rows, n]: whether the prompt has it; or null
    const float* bias;           // [rows, n], rows `bias_pitch` (0: one for all) elements apart; or null
    std::int64_t rows, pitch, bias_pitch;
    std::int32_t n;
    PerRow<float> repetition, presence, frequency;
};

// What a row's penalties make of a logit; the same on the host, to the bit.
struct Penalties {
    float repetition, presence, frequency;

    GPK_HD Penalties(const PenalizeParams& p, std::int64_t row)
        : repetition(p.repetition[row]), presence(p.presence[row]), frequency(p.frequency[row]) {}

    GPK_HD float apply(float logit, std::int32_t count, bool of_prompt) const {
        if (count > 0 || of_prompt) logit = logit > 0 ? logit / repetition : logit * repetition;
        if (count > 0) {
            logit = fmaf(-frequency, static_cast<float>(count), logit) - presence;
        }
        return logit;
    }
};

const Kernel& penalize(DType dtype);  // grid: (blocks for n, blocks for rows)

}  // namespace gpk::kernels
