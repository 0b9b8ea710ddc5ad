// Generator: goes on with a text, one token a call.
//
//     Generator generator(model, prompt, {.max_tokens = 100, .stop_tokens = {2}});
//     while (auto token = generator.next()) ...
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "llm/model.hpp"
#include "llm/speculation.hpp"

namespace gpk::llm {

struct GenerationOptions {
    std::int64_t max_tokens = 0;  // 0: until a stop token, or until the context is full
    std::vector<std::int32_t> stop_tokens = {};
    Choice choice = {};
    Speculation speculation = {};  // with greedy choices alone, and without log-probabilities
    // When the context is full: the later half of its tokens is computed anew, from position 0 on, and the
    // text goes on after these. Else it ends there.
    bool slide = false;
};

enum class FinishReason {
    none,       // there is more
    stop,       // a stop token came, which next() did not return
    length,     // max_tokens
    context,    // the context is full
    cancelled,  // by cancel()
};

struct GenerationStats {
    std::int64_t prompt_tokens = 0;
    std::int64_t reused_tokens = 0;     // of these, that the context held already
    std::int64_t generated_tokens = 0;  // that next() returned
    double prefill_seconds = 0;         // from the start until the first token was known
    double decode_seconds = 0;          // from then until the last was known
    SpeculationStats speculation = {};
    // Tokens after the first, a second; 0 where there are none.
    double tokens_per_second() const noexcept {
        return generated_tokens > 1 && decode_seconds > 0
                   ? static_cast<double>(generated_tokens - 1) / decode_seconds
                   : 0;
    }
};

// Throws Error, naming `call`: (value) where prompt and new tokens do not fit into the model's context, a
// token is not in the vocabulary or an option is out of range; (unsupported) for options that exclude each
// other.
void check_options(const char* call, const Model& model, std::span<const std::int32_t> prompt,
                   const GenerationOptions& options);

// Throws Error (unsupported) in a capture: its work does not run, and the host waits for each token.
void refuse_capture(const char* call, const Model& model);

class Generator {
   public:
    // `prompt`: the text so far, of which the model's context may hold the first tokens already, but not all.
    // Throws what check_options() throws, before anything runs. `model` must outlive this.
    Generator(Model& model, std::span<const std::int32_t> prompt, const GenerationOptions& options);

    // Steps that run or are queued beyond the one whose token is waited for; one more of them while the
    // caller has the token. More gain little, and are for nothing where a stop token comes: see
    // docs/generation.md.
    static constexpr std::int64_t kStepsAhead = 1;
    static_assert(kStepsAhead <= Model::kAhead);

    // Waits for the next token; the steps after it run already. Nothing at the end. When it has ended, the
    // context holds the prompt and the tokens returned, but for the last one after `length`; before that it
    // may hold tokens that were not returned yet. Once slid() it holds the last of these tokens.
    std::optional<std::int32_t> next();

    // Ends the text at the next call of next(), or, in another thread, after the one under way.
    void cancel() noexcept { cancelled_ = true; }

    // Of the token that next() returned last, where the options ask for them.
    const TokenLogprobs& logprobs() const noexcept { return logprobs_; }
    bool slid() const noexcept { return slid_; }
    FinishReason finish_reason() const noexcept { return reason_; }
    const GenerationStats& stats() const noexcept { return stats_; }

   private:
    std::int64_t furthest() const;
    void run_ahead(std::int64_t length);
    void speculate();
    void slide();

    Model& model_;
    GenerationOptions options_;
    std::vector<std::int32_t>
        text_;  // that the context holds when the next token is chosen; where it is wanted
    std::int64_t next_length_ = 0;            // of the context, when the next token is chosen
    std::unique_ptr<Speculator> speculator_;  // made with the first token
    TokenLogprobs logprobs_;
    std::atomic<bool> cancelled_ = false;
    bool slid_ = false;
    SpeculationStats before_slide_;
    FinishReason reason_ = FinishReason::none;
    GenerationStats stats_;
    std::chrono::steady_clock::time_point
        start_;  // when the prefill began, then when the first token was known
};

}  // namespace gpk::llm
