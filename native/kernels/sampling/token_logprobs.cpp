#include "kernels/sampling/token_logprobs.hpp"

#include <algorithm>
#include <cmath>

#include "kernels/host.hpp"

namespace gpk {
extern const Image image_token_logprobs;
}

namespace gpk::kernels {

namespace {

void token_logprobs_host(const TokenLogprobsParams& p) {
    for (std::int64_t row = 0; row < p.rows; ++row) {
        if (p.position[row] < 0) continue;
        const float* logits = p.logits + row * p.pitch;
        const float highest = *std::max_element(logits, logits + p.count);
        double sum = 0;
        for (std::int32_t i = 0; i < p.count; ++i) sum += std::exp(double{logits[i]} - highest);
        const double log_sum = std::log(sum);
        const std::int64_t entry = row * p.entries + p.position[row] % p.entries;
        for (std::int32_t i = 0; i <= p.k; ++i) {
            const std::int32_t id = i == 0 ? p.token[row] : p.best[row * p.k + i - 1];
            const bool known = id >= 0 && id < p.count;
            p.logprobs[entry * (p.most + 1) + i] =
                known ? static_cast<float>(double{logits[id]} - highest - log_sum) : NAN;
            if (i > 0) p.ids[entry * p.most + i - 1] = id;
        }
    }
}

const Kernel kKernel(KernelDef{.name = "token_logprobs",
                               .image = &image_token_logprobs,
                               .twin = twin<TokenLogprobsParams, token_logprobs_host>,
                               .waits_for_predecessor = true});

}  // namespace

const Kernel& token_logprobs() { return kKernel; }

}  // namespace gpk::kernels
