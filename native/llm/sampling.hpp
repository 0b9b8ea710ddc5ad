// Sampling: how the tokens of a text are chosen from its logits. llm/chooser.hpp does it, on the device.
#pragma once

#include <cstdint>

namespace gpk::llm {

struct Sampling {
    double temperature = 0;  // 0: the largest logit (the lowest id among equals)
    std::int64_t top_k = 0;  // only the k most likely; 0: all
    double top_p = 1;        // then only the fewest whose probabilities reach p together
    double min_p = 0;        // then only those at least so likely as this part of the likeliest
    std::uint64_t seed = 0;
    // Taken off the logits before all that. repetition: positive ones are divided by it, others multiplied,
    // of tokens in the prompt or the text (Keskar et al. 2019, arXiv:1909.05858); frequency: so much for each
    // time that a token is in the text, presence: once, as OpenAI's interface defines both.
    double repetition = 1, presence = 0, frequency = 0;

    bool operator==(const Sampling&) const = default;
    bool penalizes() const noexcept { return repetition != 1 || presence != 0 || frequency != 0; }
    bool draws() const noexcept { return temperature != 0; }
    bool greedy() const noexcept { return !draws() && !penalizes(); }  // the largest logit, as it is
    void validate() const;                                             // throws Error (value)
};

}  // namespace gpk::llm
