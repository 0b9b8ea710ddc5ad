#include "llm/generator.hpp"

#include <algorithm>
#include <chrono>

#include "base/error.hpp"

namespace gpk::llm {

namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

void check_fits(const char* call, const Model& model, std::int64_t taken,
                std::span<const std::int32_t> prompt, std::int64_t max_tokens) {
    if (max_tokens < 0) {
        throw error(
            ErrorKind::value,
            {.call = call, .argument = "max_tokens", .expected = "a number >= 0", .got = str(max_tokens)});
    }
    if (prompt.empty()) {
        throw error(ErrorKind::value,
                    {.call = call, .argument = "prompt", .expected = "at least one token", .got = "none"});
    }
    model.check_vocabulary(call, "prompt", prompt);
    // The last token generated needs no place: nothing comes after it.
    const auto prompt_tokens = static_cast<std::int64_t>(prompt.size());
    const std::int64_t room = model.max_length() - taken - prompt_tokens;
    if (room >= 0 && max_tokens - 1 <= room) return;
    throw error(
        ErrorKind::value,
        {.call = call,
         .argument = room < 0 ? "prompt" : "max_tokens",
         .expected = str("a prompt and new tokens that fit into the context of ", model.max_length(),
                         " tokens, of which ", taken, " are taken"),
         .got = str(prompt_tokens, " and ", max_tokens),
         .fix = "shorten the prompt, ask for fewer tokens or load the model with a larger max_length"});
}

Generator::Generator(Model& model, std::span<const std::int32_t> prompt, const GenerationOptions& options)
    : model_(model), options_(options), sampler_(options.sampling) {
    check_fits("generate", model, model.length(), prompt, options.max_tokens);
    host_logits_.resize(static_cast<std::size_t>(model.config().vocab_size));
    start_ = Clock::now();
    sampler_.add_prompt(prompt);
    logits_ = model.prefill(prompt);
    first_length_ = model.length();
    stats_.prompt_tokens = static_cast<std::int64_t>(prompt.size());
}

std::int32_t Generator::choose(std::int64_t length) {
    if (options_.sampling.greedy()) return model_.greedy_after(length);
    logits_.copy_to_host(host_logits_.data());
    const auto known = static_cast<std::size_t>(model_.config().num_tokens);
    return sampler_.sample(std::span(host_logits_).first(known),
                           static_cast<std::uint64_t>(stats_.generated_tokens));
}

// Queues steps up to the one after `length` tokens. A greedy choice needs nothing of the host.
void Generator::run_ahead(std::int64_t length) {
    std::int64_t wanted = std::min(length + 1, model_.max_length());
    if (options_.max_tokens > 0) wanted = std::min(wanted, first_length_ + options_.max_tokens - 1);
    while (model_.length() < wanted) model_.decode();
}

std::optional<std::int32_t> Generator::next() {
    if (reason_ != FinishReason::none) return std::nullopt;
    const std::int64_t length = first_length_ + stats_.generated_tokens;
    const bool greedy = options_.sampling.greedy();
    if (greedy) run_ahead(length);
    const std::int32_t token = choose(length);
    const auto now = Clock::now();
    const double seconds = std::chrono::duration<double>(now - start_).count();
    if (stats_.generated_tokens == 0) {
        stats_.prefill_seconds = seconds;
        start_ = now;
    } else {
        stats_.decode_seconds = seconds;
    }
    if (std::find(options_.stop_tokens.begin(), options_.stop_tokens.end(), token) !=
        options_.stop_tokens.end()) {
        reason_ = FinishReason::stop;
        model_.truncate(length);
        return std::nullopt;
    }
    const bool last = stats_.generated_tokens + 1 == options_.max_tokens,
               full = length == model_.max_length();
    // What can fail comes first: then this token is still to come at the next call.
    if (!last && !full) {
        if (greedy) {
            run_ahead(length + 1);  // while the caller works on this token
        } else {
            logits_ = model_.decode(token);
        }
    }
    sampler_.add(token);
    ++stats_.generated_tokens;
    if (last) {
        reason_ = FinishReason::length;
    } else if (full) {
        reason_ = FinishReason::context;
    }
    return token;
}

}  // namespace gpk::llm
