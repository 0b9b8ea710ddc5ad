#include <algorithm>
#include <cmath>

#include "base/error.hpp"
#include "llm/architectures.hpp"
#include "llm/config.hpp"

namespace gpk::llm {

namespace {

ops::RopeSettings rope_from(const io::Gguf& file, const std::string& prefix, std::int64_t head_dim) {
    ops::RopeSettings rope;
    rope.d = file.integer(prefix + "rope.dimension_count", head_dim);
    rope.theta = file.number(prefix + "rope.freq_base", rope.theta);
    const std::string key = prefix + "rope.scaling.type", type = file.string(key, "none");
    if (type == "none") return rope;
    if (type != "linear") {  // Llama 3.1's comes as the tensor rope_freqs.weight
        throw error(ErrorKind::unsupported, {.call = file.path(),
                                             .argument = key,
                                             .expected = "none or linear",
                                             .got = io::json_quoted(type)});
    }
    rope.variant = ops::RopeVariant::linear;
    rope.factor = file.number(prefix + "rope.scaling.factor");
    return rope;
}

}  // namespace

ModelConfig ModelConfig::from_gguf(const io::Gguf& file) {
    const std::string& what = file.path();
    const std::string& name = file.string("general.architecture");
    ModelConfig c;
    c.architecture = &architecture_of_gguf(what, name);
    const std::string prefix = name + ".";
    const io::TensorView& embedding = file.tensor("token_embd.weight");
    c.vocab_size = embedding.shape.empty() ? 0 : embedding.shape[0];
    c.num_tokens = c.vocab_size;
    if (const io::GgufValue* tokens = file.find_metadata("tokenizer.ggml.tokens")) {
        if (const auto* array = std::get_if<std::shared_ptr<const io::GgufArray>>(&tokens->value)) {
            c.num_tokens = std::min(c.vocab_size, static_cast<std::int64_t>((*array)->count));
        }
    }
    c.hidden_size = file.integer(prefix + "embedding_length");
    c.intermediate_size = file.integer(prefix + "feed_forward_length");
    c.num_layers = file.integer(prefix + "block_count");
    c.num_heads = file.integer(prefix + "attention.head_count");
    c.num_kv_heads = file.integer(prefix + "attention.head_count_kv", c.num_heads);
    const std::int64_t width = c.num_heads > 0 ? c.hidden_size / c.num_heads : 0;
    c.head_dim = file.integer(prefix + "attention.key_length", width);
    if (const std::int64_t d = file.integer(prefix + "attention.value_length", c.head_dim); d != c.head_dim) {
        throw error(ErrorKind::unsupported, {.call = what,
                                             .argument = prefix + "attention.value_length",
                                             .expected = str(c.head_dim),
                                             .got = str(d)});
    }
    c.max_positions = file.integer(prefix + "context_length");
    c.norm_eps = file.number(prefix + "attention.layer_norm_rms_epsilon");
    c.activation = c.architecture->activation;
    c.attention_scale = 1 / std::sqrt(static_cast<double>(c.head_dim));
    c.ropes = {rope_from(file, prefix, c.head_dim)};
    c.qkv_bias = file.find("blk.0.attn_q.bias") != nullptr;
    c.out_bias = file.find("blk.0.attn_output.bias") != nullptr;
    c.mlp_bias = file.find("blk.0.ffn_gate.bias") != nullptr;
    c.tie_word_embeddings = file.find("output.weight") == nullptr;
    if (c.num_layers >= 1 && c.num_layers <= 1 << 14) c.layers.resize(static_cast<std::size_t>(c.num_layers));
    c.validate(what);
    return c;
}

}  // namespace gpk::llm
