#include "kernels/sampling/accept_drafts.hpp"

#include <algorithm>
#include <cmath>

#include "kernels/host.hpp"

namespace gpk {
extern const Image image_accept_drafts;
}

namespace gpk::kernels {

namespace {

void accept_drafts_host(const AcceptDraftsParams& p) {
    std::int32_t* const clear = p.best + p.rows;
    parallel_for(p.rows, 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t row = begin; row < end; ++row) {
            const float* logits = p.logits + row * p.pitch;
            std::int32_t best = 0;
            float second = -INFINITY;
            double sum = logits[0], squares = double{logits[0]} * logits[0];
            for (std::int32_t i = 1; i < p.count && !std::isnan(logits[best]); ++i) {
                if (std::isnan(logits[i]) || logits[i] > logits[best]) {
                    second = logits[best];
                    best = i;
                } else {
                    second = std::max(second, logits[i]);
                }
                sum += logits[i];
                squares += double{logits[i]} * logits[i];
            }
            const double mean = sum / p.count,
                         deviation = std::sqrt(std::max(squares / p.count - mean * mean, 0.0));
            const bool finite = std::isfinite(logits[best]);
            p.best[row] = finite ? best : -1;
            clear[row] = !finite || double{logits[best]} - second >= double{p.margin} * deviation;
        }
    });
    accept_rows(p, p.best, clear);
}

const Kernel kKernel(KernelDef{.name = "accept_drafts",
                               .image = &image_accept_drafts,
                               .twin = twin<AcceptDraftsParams, accept_drafts_host>,
                               .waits_for_predecessor = true});

}  // namespace

const Kernel& accept_drafts() { return kKernel; }

}  // namespace gpk::kernels
