#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "base/error.hpp"
#include "io/dequantize.hpp"
#include "llm/architectures.hpp"
#include "llm/config.hpp"

namespace gpk::llm {

namespace {

struct RopeType {
    std::string_view name;
    ops::RopeVariant variant;
};
// Llama 3.1's comes as the tensor rope_freqs.weight.
constexpr RopeType kRopeTypes[] = {
    {"none", ops::RopeVariant::plain},
    {"linear", ops::RopeVariant::linear},
    {"yarn", ops::RopeVariant::yarn},
    {"longrope", ops::RopeVariant::longrope},
};
// What yarn can have beside: the only value that is understood.
constexpr std::pair<const char*, double> kYarnUnderstood[] = {
    {"scaling.yarn_ext_factor", 1}, {"scaling.yarn_attn_factor", 1}, {"scaling.yarn_log_multiplier", 0}};
constexpr const char* kLongRopeFactors[] = {"rope_factors_short.weight", "rope_factors_long.weight"};

ops::RopeVariant variant_of(const io::Gguf& file, const std::string& key) {
    const std::string type = file.string(key, "none");
    const auto found = std::find_if(std::begin(kRopeTypes), std::end(kRopeTypes),
                                    [&](const RopeType& each) { return each.name == type; });
    if (found != std::end(kRopeTypes)) return found->variant;
    throw error(ErrorKind::unsupported, {.call = file.path(),
                                         .argument = key,
                                         .expected = "none, linear, yarn or longrope",
                                         .got = io::json_quoted(type)});
}

std::vector<double> factors_of(const io::Gguf& file, const char* name) {
    const std::vector<float> values = io::read_float32(file.tensor(name));
    return {values.begin(), values.end()};
}

// As llama.cpp applies it (ggml_rope_ext). `trained`: the context that the file names.
ops::RopeSettings rope_from(const io::Gguf& file, const std::string& prefix, std::int64_t head_dim,
                            std::int64_t trained) {
    const auto key = [&](const char* name) { return prefix + "rope." + name; };
    ops::RopeSettings rope;
    rope.d = file.integer(key("dimension_count"), head_dim);
    rope.theta = file.number(key("freq_base"), rope.theta);
    rope.variant = variant_of(file, key("scaling.type"));
    const bool has_factors = file.find(kLongRopeFactors[0]) != nullptr;
    if (has_factors && rope.variant != ops::RopeVariant::longrope) {
        throw error(ErrorKind::unsupported,
                    {.call = file.path(),
                     .argument = key("scaling.type"),
                     .expected = str("longrope, for ", kLongRopeFactors[0], " is there"),
                     .got = "another"});
    }
    if (rope.variant == ops::RopeVariant::plain) return rope;
    rope.original_max_positions =
        file.number(key("scaling.original_context_length"), static_cast<double>(trained));
    if (rope.variant == ops::RopeVariant::longrope) {
        rope.short_factor = factors_of(file, kLongRopeFactors[0]);
        rope.long_factor = factors_of(file, kLongRopeFactors[1]);
        rope.attention_factor = file.number(key("scaling.attn_factor"), 1);
        return rope;
    }
    rope.factor = file.number(key("scaling.factor"));
    if (rope.variant == ops::RopeVariant::yarn) {
        for (const auto& [name, understood] : kYarnUnderstood) {
            if (const double got = file.number(key(name), understood); got != understood) {
                throw error(ErrorKind::unsupported, {.call = file.path(),
                                                     .argument = key(name),
                                                     .expected = str(understood),
                                                     .got = str(got)});
            }
        }
        rope.beta_fast = file.number(key("scaling.yarn_beta_fast"), rope.beta_fast);
        rope.beta_slow = file.number(key("scaling.yarn_beta_slow"), rope.beta_slow);
        // Beside what yarn itself makes of the factor.
        const double own = rope.factor > 1 ? 1 + 0.1 * std::log(rope.factor) : 1;
        rope.attention_factor = own * file.number(key("scaling.attn_factor"), 1);
    }
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
    c.ropes = {rope_from(file, prefix, c.head_dim, c.max_positions)};
    c.qkv_bias = file.find("blk.0.attn_q.bias") != nullptr;
    c.out_bias = file.find("blk.0.attn_output.bias") != nullptr;
    c.mlp_bias = file.find("blk.0.ffn_gate.bias") != nullptr;
    c.tie_word_embeddings = file.find("output.weight") == nullptr;
    if (c.num_layers >= 1 && c.num_layers <= 1 << 14) c.layers.resize(static_cast<std::size_t>(c.num_layers));
    c.validate(what);
    return c;
}

}  // namespace gpk::llm
