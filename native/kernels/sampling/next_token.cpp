#include "kernels/sampling/next_token.hpp"

#include <cmath>

#include "kernels/host.hpp"

namespace gpk {
extern const Image image_next_token;
}

namespace gpk::kernels {

namespace {

std::int32_t largest(const float* logits, std::int32_t count) {
    std::int32_t best = 0;
    for (std::int32_t i = 1; i < count && !std::isnan(logits[best]); ++i) {
        if (std::isnan(logits[i]) || logits[i] > logits[best]) best = i;
    }
    return std::isfinite(logits[best]) ? best : -1;
}

void next_token_host(const NextTokenParams& p) {
    for (std::int64_t row = 0; row < p.rows; ++row) {
        if (p.position[row] < 0) continue;
        const std::int32_t best =
            p.drawn != nullptr ? p.drawn[row] : largest(p.logits + row * p.pitch, p.count);
        p.token[row] = best;
        const std::int32_t position = p.position[row] += p.advance;
        if (position >= 0 && position < p.log_size) p.log[row * p.log_size + position] = best;
    }
}

const Kernel kKernel(KernelDef{.name = "next_token",
                               .image = &image_next_token,
                               .twin = twin<NextTokenParams, next_token_host>,
                               .waits_for_predecessor = true});

}  // namespace

const Kernel& next_token() { return kKernel; }

}  // namespace gpk::kernels
