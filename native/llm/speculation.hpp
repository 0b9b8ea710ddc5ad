// Speculator: goes on with a text several tokens at a time where they can be guessed. The text is the one
// that plain greedy steps give: every guess is checked by the model (llm/verifier.hpp).
//
//     Speculator speculator(model, {.strategy = Strategy::ngram}, text);
//     speculator.go_on(most);  // model.length() grows by 1 to `most`, as by decode()
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "llm/verifier.hpp"

namespace gpk::llm {

enum class Strategy : std::uint8_t {
    none,
    ngram,         // what followed the text's last tokens where they stood before (prompt lookup)
    early_layers,  // the model's first layers, norm and head (Elhoushi et al. 2024, arXiv:2404.16710,
                   // untrained)
    jacobi,        // what the pass before made of its own guesses (Santilli et al. 2023, arXiv:2305.10427)
    draft_model,   // a smaller model with the same tokens (Leviathan et al. 2023, arXiv:2211.17192)
};

struct Speculation {
    Strategy strategy = Strategy::none;
    std::int64_t guesses = 0;  // of a pass, at most Verifier::kMostRows - 1; 0: as the strategy has it
    std::int64_t layers = 0;   // of early_layers; 0: a quarter of them
    std::shared_ptr<Model> draft = {};  // of draft_model; nobody else uses it meanwhile
};

struct SpeculationStats {
    std::int64_t passes = 0;    // that checked guesses
    std::int64_t steps = 0;     // plain ones: nothing was guessed, or two logits were close
    std::int64_t guessed = 0;   // tokens
    std::int64_t accepted = 0;  // of these

    SpeculationStats operator+(const SpeculationStats& o) const {
        return {passes + o.passes, steps + o.steps, guessed + o.guessed, accepted + o.accepted};
    }
};

// Throws Error (value) for another name.
Strategy strategy_from_name(std::string_view name);

// Throws Error (value) for numbers that are out of range.
void check_speculation(const char* call, const Model& model, const Speculation& speculation);

class Speculator {
   public:
    // `text`: all that the context holds and the token that comes next. Throws Error (value) for numbers that
    // are out of range, and (unsupported) for a model of several slots.
    Speculator(Model& model, const Speculation& speculation, std::span<const std::int32_t> text);

    // Appends 1 to `most` tokens to the context, as so many decode() would; waits. What it throws changes
    // nothing.
    void go_on(std::int64_t most);

    const SpeculationStats& stats() const noexcept { return stats_; }

    // For the table of strategies: tokens that may follow the text, at most so many.
    std::vector<std::int32_t> look_up(std::int64_t most);
    std::vector<std::int32_t> ask_draft(std::int64_t most);

   private:
    Verifier::Pass next_pass(std::int64_t most, std::vector<std::int32_t>& guesses);
    void take_chosen();

    Model& model_;
    Speculation speculation_;
    std::vector<std::int32_t> text_;     // the context and the token that comes next
    std::vector<std::int32_t> drafted_;  // what the draft model's context holds
    bool began_ = false;
    // Where in the text look_up() last read, as far as the text has come since; 0: nowhere.
    std::size_t beside_ = 0;
    int misses_ = 0;
    SpeculationStats stats_;
};

}  // namespace gpk::llm
