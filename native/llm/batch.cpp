#include "llm/batch.hpp"

#include <algorithm>

#include "base/error.hpp"

namespace gpk::llm {

Batch::Batch(Model& model) : model_(model), slots_(static_cast<std::size_t>(model.slots())) {
    for (std::int64_t slot = 0; slot < model.slots(); ++slot) model_.truncate(0, slot);
}

std::int64_t Batch::add(std::span<const std::int32_t> prompt, const GenerationOptions& options) {
    check_options("batch", model_, prompt, options);
    if (options.speculation.strategy != Strategy::none) {
        throw error(ErrorKind::unsupported,
                    {.call = "batch",
                     .argument = "speculate",
                     .expected = "none, since the texts of a batch share their passes",
                     .got = "a strategy"});
    }
    waiting_.push_back({.id = next_id_, .prompt = {prompt.begin(), prompt.end()}, .options = options});
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
void Batch::begin_texts() {
    for (std::int64_t slot = 0; slot < model_.slots(); ++slot) {
        Text& text = slots_[static_cast<std::size_t>(slot)];
        if (text.id < 0 && !waiting_.empty()) {
            text = std::move(waiting_.front());
            waiting_.pop_front();
        }
        if (text.prompt.empty()) continue;
        if (!text.began) model_.choose_by(text.options.choice, text.prompt, slot);
        model_.prefill(text.prompt, slot);
        text.began = true;
        if (text.options.slide) text.tokens = text.prompt;
        text.prompt.clear();
    }
}

BatchToken Batch::next_of(std::int64_t slot) {
    Text& text = slots_[static_cast<std::size_t>(slot)];
    const std::int64_t length = model_.length(slot);
    BatchToken next{.text = text.id, .token = model_.chosen_after(length, slot)};
    if (text.options.choice.logprobs) next.logprobs = model_.logprobs_after(length, slot);
    const auto& stops = text.options.stop_tokens;
    if (std::find(stops.begin(), stops.end(), next.token) != stops.end()) {
        next.token = -1;
        next.finish_reason = FinishReason::stop;
    } else if (++text.generated == text.options.max_tokens) {
        next.finish_reason = FinishReason::length;
    } else if (length == model_.max_length() && !text.options.slide) {
        next.finish_reason = FinishReason::context;
    }
    if (text.options.slide) text.tokens.push_back(next.token);
    if (next.finish_reason == FinishReason::none && length == model_.max_length()) {
        const std::int64_t kept = std::max<std::int64_t>(length / 2, 1);
        text.prompt.assign(text.tokens.end() - kept, text.tokens.end());
        model_.reseed(slot);
        model_.truncate(0, slot);
    }
    if (next.finish_reason != FinishReason::none) {
        model_.truncate(0, slot);
        text = {};
    }
    return next;
}

void Batch::go_on() {
    bool any = false;
    for (std::int64_t slot = 0; slot < model_.slots(); ++slot) any = any || model_.length(slot) > 0;
    if (behind_ && any) model_.decode();
    behind_ = false;
}

// Waits for the tokens of all texts, so that what is wrong with one is known before another's is taken.
void Batch::await() const {
    for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
        if (slots_[slot].id < 0) continue;
        const auto at = static_cast<std::int64_t>(slot);
        try {
            model_.chosen_after(model_.length(at), at);
        } catch (const Error& reason) {
            throw Error(reason.kind(), str("text ", slots_[slot].id, ": ", reason.what()));
        }
    }
}

std::vector<BatchToken> Batch::step() {
    refuse_capture("batch", model_);
    go_on();
    begin_texts();
    await();
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
