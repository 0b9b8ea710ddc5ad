// Verifier: one forward pass of a model of one slot over the text's last token and several guesses of what
// follows. Each guess that is what the model itself chooses, greedily, saves a step; nothing else changes.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "llm/model.hpp"

namespace gpk::llm {

class Verifier {
   public:
    static constexpr std::int64_t kMostRows = 8;

    // Where a pass has its guesses from.
    enum class Guesses : std::uint8_t {
        given,  // the caller
        kept,   // what the pass before made of its guesses that were not accepted; at first those given
        early_layers,  // the model's first layers, one token after the other, before the pass
    };
    struct Pass {
        Guesses guesses = Guesses::given;
        std::int64_t rows = 0;    // 1 and the guesses; at most kMostRows, and what the context has room for
        std::int64_t layers = 0;  // of early_layers
        auto operator<=>(const Pass&) const = default;
    };

    // Error (unsupported) for a model of several slots. `model` must outlive this.
    explicit Verifier(Model& model);
    ~Verifier();
    Verifier(const Verifier&) = delete;
    Verifier& operator=(const Verifier&) = delete;

    // The rows of the smallest pass that has room for so many, of those that graphs are kept for.
    static std::int64_t rows_for(std::int64_t rows);

    struct Result {
        std::int64_t moved = 0;  // by how many tokens the context is longer: their chosen_after() are known
        bool close = false;      // two logits of the row that follows are so close that only a step can tell
    };
    // Waits for the pass. `last` is the text's last token, which the context does not hold; `guesses`: what
    // is given, fewer where there are not as many. What it throws changes nothing.
    Result run(const Pass& pass, std::int32_t last, std::span<const std::int32_t> guesses);

    // A row's kernels choose the token that a step's choose where the largest logit leads by so many
    // deviations of the logits; 0 where they have the same bits. From measurement: see docs/generation.md.
    static double margin(const Model& model);

   private:
    void queue(const Pass& pass);

    Model& model_;
    Array logits_;           // float32 [kMostRows, vocab]
    Array draft_logits_;     // float32 [1, vocab]
    Array counting_, each_;  // int32 [kMostRows]: 0, 1, ...; where the rows stand
    Array draft_position_;   // int32 [1]: of a step of early layers
    Array best_, ticket_;
    double margin_;
    PinnedBlock accepted_;
    std::shared_ptr<Event> done_;
    StepGraphs<Pass> graphs_;
};

}  // namespace gpk::llm
