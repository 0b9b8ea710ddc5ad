// Chooser: chooses the next tokens of a model's slots, on the device. What differs between the slots is in
// device memory, so one captured step serves them whatever it is.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "array/array.hpp"
#include "llm/sampling.hpp"
#include "memory/pinned.hpp"

namespace gpk::llm {

inline constexpr std::int64_t kMostLogprobs = 20;

// How a text's tokens are chosen, and what is told of them.
struct Choice {
    Sampling sampling = {};
    // Of how many of the likeliest tokens the log-probabilities are kept beside the chosen one's, at most
    // kMostLogprobs; nothing: of none. They are the model's own: before penalties and temperature.
    std::optional<std::int64_t> logprobs = {};

    void validate() const;  // throws Error (value)
};

// Natural logarithms of softmax probabilities.
struct TokenLogprobs {
    float chosen = 0;
    std::vector<std::pair<std::int32_t, float>> best;  // the likeliest first
};

class Chooser {
   public:
    Chooser(Device& device, std::int64_t slots, std::int64_t num_tokens);

    // From now on; a text begins, of which only `prompt` is there.
    void begin(std::int64_t slot, const Choice& choice, std::span<const std::int32_t> prompt);

    // The text's further draws are others than those at the same lengths before.
    void reseed(std::int64_t slot);

    // What a choice for so many of the slots needs: it decides which kernels run.
    struct Mode {
        bool draws = false, penalizes = false, logprobs = false;
        auto operator<=>(const Mode&) const = default;
    };
    const Choice& choice(std::int64_t slot) const { return choices_[static_cast<std::size_t>(slot)]; }
    void add_to(Mode& mode, std::int64_t slot) const;

    // Where the host reads tokens: int32 [slots, places] in pinned memory.
    struct Log {
        std::int32_t* tokens;
        std::int64_t places;
    };
    // Of slots from first_slot on, from their logits [rows, vocab], after so many tokens each: the token goes
    // to ids [rows], positions [rows] move on, and the log has the token at the new position.
    void choose(const Array& logits, std::int64_t first_slot, std::int64_t tokens, const Array& ids,
                const Array& positions, const Log& log, const Mode& mode);

    // Those of the token chosen when a slot held `length` tokens, which the host has waited for; kept for
    // kEntries further choices.
    TokenLogprobs logprobs(std::int64_t slot, std::int64_t length) const;
    static constexpr std::int64_t kEntries = 8;
    // Gives back what the work writes to, once that is done.
    void release(const std::vector<std::shared_ptr<Event>>& after);

   private:
    void allocate();

    Device& device_;
    std::int64_t num_tokens_;
    std::vector<Choice> choices_;  // of the slots
    // Of the slots; allocated with the first text that is not greedy, or for the last two that has penalties.
    Array temperature_, top_k_, top_p_, min_p_, seed_, repetition_, presence_, frequency_;
    Array counts_, prompt_;  // [slots, num_tokens]
    // Allocated with the first text that wants them: [slots, kEntries, kMostLogprobs + 1] and [..,
    // kMostLogprobs].
    PinnedBlock logprobs_, logprob_ids_;
};

}  // namespace gpk::llm
