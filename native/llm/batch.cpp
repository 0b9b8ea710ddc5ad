#include "llm/batch.hpp"

#include <algorithm>

#include "base/error.hpp"

namespace gpk::llm {

Batch::Batch(Model& model) : model_(model), slots_(static_cast<std::size_t>(model.slots())) {
    for (std::int64_t slot = 0; slot < model.slots(); ++slot) model_.truncate(0, slot);
}

std::int64_t Batch::add(std::span<const std::int32_t> prompt, const GenerationOptions& options) {
    if (!options.sampling.greedy()) {
        throw error(ErrorKind::unsupported, {.call = "batch",
                                             .argument = "temperature",
                                             .expected = "0, since a batch chooses greedily",
                                             .got = str(options.sampling.temperature)});
    }
    check_fits("batch", model_, 0, prompt, options.max_tokens);
    waiting_.push_back({next_id_, {prompt.begin(), prompt.end()}, options});
    return next_id_++;
}

bool Batch::cancel(std::int64_t text) {
    const auto is_it = [&](const Text& each) { return each.id == text; };
    if (text < 0) return false;
    if (const auto queued = std::find_if(waiting_.begin(), waiting_.end(), is_it); queued != waiting_.end()) {
        waiting_.erase(queued);
        return true;
    }
    const auto found = std::find_if(slots_.begin(), slots_.end(), is_it);
    if (found == slots_.end()) return false;
    model_.truncate(0, found - slots_.begin());
    *found = {};
    return true;
}

std::int64_t Batch::active() const noexcept {
    return std::count_if(slots_.begin(), slots_.end(), [](const Text& each) { return each.id >= 0; });
}

// The first free slots, so that a step has few rows.
void Batch::begin_waiting() {
    for (std::size_t slot = 0; slot < slots_.size() && !waiting_.empty(); ++slot) {
        if (slots_[slot].id >= 0) continue;
        model_.prefill(waiting_.front().prompt, static_cast<std::int64_t>(slot));
        slots_[slot] = std::move(waiting_.front());
        slots_[slot].prompt.clear();
        waiting_.pop_front();
    }
}

BatchToken Batch::next_of(std::int64_t slot) {
    Text& text = slots_[static_cast<std::size_t>(slot)];
    const std::int64_t length = model_.length(slot);
    BatchToken next{.text = text.id, .token = model_.greedy_after(length, slot)};
    const auto& stops = text.options.stop_tokens;
    if (std::find(stops.begin(), stops.end(), next.token) != stops.end()) {
        next.token = -1;
        next.finish_reason = FinishReason::stop;
    } else if (++text.generated == text.options.max_tokens) {
        next.finish_reason = FinishReason::length;
    } else if (length == model_.max_length()) {
        next.finish_reason = FinishReason::context;
    }
    if (next.finish_reason != FinishReason::none) {
        model_.truncate(0, slot);
        text = {};
    }
    return next;
}

void Batch::go_on() {
    if (behind_ && active() > 0) model_.decode();
    behind_ = false;
}

std::vector<BatchToken> Batch::step() {
    go_on();
    begin_waiting();
    std::vector<BatchToken> tokens;
    for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
        if (slots_[slot].id >= 0) tokens.push_back(next_of(static_cast<std::int64_t>(slot)));
    }
    behind_ = true;
    try {
        go_on();
    } catch (const Error&) {
        // The tokens are taken already: the next call says what is wrong.
    }
    std::sort(tokens.begin(), tokens.end(),
              [](const BatchToken& a, const BatchToken& b) { return a.text < b.text; });
    return tokens;
}

}  // namespace gpk::llm
