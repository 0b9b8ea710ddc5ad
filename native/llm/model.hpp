// Model: texts of a language model: shared weights, and slots, each with a key/value cache of fixed length
// and the position in it. Not for several threads at once.
//
//     auto weights = ModelWeights::load(device, ModelConfig::from_gguf(file), file, DType::bfloat16);
//     Model model(weights, {});
//     Array logits = model.prefill(prompt);    // float32 [vocab], of the last token
//     std::int32_t token = model.greedy();     // waits
//     logits = model.decode();                 // one step, from that token, queued at once
//
// llm/generator.hpp has the loop.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "array/array.hpp"
#include "llm/weights.hpp"
#include "memory/pinned.hpp"
#include "runtime/graph.hpp"

namespace gpk::llm {

struct ModelOptions {
    // Tokens that the cache holds; 0: what the model was trained for, at most kDefaultMaxLength.
    std::int64_t max_length = 0;
    // Captures the decode step once and replays it.
    bool use_graph = true;
    std::int64_t slots = 1;  // texts that decode() goes on with at once
    // Of the cache: the weights' own, or float8_e4m3. That halves it, and what a step reads of it.
    std::optional<DType> cache_dtype = {};
};
inline constexpr std::int64_t kDefaultMaxLength = 8192;

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
    std::size_t cache_bytes() const noexcept { return keys_.nbytes() + values_.nbytes(); }

    // Each appends to the cache, and throws Error (value), changing nothing, where it has no room or a
    // token is not in the vocabulary. The logits, float32 [vocab], are the last token's; they hold until
    // the next call.
    Array prefill(std::span<const std::int32_t> tokens, std::int64_t slot = 0);
    // One step of every slot that holds tokens: appends its greedy() token, without waiting for it. The
    // logits are [slots, vocab], of the slots up to the last of these.
    Array decode();
    Array decode(std::int32_t token);  // of slot 0 instead of its greedy() one
    // The same as prefill with the logits of every token: [tokens, vocab], the caller's to keep.
    Array score(std::span<const std::int32_t> tokens, std::int64_t slot = 0);

    // The largest of a slot's last logits, among the config's num_tokens; waits for it.
    std::int32_t greedy(std::int64_t slot = 0) const;
    // The same of when the cache held `length` tokens, while later steps may still run: for the last kAhead
    // steps and the current one.
    std::int32_t greedy_after(std::int64_t length, std::int64_t slot = 0) const;
    static constexpr std::int64_t kAhead = 3;

    // Throws Error (value), naming `call` and `argument`, for a token that is not in the vocabulary.
    void check_vocabulary(const char* call, const char* argument, std::span<const std::int32_t> tokens) const;

    // Forgets the tokens from `length` on.
    void truncate(std::int64_t length, std::int64_t slot = 0);

   private:
    // What lies between the layers, for up to so many tokens at once.
    struct Buffers {
        Buffers(Device& device, const ModelConfig& config, DType dtype, std::int64_t tokens);
        Buffers first(std::int64_t tokens) const;
        Array ids, hidden, normed, qkv, attended, gate_up, activated, delta;

       private:
        Buffers() = default;
    };
    // Where a prompt's tokens go: after `length` that the slot holds. A step has one token for each of the
    // first slots instead, and only the device knows where they stand.
    struct Place {
        std::int64_t slot, length;
    };

    // A rotation's frequencies, in device memory, and what its cosines and sines are multiplied by.
    struct Rotation {
        Array inv_freq;
        double factor;
    };

    void check_slot(const char* call, std::int64_t slot) const;
    void check_tokens(const char* call, std::span<const std::int32_t> tokens, std::int64_t slot) const;
    void set_position(std::int64_t slot, std::int64_t position) const;
    void forward(const Buffers& buffers, std::optional<Place> prompt);
    void embed(const Buffers& buffers, std::optional<Place> prompt);
    void attend(const Buffers& buffers, std::size_t layer, std::optional<Place> prompt);
    void mlp(const Buffers& buffers, const ModelLayer& layer);
    void mix_experts(const Buffers& buffers, const Experts& experts);
    void norm(const Norm& norm, const Array& x, const Array* residual, const Array& out) const;
    void head(const Array& normed, const Array& logits);
    void choose(std::int64_t first_slot, std::int64_t slots, std::int64_t tokens);
    void step(std::int64_t slots);
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
    Buffers decode_buffers_;  // of one token for each slot; its ids hold the next step's
    PinnedBlock log_;         // int32 [slots, max_length + 1]: the token chosen at each length
    std::array<std::shared_ptr<Event>, kAhead + 1> chosen_;  // after choices, by turns
    std::int64_t choices_ = 0;
    bool use_graph_;
    // Of steps of so many slots; nothing before its kernels were launched once.
    std::map<std::int64_t, std::shared_ptr<Graph>> graphs_;
};

}  // namespace gpk::llm
