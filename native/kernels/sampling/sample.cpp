#include "kernels/sampling/sample.hpp"

#include <algorithm>
#include <vector>

#include "kernels/floats.hpp"
#include "kernels/host.hpp"
#include "kernels/sampling/weights.hpp"

namespace gpk {
extern const Image image_sample;
}

namespace gpk::kernels {

namespace {

struct Candidate {
    std::uint32_t key;
    std::int32_t id;
};

bool likelier(const Candidate& a, const Candidate& b) { return a.key != b.key ? a.key > b.key : a.id < b.id; }

template <class T>
std::int32_t draw(const SampleParams& p, std::int64_t row, std::vector<Candidate>& candidates) {
    const SampleRow o = sample_row(p, row);
    const T* logits = static_cast<const T*>(p.logits) + row * p.pitch;
    candidates.clear();
    Candidate best{0, 0};
    for (std::int32_t i = 0; i < p.n; ++i) {
        candidates.push_back({order_key(convert<float>(logits[i])), i});
        if (i == 0 || candidates.back().key > best.key) best = candidates.back();
    }
    const float highest = key_value(best.key);
    if (!o.valid || best.key == kNanKey || !std::isfinite(highest)) return -1;
    if (o.greedy) return best.id;
    const auto weight = [&](const Candidate& c) { return weight_of(key_value(c.key), highest, o.rate); };

    if (o.top_k < p.n) {
        std::nth_element(candidates.begin(), candidates.begin() + o.top_k - 1, candidates.end(), likelier);
        candidates.resize(static_cast<std::size_t>(o.top_k));
    }
    if (o.top_p < 1) {
        std::uint64_t total = 0, taken = 0;
        for (const Candidate& c : candidates) total += weight(c);
        const std::uint64_t goal = nucleus_goal(o.top_p, total);
        // The likeliest gather at the back.
        auto end = candidates.end();
        const auto less_likely = [](const Candidate& a, const Candidate& b) { return likelier(b, a); };
        std::make_heap(candidates.begin(), end, less_likely);
        while (taken < goal) {
            std::pop_heap(candidates.begin(), end--, less_likely);
            taken += weight(*end);
        }
        candidates.erase(candidates.begin(), end);
    }
    std::sort(candidates.begin(), candidates.end(),
              [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
    const auto drawn_weight = [&](const Candidate& c) {
        const std::uint64_t of = weight(c);
        return of >= o.min_weight ? of : 0;
    };
    std::uint64_t total = 0;
    for (const Candidate& c : candidates) total += drawn_weight(c);
    std::uint64_t left = multiply_high(o.random, total);
    for (const Candidate& c : candidates) {
        const std::uint64_t of = drawn_weight(c);
        if (left < of) return c.id;
        left -= of;
    }
    return -1;  // not reached: `left` began below the sum
}

template <class T>
void sample_host(const SampleParams& p) {
    parallel_for(p.rows, 1, [&](std::int64_t begin, std::int64_t end) {
        std::vector<Candidate> candidates;
        candidates.reserve(static_cast<std::size_t>(p.n));
        for (std::int64_t row = begin; row < end; ++row) {
            const std::int32_t token = p.tokens[row] = draw<T>(p, row, candidates);
            if (sample_counts(p, row) && token >= 0) ++p.counts[row * p.n + token];
        }
    });
}

#define X(suffix, T)                                             \
    Kernel(KernelDef{.name = "sample_" #suffix,                  \
                     .image = &image_sample,                     \
                     .twin = twin<SampleParams, sample_host<T>>, \
                     .max_shared_bytes = kAllSharedBytes,        \
                     .waits_for_predecessor = true}),
const Kernel kKernels[] = {GPK_FLOAT_TYPES(X)};
#undef X

}  // namespace

const Kernel& sample(DType dtype) { return kKernels[float_index(dtype)]; }

}  // namespace gpk::kernels
