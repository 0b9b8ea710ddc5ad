// Sampler: chooses tokens of one text from logits on the host. The same seed and step give the same token
// from the same logits, on every machine.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

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

    bool penalizes() const noexcept { return repetition != 1 || presence != 0 || frequency != 0; }
    bool greedy() const noexcept { return temperature == 0 && !penalizes(); }  // the largest logit, as it is
    void validate() const;                                                     // throws Error (value)
};

// Number `counter` of stream `seed`, uniform in [0, 1): Philox4x32-10 (Salmon et al., SC 2011).
double uniform(std::uint64_t seed, std::uint64_t counter);

class Sampler {
   public:
    explicit Sampler(const Sampling& sampling);

    // What penalties look at: the prompt's tokens, and those of the text as they come.
    void add_prompt(std::span<const std::int32_t> tokens);
    void add(std::int32_t token);

    // `step` counts the choices of one text. Throws Error (value) where no logit is finite, or one is NaN.
    std::int32_t sample(std::span<const float> logits, std::uint64_t step);

   private:
    struct Candidate {
        float logit;
        std::int32_t id;
    };

    Sampling sampling_;
    std::vector<Candidate> candidates_;
    std::vector<double> weights_;
    std::map<std::int32_t, std::int64_t> seen_;  // how often in the text; 0: in the prompt alone
};

}  // namespace gpk::llm
