// Batch: goes on with several texts at once, of any lengths, that come and go.
//
//     Batch batch(model);                          // a model of several slots
//     const auto id = batch.add(prompt, {.max_tokens = 100});
//     for (const BatchToken& each : batch.step()) ...
//
// Each step gives every text under way its next token. A text's tokens are those that it would have alone.
#pragma once

#include <deque>
#include <vector>

#include "llm/generator.hpp"

namespace gpk::llm {

struct BatchToken {
    std::int64_t text = 0;    // as add() numbered it
    std::int32_t token = -1;  // -1 where a stop token ended the text
    FinishReason finish_reason = FinishReason::none;
    std::optional<TokenLogprobs> logprobs = {};  // where its options ask for them
};

class Batch {
   public:
    // `model` must outlive this, and have no other user meanwhile.
    explicit Batch(Model& model);

    // Queues a text; it begins at the first step with a free slot. Throws Error (value), changing nothing,
    // where prompt and max_tokens do not fit a slot's context, a token is not in the vocabulary, or the
    // choice is none.
    std::int64_t add(std::span<const std::int32_t> prompt, const GenerationOptions& options);
    // Ends a text, waiting or under way, without a further token. False where there is none of that number.
    bool cancel(std::int64_t text);

    // The next token of each text under way, in the order of add(); empty where there is none. Waits for it;
    // the step after it was queued before it came. What it throws, for want of memory say, loses
    // nothing: the next call tries again.
    std::vector<BatchToken> step();

    std::int64_t active() const noexcept;  // texts in slots
    std::int64_t waiting() const noexcept { return static_cast<std::int64_t>(waiting_.size()); }

   private:
    struct Text {
        std::int64_t id = -1;
        std::vector<std::int32_t> prompt = {};  // what the slot's context is to begin with; empty once it has
        std::vector<std::int32_t> tokens = {};  // of a text that slides: what the context holds
        GenerationOptions options = {};
        std::int64_t generated = 0;
        std::int64_t length = 0;  // of the context, at which its next token is chosen
        bool began = false;
    };

    void begin_texts();
    void await() const;
    void go_on();
    void run_ahead();
    BatchToken next_of(std::int64_t slot);

    Model& model_;
    std::vector<Text> slots_;  // id -1: free
    std::deque<Text> waiting_;
    std::int64_t next_id_ = 0;
};

}  // namespace gpk::llm
