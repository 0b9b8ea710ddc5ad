// Sampler: chooses a token from logits on the host. The same seed and step give the same token from the
// same logits, on every machine.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace gpk::llm {

struct Sampling {
    double temperature = 0;  // 0: the largest logit (the lowest id among equals)
    std::int64_t top_k = 0;  // only the k most likely; 0: all
    double top_p = 1;        // then only the fewest whose probabilities reach p together
    std::uint64_t seed = 0;

    bool greedy() const noexcept { return temperature == 0; }
    void validate() const;  // throws Error (value)
};

// Number `counter` of stream `seed`, uniform in [0, 1): Philox4x32-10 (Salmon et al., SC 2011).
double uniform(std::uint64_t seed, std::uint64_t counter);

class Sampler {
   public:
    explicit Sampler(const Sampling& sampling);

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
};

}  // namespace gpk::llm
