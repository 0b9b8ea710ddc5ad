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
        text.length = model_.length(slot);
        if (text.options.slide) text.tokens = text.prompt;
        text.prompt.clear();
    }
}

BatchToken Batch::next_of(std::int64_t slot) {
    Text& text = slots_[static_cast<std::size_t>(slot)];
    const std::int64_t length = text.length;
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
    ++text.length;
    if (next.finish_reason != FinishReason::none) {
        model_.truncate(0, slot);
        text = {};
    }
    return next;
}

// Queues the step that some text's next token comes from, if it is not.
void Batch::go_on() {
    const auto lacks = [&](const Text& text) {
        return text.id >= 0 && text.prompt.empty() && model_.length(&text - slots_.data()) < text.length;
    };
    if (std::any_of(slots_.begin(), slots_.end(), lacks)) model_.decode();
}

// Queues the step after it, too, so that the device does not wait for whoever takes the tokens. A text that
// turns out to have ended has taken part for nothing.
void Batch::run_ahead() {
    bool any = false;
    for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
        const Text& text = slots_[slot];
        if (text.id < 0) continue;
        const std::int64_t held = model_.length(static_cast<std::int64_t>(slot));
        if (held != text.length || held == model_.max_length()) return;
        any = any || text.generated + 1 != text.options.max_tokens;
    }
    if (any) model_.decode();
}

// Waits for the tokens of all texts, so that what is wrong with one is known before another's is taken.
void Batch::await() const {
    for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
        const Text& text = slots_[slot];
        if (text.id < 0) continue;
        try {
            model_.chosen_after(text.length, static_cast<std::int64_t>(slot));
        } catch (const Error& reason) {
            throw Error(reason.kind(), str("text ", text.id, ": ", reason.what()));
        }
    }
}

std::vector<BatchToken> Batch::step() {
    refuse_capture("batch", model_);
    go_on();
    begin_texts();
    // The tokens that are there can be had whatever comes: the next call says what is wrong.
    const auto try_to = [&](void (Batch::*queue)()) {
        try {
            (this->*queue)();
        } catch (const Error&) {
        }
    };
    try_to(&Batch::run_ahead);
    await();
    std::vector<BatchToken> tokens;
    for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
        if (slots_[slot].id >= 0) tokens.push_back(next_of(static_cast<std::int64_t>(slot)));
    }
    try_to(&Batch::go_on);
    std::sort(tokens.begin(), tokens.end(),
              [](const BatchToken& a, const BatchToken& b) { return a.text < b.text; });
    return tokens;
}

}  // namespace gpk::llm
