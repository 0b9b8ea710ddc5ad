// LlamaConfig: the sizes and constants of a Llama model, from config.json or GGUF metadata.
#pragma once

#include <cstdint>
#include <string>

#include "io/gguf.hpp"
#include "io/json.hpp"

namespace gpk::llm {

enum class RopeScaling { none, linear, llama3 };

struct RopeConfig {
    double theta = 10000;
    RopeScaling scaling = RopeScaling::none;
    double factor = 1;           // linear, llama3
    double low_freq_factor = 1;  // llama3, these three
    double high_freq_factor = 4;
    double original_max_positions = 8192;
};

struct LlamaConfig {
    std::int64_t vocab_size = 0;  // rows of the embedding
    std::int64_t num_tokens = 0;  // ids that the tokenizer knows, at most vocab_size: the rest is padding
    std::int64_t hidden_size = 0;
    std::int64_t intermediate_size = 0;
    std::int64_t num_layers = 0;
    std::int64_t num_heads = 0;
    std::int64_t num_kv_heads = 0;
    std::int64_t head_dim = 0;
    std::int64_t max_positions = 0;  // that the model was trained for
    double rms_norm_eps = 1e-6;
    RopeConfig rope;
    bool attention_bias = false;
    bool mlp_bias = false;
    bool tie_word_embeddings = false;

    // Throws Error (file), naming `what` and the field, for sizes that make no model.
    void validate(const std::string& what) const;

    // A Hugging Face config.json (its keys before and after transformers 5). `what` begins messages.
    static LlamaConfig from_json(const io::Json& json, const std::string& what);
    // GGUF's "llama.*" metadata; embedding rows and tying come from the tensors that are there.
    static LlamaConfig from_gguf(const io::Gguf& file);
};

// The rotation frequencies of a head, float32 [head_dim / 2], in the arithmetic of transformers.
std::vector<float> rope_frequencies(const LlamaConfig& config);

}  // namespace gpk::llm
