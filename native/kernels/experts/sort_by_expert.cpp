#include "kernels/experts/sort_by_expert.hpp"

#include <vector>

#include "kernels/host.hpp"

namespace gpk {
extern const Image image_sort_by_expert;
}

namespace gpk::kernels {

namespace {

void sort_by_expert_host(const SortByExpertParams& p) {
    std::vector<std::int32_t> next(static_cast<std::size_t>(p.count) + 1);
    const auto known = [&](std::int32_t expert) { return expert >= 0 && expert < p.count; };
    for (std::int32_t i = 0; i < p.pairs; ++i) {
        if (known(p.experts[i])) ++next[static_cast<std::size_t>(p.experts[i]) + 1];
    }
    for (std::size_t i = 1; i < next.size(); ++i) next[i] += next[i - 1];
    for (std::size_t i = 0; i < next.size(); ++i) p.offsets[i] = next[i];
    for (std::int32_t row = next.back(); row < p.pairs; ++row) p.tokens[row] = -1;
    for (std::int32_t i = 0; i < p.pairs; ++i) {
        p.places[i] = known(p.experts[i]) ? next[static_cast<std::size_t>(p.experts[i])]++ : -1;
        if (p.places[i] >= 0) p.tokens[p.places[i]] = i / p.top;
    }
}

const Kernel kKernel(KernelDef{.name = "sort_by_expert",
                               .image = &image_sort_by_expert,
                               .twin = twin<SortByExpertParams, sort_by_expert_host>,
                               .waits_for_predecessor = true});

}  // namespace

const Kernel& sort_by_expert() { return kKernel; }

}  // namespace gpk::kernels
