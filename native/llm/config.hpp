// ModelConfig: the sizes and constants of a decoder-only transformer, from config.json or GGUF metadata.
// What differs between families stands in the table of llm/architectures.cpp.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "io/gguf.hpp"
#include "io/json.hpp"
#include "ops/rope_frequencies.hpp"

namespace gpk::llm {

struct Architecture;

enum class Activation : std::uint8_t { silu, gelu, gelu_tanh };

// What a layer's attention sees, and how it turns.
struct LayerConfig {
    std::int64_t window = 0;  // tokens that a query sees, its own among them; 0: all before it
    std::size_t rope = 0;     // of ModelConfig::ropes
    bool sparse = false;      // a mixture of experts instead of one MLP
};

// A mixture of experts: each token goes to the few that its router's scores choose.
struct ExpertsConfig {
    std::int64_t count = 0;  // 0: none
    std::int64_t of_token = 0;
    std::int64_t size = 0;   // of an expert's hidden layer
    bool normalized = true;  // the chosen ones' weights sum to 1
};

struct ModelConfig {
    const Architecture* architecture = nullptr;
    std::int64_t vocab_size = 0;  // rows of the embedding
    std::int64_t num_tokens = 0;  // ids that the tokenizer knows, at most vocab_size: the rest is padding
    std::int64_t hidden_size = 0;
    std::int64_t intermediate_size = 0;
    std::int64_t num_layers = 0;
    std::int64_t num_heads = 0;
    std::int64_t num_kv_heads = 0;
    std::int64_t head_dim = 0;
    std::int64_t max_positions = 0;  // that the model was trained for
    double norm_eps = 1e-6;
    Activation activation = Activation::silu;
    bool qkv_bias = false;
    bool out_bias = false;
    bool mlp_bias = false;
    bool tie_word_embeddings = false;
    ExpertsConfig experts;
    double attention_scale = 0;  // of the products of queries and keys
    double attention_soft_cap = 0;
    double logits_soft_cap = 0;
    std::vector<ops::RopeSettings> ropes = {};  // none where positions are learned
    std::vector<LayerConfig> layers = {};

    // The longest context that may be asked for: dynamic rotations stretch to more than was trained.
    std::int64_t longest_context() const;

    // Throws Error (file), naming `what` and the field, for sizes that make no model.
    void validate(const std::string& what) const;

    // A Hugging Face config.json (its keys before and after transformers 5). `what` begins messages.
    static ModelConfig from_json(const io::Json& json, const std::string& what);
    // GGUF metadata; embedding rows, biases and tying come from the tensors that are there.
    static ModelConfig from_gguf(const io::Gguf& file);
};

// The table of `config.ropes[index]` for a context of `max_length` tokens.
ops::RopeFrequencies rope_frequencies(const ModelConfig& config, std::size_t index, std::int64_t max_length);

}  // namespace gpk::llm
