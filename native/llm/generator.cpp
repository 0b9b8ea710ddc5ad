#include "llm/generator.hpp"

#include <algorithm>
#include <chrono>

#include "base/error.hpp"

namespace gpk::llm {

namespace {

using Clock = std::chrono::steady_clock;

void refuse_with_speculation(const char* call, const GenerationOptions& options) {
    const bool greedy = options.choice.sampling.greedy();
    if (options.speculation.strategy == Strategy::none || (greedy && !options.choice.logprobs)) return;
    throw error(ErrorKind::unsupported,
                {.call = call,
                 .argument = "speculate",
                 .expected = "greedy choices (temperature 0, no penalties) without logprobs",
                 .got = greedy ? "logprobs" : "a temperature or penalties",
                 .fix = "leave out speculate"});
}

}  // namespace

void check_options(const char* call, const Model& model, std::span<const std::int32_t> prompt,
                   const GenerationOptions& options) {
    options.choice.validate();
    refuse_with_speculation(call, options);
    check_speculation(call, model, options.speculation);
    if (options.max_tokens < 0) {
        throw error(ErrorKind::value, {.call = call,
                                       .argument = "max_tokens",
                                       .expected = "a number >= 0",
                                       .got = str(options.max_tokens)});
    }
    if (prompt.empty()) {
        throw error(ErrorKind::value,
                    {.call = call, .argument = "prompt", .expected = "at least one token", .got = "none"});
    }
    model.check_vocabulary(call, "prompt", prompt);
    // The last token generated needs no place: nothing comes after it.
    const auto prompt_tokens = static_cast<std::int64_t>(prompt.size());
    const std::int64_t room = model.max_length() - prompt_tokens;
    if (room >= 0 && (options.slide || options.max_tokens - 1 <= room)) return;
    throw error(ErrorKind::value, {.call = call,
                                   .argument = room < 0 ? "prompt" : "max_tokens",
                                   .expected = str("a prompt and new tokens that fit into the context of ",
                                                   model.max_length(), " tokens"),
                                   .got = str(prompt_tokens, " and ", options.max_tokens),
                                   .fix = str("shorten the prompt, ",
                                              room < 0 ? "" : "ask for fewer tokens or on_full='slide' ",
                                              "or load the model with a larger max_length")});
}

void refuse_capture(const char* call, const Model& model) {
    if (current_stream(model.device())->capture() == nullptr) return;
    throw error(ErrorKind::unsupported,
                {.call = call, .got = "a call during a graph capture", .fix = "end the capture first"});
}

Generator::Generator(Model& model, std::span<const std::int32_t> prompt, const GenerationOptions& options)
    : model_(model), options_(options) {
    check_options("generate", model, prompt, options);
    refuse_capture("generate", model);
    const std::int64_t held = model.length(), tokens = static_cast<std::int64_t>(prompt.size());
    if (held >= tokens) {
        throw error(ErrorKind::value, {.call = "generate",
                                       .argument = "prompt",
                                       .expected = str("more tokens than the ", held, " of the context"),
                                       .got = str(tokens)});
    }
    start_ = Clock::now();
    model.choose_by(options.choice, prompt);
    model.prefill(prompt.subspan(static_cast<std::size_t>(held)));
    next_length_ = tokens;
    if (options.slide || options.speculation.strategy != Strategy::none)
        text_.assign(prompt.begin(), prompt.end());
    stats_.prompt_tokens = tokens;
    stats_.reused_tokens = held;
}

// The most that the context may hold: nothing comes after the last token.
std::int64_t Generator::furthest() const {
    const std::int64_t full = model_.max_length();
    if (options_.max_tokens == 0) return full;
    const std::int64_t more = options_.max_tokens - stats_.generated_tokens - 1;  // any number: it may slide
    return more < full - next_length_ ? next_length_ + more : full;
}

// Queues the steps after the one that gives the context `length` tokens. They need nothing of the host.
void Generator::run_ahead(std::int64_t length) {
    const std::int64_t wanted = std::min(length + kStepsAhead, furthest());
    while (model_.length() < wanted) model_.decode();
}

// Has the next token known, and maybe some after it.
void Generator::speculate() {
    if (model_.length() >= next_length_) return;
    if (!speculator_) {
        speculator_ = std::make_unique<Speculator>(model_, options_.speculation, text_);
    }
    speculator_->go_on(furthest() - model_.length());
    stats_.speculation = before_slide_ + speculator_->stats();
}

// The context is full and one more token was returned: the text goes on from the later half of both.
void Generator::slide() {
    const std::int64_t kept = std::max<std::int64_t>(model_.max_length() / 2, 1);
    if (model_.length() > 0) {  // else it failed before, for want of memory say
        text_.erase(text_.begin(), text_.end() - kept);
        model_.reseed();
        model_.truncate(0);
        slid_ = true;
        before_slide_ = stats_.speculation;
        speculator_.reset();
    }
    model_.prefill(text_);
    next_length_ = kept;
}

std::optional<std::int32_t> Generator::next() {
    if (reason_ != FinishReason::none) return std::nullopt;
    refuse_capture("generate", model_);
    if (cancelled_) {
        reason_ = FinishReason::cancelled;
        model_.truncate(std::min(next_length_, model_.length()));
        return std::nullopt;
    }
    if (next_length_ > model_.max_length()) slide();
    const bool speculative = options_.speculation.strategy != Strategy::none;
    if (speculative) {
        speculate();
    } else {
        run_ahead(next_length_);
    }
    const std::int32_t token = model_.chosen_after(next_length_);
    const auto now = Clock::now();
    const double seconds = std::chrono::duration<double>(now - start_).count();
    if (std::find(options_.stop_tokens.begin(), options_.stop_tokens.end(), token) !=
        options_.stop_tokens.end()) {
        reason_ = FinishReason::stop;
        (stats_.generated_tokens == 0 ? stats_.prefill_seconds : stats_.decode_seconds) = seconds;
        model_.truncate(next_length_);
        return std::nullopt;
    }
    const bool last = stats_.generated_tokens + 1 == options_.max_tokens,
               full = next_length_ == model_.max_length();
    // What can fail comes first: then this token is still to come at the next call.
    if (options_.choice.logprobs) logprobs_ = model_.logprobs_after(next_length_);
    if (!last && !full && !speculative) run_ahead(next_length_ + 1);  // while the caller works on this token
    if (!text_.empty()) text_.push_back(token);
    ++next_length_;
    if (stats_.generated_tokens++ == 0) {
        stats_.prefill_seconds = seconds;
        start_ = now;
    } else {
        stats_.decode_seconds = seconds;
    }
    if (last) {
        reason_ = FinishReason::length;
    } else if (full && !options_.slide) {
        reason_ = FinishReason::context;
    }
    return token;
}

}  // namespace gpk::llm
