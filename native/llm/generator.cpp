#include "llm/generator.hpp"

#include <algorithm>
#include <chrono>

#include "base/error.hpp"

namespace gpk::llm {

namespace {

using Clock = std::chrono::steady_clock;

void check_room(const Model& model, std::span<const std::int32_t> prompt, std::int64_t max_tokens) {
    if (max_tokens < 0) {
        throw error(ErrorKind::value, {.call = "generate",
                                       .argument = "max_tokens",
                                       .expected = "a number >= 0",
                                       .got = str(max_tokens)});
    }
    // The last token generated needs no place: nothing comes after it.
    const auto prompt_tokens = static_cast<std::int64_t>(prompt.size());
    const std::int64_t room = model.max_length() - model.length() - prompt_tokens;
    if (room >= 0 && max_tokens - 1 <= room) return;
    throw error(
        ErrorKind::value,
        {.call = "generate",
         .argument = room < 0 ? "prompt" : "max_tokens",
         .expected = str("a prompt and new tokens that fit into the context of ", model.max_length(),
                         " tokens, of which ", model.length(), " are taken"),
         .got = str(prompt_tokens, " and ", max_tokens),
         .fix = "shorten the prompt, ask for fewer tokens or load the model with a larger max_length"});
}

}  // namespace

Generator::Generator(Model& model, std::span<const std::int32_t> prompt, const GenerationOptions& options)
    : model_(model), options_(options), sampler_(options.sampling) {
    check_room(model, prompt, options.max_tokens);
    host_logits_.resize(static_cast<std::size_t>(model.config().vocab_size));
    start_ = Clock::now();
    logits_ = model.prefill(prompt);
    stats_.prompt_tokens = static_cast<std::int64_t>(prompt.size());
}

std::int32_t Generator::choose() {
    if (options_.sampling.greedy()) return model_.greedy();
    logits_.copy_to_host(host_logits_.data());
    const auto known = static_cast<std::size_t>(model_.config().num_tokens);
    return sampler_.sample(std::span(host_logits_).first(known),
                           static_cast<std::uint64_t>(stats_.generated_tokens));
}

std::optional<std::int32_t> Generator::next() {
    if (reason_ != FinishReason::none) return std::nullopt;
    const std::int32_t token = choose();
    const auto now = Clock::now();
    const double seconds = std::chrono::duration<double>(now - start_).count();
    if (stats_.generated_tokens == 0) {
        stats_.prefill_seconds = seconds;
        start_ = now;
    } else {
        stats_.decode_seconds = seconds;
    }
    std::optional<std::int32_t> result = token;
    if (std::find(options_.stop_tokens.begin(), options_.stop_tokens.end(), token) !=
        options_.stop_tokens.end()) {
        reason_ = FinishReason::stop;
        result.reset();
    } else {
        ++stats_.generated_tokens;
        if (stats_.generated_tokens == options_.max_tokens) {
            reason_ = FinishReason::length;
        } else if (model_.length() == model_.max_length()) {
            reason_ = FinishReason::context;
        } else {
            // The next step runs while the caller works on this token.
            logits_ = options_.sampling.greedy() ? model_.decode() : model_.decode(token);
        }
    }
    return result;
}

}  // namespace gpk::llm
