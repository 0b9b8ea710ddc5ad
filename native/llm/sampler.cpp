#include "llm/sampler.hpp"

#include <algorithm>
#include <cmath>

#include "base/error.hpp"

namespace gpk::llm {

void Sampling::validate() const {
    const auto require = [](bool holds, const char* argument, const char* expected, const std::string& got) {
        if (!holds) {
            throw error(ErrorKind::value,
                        {.call = "sampling", .argument = argument, .expected = expected, .got = got});
        }
    };
    require(std::isfinite(temperature) && temperature >= 0, "temperature", "a number >= 0", str(temperature));
    require(top_k >= 0, "top_k", "a number >= 0", str(top_k));
    require(top_p > 0 && top_p <= 1, "top_p", "a number above 0, at most 1", str(top_p));
    require(min_p >= 0 && min_p <= 1, "min_p", "a number from 0 to 1", str(min_p));
    require(std::isfinite(repetition) && repetition > 0, "repetition_penalty", "a number > 0",
            str(repetition));
    require(std::isfinite(presence), "presence_penalty", "a finite number", str(presence));
    require(std::isfinite(frequency), "frequency_penalty", "a finite number", str(frequency));
}

double uniform(std::uint64_t seed, std::uint64_t counter) {
    constexpr std::uint32_t kMultiply0 = 0xD2511F53, kMultiply1 = 0xCD9E8D57;
    constexpr std::uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
    std::uint32_t key0 = static_cast<std::uint32_t>(seed), key1 = static_cast<std::uint32_t>(seed >> 32);
    std::uint32_t c[4] = {static_cast<std::uint32_t>(counter), static_cast<std::uint32_t>(counter >> 32), 0,
                          0};
    for (int round = 0; round < 10; ++round) {
        const std::uint64_t a = std::uint64_t{kMultiply0} * c[0], b = std::uint64_t{kMultiply1} * c[2];
        const std::uint32_t next[4] = {
            static_cast<std::uint32_t>(b >> 32) ^ c[1] ^ key0, static_cast<std::uint32_t>(b),
            static_cast<std::uint32_t>(a >> 32) ^ c[3] ^ key1, static_cast<std::uint32_t>(a)};
        std::copy(next, next + 4, c);
        key0 += kWeyl0;
        key1 += kWeyl1;
    }
    const std::uint64_t bits = (std::uint64_t{c[0]} << 32 | c[1]) >> 11;  // 53 bits
    return static_cast<double>(bits) * 0x1p-53;
}

Sampler::Sampler(const Sampling& sampling) : sampling_(sampling) { sampling.validate(); }

void Sampler::add_prompt(std::span<const std::int32_t> tokens) {
    if (!sampling_.penalizes()) return;
    for (const std::int32_t token : tokens) seen_.try_emplace(token);
}

void Sampler::add(std::int32_t token) {
    if (sampling_.penalizes()) ++seen_[token];
}

std::int32_t Sampler::sample(std::span<const float> logits, std::uint64_t step) {
    const auto likelier = [](const Candidate& a, const Candidate& b) {
        return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
    };
    candidates_.clear();
    bool valid = !logits.empty();
    for (std::size_t i = 0; i < logits.size(); ++i) {
        valid = valid && !std::isnan(logits[i]);
        candidates_.push_back({logits[i], static_cast<std::int32_t>(i)});
    }
    for (const auto& [token, times] : seen_) {
        if (token < 0 || static_cast<std::size_t>(token) >= candidates_.size()) continue;
        float& logit = candidates_[static_cast<std::size_t>(token)].logit;
        double lower = logit > 0 ? logit / sampling_.repetition : logit * sampling_.repetition;
        lower -= sampling_.frequency * static_cast<double>(times);
        if (times > 0) lower -= sampling_.presence;
        logit = static_cast<float>(lower);
    }
    float highest = -INFINITY;
    for (const Candidate& each : candidates_) highest = std::max(highest, each.logit);
    if (!valid || !std::isfinite(highest)) {
        throw error(ErrorKind::value,
                    {.call = "sample",
                     .argument = "logits",
                     .expected = "finite numbers",
                     .got = valid ? "none, or an infinite one" : "none, or a NaN",
                     .fix = "check the model's weights, or use a dtype with a larger range"});
    }
    if (sampling_.temperature == 0)
        return std::min_element(candidates_.begin(), candidates_.end(), likelier)->id;

    const auto top_k = static_cast<std::size_t>(sampling_.top_k);
    if (top_k != 0 && top_k < candidates_.size()) {
        std::nth_element(candidates_.begin(), candidates_.begin() + sampling_.top_k - 1, candidates_.end(),
                         likelier);
        candidates_.resize(top_k);
    }
    // A limit by p needs the order of likelihood, as far down as p reaches; otherwise any order will do.
    const auto weight = [&](const Candidate& c) {
        return std::exp((static_cast<double>(c.logit) - highest) / sampling_.temperature);
    };
    const auto weigh = [&] {  // the candidates that are left; gives the sum
        weights_.clear();
        double sum = 0;
        for (const Candidate& c : candidates_) {
            weights_.push_back(weight(c));
            sum += weights_.back();
        }
        return sum;
    };
    double total = weigh();
    if (sampling_.top_p < 1) {
        const auto less_likely = [&](const Candidate& a, const Candidate& b) { return likelier(b, a); };
        const double enough = sampling_.top_p * total;
        auto end = candidates_.end();
        std::make_heap(candidates_.begin(), end, less_likely);
        // The most likely ones gather at the back, the first of them last.
        double reached = 0;
        while (end != candidates_.begin() && (end == candidates_.end() || reached < enough)) {
            std::pop_heap(candidates_.begin(), end--, less_likely);
            reached += weight(*end);
        }
        std::reverse(end, candidates_.end());
        candidates_.erase(candidates_.begin(), end);
        total = weigh();
    }
    if (sampling_.min_p > 0) {  // the likeliest weighs 1
        const auto end =
            std::stable_partition(candidates_.begin(), candidates_.end(),
                                  [&](const Candidate& c) { return weight(c) >= sampling_.min_p; });
        candidates_.erase(end, candidates_.end());
        total = weigh();
    }
    double left = uniform(sampling_.seed, step) * total;
    std::size_t kept = candidates_.size();
    for (std::size_t i = 0; i < kept; ++i) {
        left -= weights_[i];
        if (left < 0) return candidates_[i].id;
    }
    // Rounding left a rest: the last that can be chosen at all.
    while (kept > 1 && weights_[kept - 1] == 0) --kept;
    return candidates_[kept - 1].id;
}

}  // namespace gpk::llm
