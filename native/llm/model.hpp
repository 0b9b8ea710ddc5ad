// Model: texts of a language model: shared weights, and slots, each with a key/value cache of fixed length
// and the position in it. Not for several threads at once.
//
//     auto weights = ModelWeights::load(device, ModelConfig::from_gguf(file), file, DType::bfloat16);
//     Model model(weights, {});
//     Array logits = model.prefill(prompt);    // float32 [vocab], of the last token
//     std::int32_t token = model.chosen();     // waits
//     logits = model.decode();                 // one step, from that token, queued at once
//
// llm/generator.hpp has the loop.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "array/array.hpp"
#include "llm/chooser.hpp"
#include "llm/step_graphs.hpp"
#include "llm/weights.hpp"
#include "llm/whole_step.hpp"
#include "memory/pinned.hpp"

namespace gpk::llm {

struct ModelOptions {
    // Tokens that the cache holds; 0: what the model was trained for, at most kDefaultMaxLength.
    std::int64_t max_length = 0;
    // Captures the decode step once and replays it.
    bool use_graph = true;
    // Steps of one text, or of few, are one launch where a kernel serves the model.
    bool whole_step = true;
    std::int64_t slots = 1;  // texts that decode() goes on with at once
    // Of the cache: the weights' own, or float8_e4m3. That halves it, and what a step reads of it.
    std::optional<DType> cache_dtype = {};
};
inline constexpr std::int64_t kDefaultMaxLength = 8192;

class Verifier;

class Model {
   public:
    Model(std::shared_ptr<const ModelWeights> weights, const ModelOptions& options);
    ~Model();
    Model(const Model&) = delete;
    Model& operator=(const Model&) = delete;

    const ModelConfig& config() const noexcept { return weights_->config; }
    const ModelWeights& weights() const noexcept { return *weights_; }
    const std::shared_ptr<const ModelWeights>& shared_weights() const noexcept { return weights_; }
    Device& device() const noexcept { return weights_->final_norm.weight.device(); }
    std::int64_t slots() const noexcept { return static_cast<std::int64_t>(lengths_.size()); }
    // Tokens in a slot's cache; a slot without any is not part of decode().
    std::int64_t length(std::int64_t slot = 0) const { return lengths_.at(static_cast<std::size_t>(slot)); }
    std::int64_t max_length() const noexcept { return max_length_; }
    DType cache_dtype() const noexcept { return keys_.dtype(); }
    // Of several texts that step in one launch none has more keys: the ops read many keys sooner.
    static constexpr std::int64_t kKeysAtOnce = 2048;
    // Whether a step of so many slots is one launch, on the current stream, as long as texts are now.
    bool steps_at_once(std::int64_t slots = 1) const;
    std::size_t cache_bytes() const noexcept { return keys_.nbytes() + values_.nbytes(); }

    // Each appends to the cache, and throws Error (value), changing nothing, where it has no room or a
    // token is not in the vocabulary. The logits, float32 [vocab], are the last token's; they hold until
    // the next call.
    Array prefill(std::span<const std::int32_t> tokens, std::int64_t slot = 0);
    // One step of every slot that holds tokens: appends its chosen() token, without waiting for it. The
    // logits are [slots, vocab], of the slots up to the last of these.
    Array decode();
    // op_by_op: with the bits of a Verifier's rows, which one launch for all does not have in 16 bits.
    enum class Steps : std::uint8_t { quickest, op_by_op };
    Array decode(Steps how);
    Array decode(std::int32_t token);  // of slot 0 instead of its chosen() one
    // The same as prefill with the logits of every token: [tokens, vocab], the caller's to keep.
    Array score(std::span<const std::int32_t> tokens, std::int64_t slot = 0);

    // How a slot's tokens are chosen from the next call on, among the config's num_tokens: greedily until
    // this is called. `prompt`: what a penalty of repetition finds in the text beside what is chosen.
    void choose_by(const Choice& choice, std::span<const std::int32_t> prompt, std::int64_t slot = 0);
    // Where the text goes on in a context that was emptied: draws at lengths that it had already are others.
    void reseed(std::int64_t slot = 0);
    // The token chosen from a slot's last logits; waits for it. Throws Error (value) where they have a NaN or
    // no finite largest.
    std::int32_t chosen(std::int64_t slot = 0) const;
    // The same of when the cache held `length` tokens, since the last prompt, while later steps may still
    // run: it waits for no step after the kAhead ones that follow.
    std::int32_t chosen_after(std::int64_t length, std::int64_t slot = 0) const;
    // Its log-probabilities, where choose_by asked for them.
    TokenLogprobs logprobs_after(std::int64_t length, std::int64_t slot = 0) const;
    static constexpr std::int64_t kAhead = 3;

    // Throws Error (value), naming `call` and `argument`, for a token that is not in the vocabulary.
    void check_vocabulary(const char* call, const char* argument, std::span<const std::int32_t> tokens) const;

    // Forgets the tokens from `length` on.
    void truncate(std::int64_t length, std::int64_t slot = 0);

    // Passes over several guesses at once; made at the first call. Error (unsupported) for several slots.
    Verifier& verifier();

   private:
    friend class Verifier;

    // What lies between the layers, for up to so many tokens at once.
    struct Buffers {
        Buffers(Device& device, const ModelConfig& config, DType dtype, std::int64_t tokens);
        Buffers rows(std::int64_t first, std::int64_t count) const;
        Array ids, hidden, normed, qkv, attended, gate_up, activated, delta;

       private:
        Buffers() = default;
    };
    // Where the tokens of a slot go: after `length` that it holds. A step has one token for each of the
    // first slots instead, and only the device knows where they stand.
    struct Place {
        std::int64_t slot;
        std::optional<std::int64_t> length;  // nothing: only the device knows, from `position`
        Array position;                      // int32 [1]: of the first token
        Array each = {};                     // int32 [tokens]: of all, where only the device knows
    };

    // A rotation's frequencies, in device memory, and what its cosines and sines are multiplied by.
    struct Rotation {
        Array inv_freq;
        double factor;
    };

    void check_slot(const char* call, std::int64_t slot) const;
    void check_tokens(const char* call, std::span<const std::int32_t> tokens, std::int64_t slot) const;
    void set_position(std::int64_t slot, std::int64_t position) const;
    void forward(const Buffers& buffers, const std::optional<Place>& place, std::size_t layers);
    void embed(const Buffers& buffers, const std::optional<Place>& place);
    void attend(const Buffers& buffers, std::size_t layer, const std::optional<Place>& place);
    void mlp(const Buffers& buffers, std::size_t layer);
    void mix_experts(const Buffers& buffers, const Experts& experts);
    // For few rows, where each launch costs as much as what it reads.
    bool joins_norms(const Buffers& buffers) const {
        constexpr std::int64_t kFewRows = 8;
        return may_join_norms_ && buffers.hidden.shape()[0] <= kFewRows;
    }
    void norm(const Norm& norm, const Array& x, const Array* residual, const Array& out) const;
    void head(const Array& normed, const Array& logits);
    void choose(std::int64_t first_slot, std::int64_t slots, std::int64_t tokens, const Chooser::Mode& mode);
    void step(std::int64_t slots, const Chooser::Mode& mode);
    void step_at_once(std::int64_t slots, const Chooser::Mode& mode);
    void mark();
    std::int64_t step_slots() const;
    Array run_prompt(const char* call, std::span<const std::int32_t> tokens, std::int64_t slot,
                     bool all_logits);

    std::shared_ptr<const ModelWeights> weights_;
    std::int64_t max_length_;
    std::vector<std::int64_t> lengths_;  // of the slots
    Array keys_, values_;                // [layers, slots, kv_heads, max_length, head_dim]
    std::vector<Array> layer_keys_, layer_values_;
    std::vector<Rotation> rotations_;
    Array positions_;         // int32 [slots]: the lengths, in device memory; -1 where there are no tokens
    Array logits_;            // float32 [slots, vocab]
    Buffers decode_buffers_;  // of one token for each slot, or a Verifier's; its ids hold the next step's
    PinnedBlock log_;         // int32 [slots, max_length + 1]: the token chosen at each length
    std::array<std::shared_ptr<Event>, kAhead + 1> chosen_;  // after choices, by turns
    std::int64_t choices_ = 0;
    std::unique_ptr<ops::DecodeStep> whole_step_;  // or null
    bool may_join_norms_;
    bool use_graph_;
    Chooser chooser_;
    StepGraphs<std::pair<std::int64_t, Chooser::Mode>> graphs_;  // of steps of so many slots
    std::unique_ptr<Verifier> verifier_;
};

}  // namespace gpk::llm
