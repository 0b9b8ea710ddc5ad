#include "llm/chooser.hpp"

#include <algorithm>
#include <cfloat>
#include <utility>

#include "base/error.hpp"
#include "ops/creation.hpp"
#include "ops/elementwise.hpp"
#include "ops/next_token.hpp"
#include "ops/sampling.hpp"
#include "ops/token_logprobs.hpp"

namespace gpk::llm {

namespace {

// float32 of an option that must stay a finite number above 0 where it is one.
float positive(double value) {
    return value > 0 ? static_cast<float>(std::clamp(value, double{FLT_MIN}, double{FLT_MAX})) : 0.0f;
}

template <class T>
void put(const Array& of_slots, std::int64_t slot, T value) {
    of_slots.slice(0, slot, 1, 1).copy_from_host(&value);
}

}  // namespace

void Choice::validate() const {
    sampling.validate();
    if (!logprobs || (*logprobs >= 0 && *logprobs <= kMostLogprobs)) return;
    throw error(ErrorKind::value, {.call = "generate",
                                   .argument = "logprobs",
                                   .expected = str("0 to ", kMostLogprobs),
                                   .got = str(*logprobs)});
}

Chooser::Chooser(Device& device, std::int64_t slots, std::int64_t num_tokens)
    : device_(device), num_tokens_(num_tokens), choices_(static_cast<std::size_t>(slots)) {}

void Chooser::release(const std::vector<std::shared_ptr<Event>>& after) {
    PinnedPool& pool = PinnedPool::of(device_);
    for (PinnedBlock* block : {&logprobs_, &logprob_ids_}) pool.release(std::exchange(*block, {}), after);
}

// Greedy ones for all slots.
void Chooser::allocate() {
    const Dims slots{static_cast<std::int64_t>(choices_.size())};
    min_p_ = ops::zeros(device_, slots, DType::float32);
    presence_ = ops::zeros(device_, slots, DType::float32);
    frequency_ = ops::zeros(device_, slots, DType::float32);
    top_k_ = ops::zeros(device_, slots, DType::int32);
    seed_ = ops::zeros(device_, slots, DType::uint64);
    top_p_ = ops::full(device_, slots, 1.0, DType::float32);
    repetition_ = ops::full(device_, slots, 1.0, DType::float32);
    temperature_ = ops::zeros(device_, slots, DType::float32);  // the last: it says that all are there
}

void Chooser::begin(std::int64_t slot, const Choice& choice, std::span<const std::int32_t> prompt) {
    Choice& known = choices_[static_cast<std::size_t>(slot)];
    const Sampling& s = choice.sampling;
    if (!s.greedy() && !temperature_.defined()) allocate();
    if (choice.logprobs && logprobs_.data == nullptr) {
        PinnedPool& pool = PinnedPool::of(device_);
        const std::size_t entries = choices_.size() * kEntries;
        logprob_ids_ = pool.allocate(entries * kMostLogprobs * sizeof(std::int32_t));
        logprobs_ = pool.allocate(entries * (kMostLogprobs + 1) * sizeof(float));
    }
    if (s.penalizes()) {
        const std::int64_t slots = static_cast<std::int64_t>(choices_.size());
        if (!prompt_.defined()) {
            counts_ = ops::zeros(device_, {slots, num_tokens_}, DType::int32);
            prompt_ = ops::zeros(device_, {slots, num_tokens_}, DType::bool_);
        }
        std::vector<std::uint8_t> seen(static_cast<std::size_t>(num_tokens_));
        for (const std::int32_t token : prompt) {
            if (token >= 0 && token < num_tokens_) seen[static_cast<std::size_t>(token)] = 1;
        }
        prompt_.slice(0, slot, 1, 1).copy_from_host(seen.data());
        ops::assign(counts_.slice(0, slot, 1, 1), 0);
    }
    // Before the first one that is not greedy there are no options, and greedy ones are all alike.
    if (!(s.greedy() && known.sampling.greedy()) && !(s == known.sampling)) {
        put(temperature_, slot, positive(s.temperature));
        put(top_k_, slot, static_cast<std::int32_t>(std::min<std::int64_t>(s.top_k, num_tokens_)));
        put(top_p_, slot, positive(s.top_p));
        put(min_p_, slot, static_cast<float>(s.min_p));
        put(seed_, slot, s.seed);
        put(repetition_, slot, static_cast<float>(s.repetition));
        put(presence_, slot, static_cast<float>(s.presence));
        put(frequency_, slot, static_cast<float>(s.frequency));
    }
    known = choice;
}

void Chooser::reseed(std::int64_t slot) {
    Sampling& sampling = choices_[static_cast<std::size_t>(slot)].sampling;
    if (!sampling.draws()) return;
    sampling.seed += 0x9E3779B97F4A7C15u;
    put(seed_, slot, sampling.seed);
}

void Chooser::add_to(Mode& mode, std::int64_t slot) const {
    const Choice& of = choice(slot);
    mode.draws = mode.draws || !of.sampling.greedy();
    mode.penalizes = mode.penalizes || of.sampling.penalizes();
    mode.logprobs = mode.logprobs || of.logprobs.has_value();
}

void Chooser::choose(const Array& logits, std::int64_t first_slot, std::int64_t tokens, const Array& ids,
                     const Array& positions, const Log& log, const Mode& mode) {
    const std::int64_t rows = logits.shape()[0];
    const auto of = [&](const Array& of_slots) { return of_slots.slice(0, first_slot, 1, rows); };
    // What needs memory comes first: once the positions have moved nothing may fail.
    Array best;
    if (mode.logprobs) {
        best = ops::top_k(logits.slice(1, 0, 1, num_tokens_), std::min(kMostLogprobs, num_tokens_)).second;
    }
    std::int32_t* const place = log.tokens + first_slot * log.places;
    if (mode.draws) {
        Array chances = logits.slice(1, 0, 1, num_tokens_), counts;
        if (mode.penalizes) {
            const Array prompt = of(prompt_), repetition = of(repetition_), presence = of(presence_),
                        frequency = of(frequency_);
            counts = of(counts_);
            chances = ops::penalize(chances, {.counts = &counts,
                                              .prompt = &prompt,
                                              .repetition = {1.0, &repetition},
                                              .presence = {0.0, &presence},
                                              .frequency = {0.0, &frequency}});
        }
        const Array temperature = of(temperature_), top_k = of(top_k_), top_p = of(top_p_),
                    min_p = of(min_p_), seed = of(seed_);
        // The number of the draw is the position that the token comes to, however the tokens before it came.
        const Array drawn = ops::sample(chances, {.temperature = {1.0, &temperature},
                                                  .top_k = {0, &top_k},
                                                  .top_p = {1.0, &top_p},
                                                  .min_p = {0.0, &min_p},
                                                  .seed = {0, &seed},
                                                  .step = static_cast<std::uint64_t>(tokens),
                                                  .position = &positions,
                                                  .counts = counts.defined() ? &counts : nullptr});
        ops::next_token(logits, num_tokens_, tokens, ids, positions, place, log.places, &drawn);
    } else {
        ops::next_token(logits, num_tokens_, tokens, ids, positions, place, log.places);
    }
    if (!mode.logprobs) return;
    const ops::LogprobsLog entries{
        .logprobs = reinterpret_cast<float*>(logprobs_.data) + first_slot * kEntries * (kMostLogprobs + 1),
        .ids = reinterpret_cast<std::int32_t*>(logprob_ids_.data) + first_slot * kEntries * kMostLogprobs,
        .entries = kEntries,
        .most = kMostLogprobs};
    ops::token_logprobs(logits, num_tokens_, ids, positions, best, entries);
}

TokenLogprobs Chooser::logprobs(std::int64_t slot, std::int64_t length) const {
    const std::int64_t entry = slot * kEntries + length % kEntries;
    const auto* values = reinterpret_cast<const float*>(logprobs_.data) + entry * (kMostLogprobs + 1);
    const auto* ids = reinterpret_cast<const std::int32_t*>(logprob_ids_.data) + entry * kMostLogprobs;
    TokenLogprobs out{.chosen = values[0], .best = {}};
    const std::int64_t wanted = std::min(choice(slot).logprobs.value_or(0), num_tokens_);
    for (std::int64_t i = 0; i < wanted; ++i) out.best.emplace_back(ids[i], values[i + 1]);
    return out;
}

}  // namespace gpk::llm
