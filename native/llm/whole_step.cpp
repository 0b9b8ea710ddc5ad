#include "llm/whole_step.hpp"

#include <algorithm>

#include "llm/activation.hpp"

namespace gpk::llm {

namespace {

bool serves(const ModelWeights& weights) {
    const ModelConfig& c = weights.config;
    const Architecture& a = *c.architecture;
    // Codes in one format; which ones, and that all of a model's matrices are alike, ops::DecodeStep asks
    // for.
    const auto whole = [](const Linear& linear) {
        return linear.codes.empty() ? linear.weight.defined() : linear.codes.size() == 1;
    };
    return a.norm == NormKind::rms && a.gated && !a.post_norms && !a.scaled_embedding &&
           !a.learned_positions && c.ropes.size() == 1 && c.attention_soft_cap == 0 &&
           c.logits_soft_cap == 0 && whole(weights.lm_head) && !weights.lm_head.bias.defined() &&
           std::all_of(weights.layers.begin(), weights.layers.end(), [&](const ModelLayer& layer) {
               return !layer.experts.router.defined() && whole(layer.qkv) && whole(layer.out) &&
                      whole(layer.gate_up) && whole(layer.down);
           });
}

std::optional<ops::QuantizedWeight> codes_of(const Linear& linear) {
    if (linear.codes.empty()) return std::nullopt;
    return linear.codes[0];
}

}  // namespace

std::unique_ptr<ops::DecodeStep> whole_step(const ModelWeights& weights, const std::vector<Array>& keys,
                                            const std::vector<Array>& values, const ops::Rope* rope) {
    if (rope == nullptr || !serves(weights)) return nullptr;
    const ModelConfig& c = weights.config;
    ops::DecodeStepModel model;
    model.embedding = weights.embedding;
    model.embedding_codes = weights.embedding_codes;
    model.final_norm = weights.final_norm.weight;
    model.head = weights.lm_head.weight;
    model.head_codes = codes_of(weights.lm_head);
    for (std::size_t i = 0; i < weights.layers.size(); ++i) {
        const ModelLayer& layer = weights.layers[i];
        const std::int64_t window = c.layers[i].window;
        model.layers.push_back({.attention_norm = layer.attention_norm.weight,
                                .qkv = layer.qkv.weight,
                                .qkv_bias = layer.qkv.bias,
                                .q_norm = layer.q_norm,
                                .k_norm = layer.k_norm,
                                .out = layer.out.weight,
                                .out_bias = layer.out.bias,
                                .mlp_norm = layer.mlp_norm.weight,
                                .gate_up = layer.gate_up.weight,
                                .gate_bias = layer.gate_up.bias,
                                .down = layer.down.weight,
                                .down_bias = layer.down.bias,
                                .keys = keys[i],
                                .values = values[i],
                                .qkv_codes = codes_of(layer.qkv),
                                .out_codes = codes_of(layer.out),
                                .gate_up_codes = codes_of(layer.gate_up),
                                .down_codes = codes_of(layer.down),
                                .left = window > 0 ? window - 1 : std::int64_t{INT32_MAX}});
    }
    model.inv_freq = rope->inv_freq;
    model.rope_factor = rope->factor;
    model.heads = c.num_heads;
    model.kv_heads = c.num_kv_heads;
    model.head_dim = c.head_dim;
    model.intermediate = c.intermediate_size;
    model.num_tokens = c.num_tokens;
    model.norm_eps = c.norm_eps;
    model.scale = c.attention_scale;
    model.glu = activation_ops(c).gated;
    return ops::DecodeStep::make(std::move(model));
}

}  // namespace gpk::llm
