// Model: one text's worth of a language model: shared weights, a key/value cache of fixed length, and the
// position in it. Not for several threads at once.
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
    Device& device() const noexcept { return weights_->embedding.device(); }
    std::int64_t length() const noexcept { return length_; }  // tokens in the cache
    std::int64_t max_length() const noexcept { return max_length_; }
    std::size_t cache_bytes() const noexcept { return keys_.nbytes() + values_.nbytes(); }

    // Each appends to the cache, and throws Error (value), changing nothing, where it has no room or a
    // token is not in the vocabulary. The logits, float32 [vocab], are the last token's; they hold until
    // the next call.
    Array prefill(std::span<const std::int32_t> tokens);
    Array decode();  // appends greedy()'s token, without waiting for it
    Array decode(std::int32_t token);
    // The same as prefill with the logits of every token: [tokens, vocab], the caller's to keep.
    Array score(std::span<const std::int32_t> tokens);

    // The largest of the last logits, among the config's num_tokens; waits for it.
    std::int32_t greedy() const;
    // The same of when the cache held `length` tokens, while later steps may still run: for the last kAhead
    // steps and the current one.
    std::int32_t greedy_after(std::int64_t length) const;
    static constexpr std::int64_t kAhead = 3;

    // Forgets the tokens from `length` on.
    void truncate(std::int64_t length);

   private:
    // What lies between the layers, for up to so many tokens at once.
    struct Buffers {
        Buffers(Device& device, const ModelConfig& config, DType dtype, std::int64_t tokens);
        Array ids, hidden, normed, qkv, attended, gate_up, activated, delta;
    };

    // A rotation's frequencies, in device memory, and what its cosines and sines are multiplied by.
    struct Rotation {
        Array inv_freq;
        double factor;
    };

    void check_tokens(const char* call, std::span<const std::int32_t> tokens) const;
    // `length`: tokens in the cache before these; nothing where only the device knows (in a replayed step).
    void forward(const Buffers& buffers, std::optional<std::int64_t> length);
    void embed(const Buffers& buffers, std::optional<std::int64_t> length);
    void attend(const Buffers& buffers, std::size_t layer, std::optional<std::int64_t> length);
    void mlp(const Buffers& buffers, const ModelLayer& layer);
    void norm(const Norm& norm, const Array& x, const Array* residual, const Array& out) const;
    void head(const Array& normed, const Array& logits);
    void finish(std::int64_t tokens);
    void step();
    void mark();
    Array run_prompt(const char* call, std::span<const std::int32_t> tokens, bool all_logits);

    std::shared_ptr<const ModelWeights> weights_;
    std::int64_t max_length_;
    std::int64_t length_ = 0;
    Array keys_, values_;  // [layers, 1, kv_heads, max_length, head_dim]
    std::vector<Array> layer_keys_, layer_values_;
    std::vector<Rotation> rotations_;
    Array position_;          // int32 [1]: length_, in device memory
    Array logits_;            // [1, vocab] float32
    Buffers decode_buffers_;  // of one token; its ids hold the next step's token
    PinnedBlock log_;         // int32 [max_length + 1]: the token chosen at each length
    std::span<std::int32_t> log_tokens_;
    std::array<std::shared_ptr<Event>, kAhead + 1> chosen_;  // at lengths, by turns
    bool use_graph_;
    bool warm_ = false;  // every kernel of the step was launched once
    std::shared_ptr<Graph> graph_;
};

}  // namespace gpk::llm
