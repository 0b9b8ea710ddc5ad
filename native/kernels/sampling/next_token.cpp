#include "kernels/sampling/next_token.hpp"

#include <cmath>

#include "kernels/host.hpp"

namespace gpk {
extern const Image image_next_token;
}

namespace gpk::kernels {

namespace {

void next_token_host(const NextTokenParams& p) {
    std::int32_t best = 0;
    for (std::int32_t i = 1; i < p.count && !std::isnan(p.logits[best]); ++i) {
        if (std::isnan(p.logits[i]) || p.logits[i] > p.logits[best]) best = i;
    }
    *p.token = best;
    const std::int32_t position = *p.position += p.advance;
    if (position >= 0 && position < p.log_size) p.log[position] = best;
}

const Kernel kKernel(KernelDef{.name = "next_token",
                               .image = &image_next_token,
                               .twin = twin<NextTokenParams, next_token_host>,
                               .waits_for_predecessor = true});

}  // namespace

const Kernel& next_token() { return kKernel; }

}  // namespace gpk::kernels
