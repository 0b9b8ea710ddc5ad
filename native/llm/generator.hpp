// Generator: goes on with a text, one token a call.
//
//     Generator generator(model, prompt, {.max_tokens = 100, .stop_tokens = {2}});
//     while (auto token = generator.next()) ...
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "llm/model.hpp"
#include "llm/sampler.hpp"

namespace gpk::llm {

struct GenerationOptions {
    std::int64_t max_tokens = 0;  // 0: until a stop token, or until the context is full
    std::vector<std::int32_t> stop_tokens = {};
    Sampling sampling = {};
};

enum class FinishReason {
    none,     // there is more
    stop,     // a stop token came, which next() did not return
    length,   // max_tokens
    context,  // the context is full
};

struct GenerationStats {
    std::int64_t prompt_tokens = 0;
    std::int64_t generated_tokens = 0;  // that next() returned
    double prefill_seconds = 0;         // from the start until the first token was known
    double decode_seconds = 0;          // from then until the last was known
    // Tokens after the first, a second; 0 where there are none.
    double tokens_per_second() const noexcept {
        return generated_tokens > 1 && decode_seconds > 0
                   ? static_cast<double>(generated_tokens - 1) / decode_seconds
                   : 0;
    }
};

// Throws Error (value), naming `call`, where prompt and new tokens do not fit beside the `taken` ones of a
// context, or a token is not in the vocabulary.
void check_fits(const char* call, const Model& model, std::int64_t taken,
                std::span<const std::int32_t> prompt, std::int64_t max_tokens);

class Generator {
   public:
    // Appends `prompt` to what the model's context holds already. Throws Error (value), before anything
    // runs, where the prompt, or the prompt and max_tokens, do not fit into it. `model` must outlive this.
    Generator(Model& model, std::span<const std::int32_t> prompt, const GenerationOptions& options);

    // Waits for the next token; the step after it runs already. Nothing at the end. When it has ended, the
    // context holds the prompt and the tokens returned, but for the last one after `length`; before that it
    // may hold a token that was not returned yet.
    std::optional<std::int32_t> next();

    FinishReason finish_reason() const noexcept { return reason_; }
    const GenerationStats& stats() const noexcept { return stats_; }

   private:
    std::int32_t choose(std::int64_t length);
    void run_ahead(std::int64_t length);

    Model& model_;
    GenerationOptions options_;
    Sampler sampler_;
    std::int64_t first_length_ = 0;  // of the context before the first new token
    Array logits_;
    std::vector<float> host_logits_;
    FinishReason reason_ = FinishReason::none;
    GenerationStats stats_;
    std::chrono::steady_clock::time_point
        start_;  // when the prefill began, then when the first token was known
};

}  // namespace gpk::llm
