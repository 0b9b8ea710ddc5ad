// A pass through the layers, op by op.

#include <cmath>
#include <optional>

#include "base/float_types.hpp"
#include "llm/activation.hpp"
#include "llm/model.hpp"
#include "ops/attention.hpp"
#include "ops/creation.hpp"
#include "ops/elementwise.hpp"
#include "ops/embedding.hpp"
#include "ops/experts.hpp"
#include "ops/glu.hpp"
#include "ops/grouped_linear.hpp"
#include "ops/matmul.hpp"
#include "ops/norm.hpp"

namespace gpk::llm {

namespace {

void apply(const Linear& linear, const Array& x, const Array& out,
           const ActivationOps* activation = nullptr) {
    const Array* bias = linear.bias.defined() ? &linear.bias : nullptr;
    if (linear.codes.empty()) {
        const GemmActivation following = activation != nullptr ? activation->following : GemmActivation::none;
        ops::linear(x, linear.weight, {.bias = bias, .activation = following}, &out, out.dtype(),
                    {.weight_settled = true});
        return;
    }
    std::int64_t first = 0;
    for (const ops::QuantizedWeight& codes : linear.codes) {
        const Array part = out.slice(1, first, 1, codes.n);
        ops::linear(x, codes, nullptr, out.dtype(), &part);
        first += codes.n;
    }
    if (bias != nullptr) ops::binary(BinaryOp::add, out, ops::astype(*bias, out.dtype()), &out);
    if (activation != nullptr) ops::unary(activation->alone, out, &out);
}

// Of few rows: x normalised, where there is a norm, times the weight, and what it is added to.
void apply_few(const Linear& linear, const Array& x, const Norm* norm, double eps, const Array* residual,
               const Array& out) {
    const Array* bias = linear.bias.defined() ? &linear.bias : nullptr;
    ops::linear(x, linear.weight, {.bias = bias, .residual = residual}, &out, out.dtype(),
                {.norm = norm != nullptr ? &norm->weight : nullptr, .norm_eps = eps, .weight_settled = true});
}

// Columns [first, first + heads * d) of [tokens, ...] as [tokens, heads, d].
Array heads_view(const Array& rows, std::int64_t first, std::int64_t heads, std::int64_t d) {
    return *rows.slice(1, first, 1, heads * d).reshape_view({rows.shape()[0], heads, d});
}

// As it is stored: transformers' embeddings are multiplied by a number of their own dtype.
double rounded(double value, DType dtype) {
    if (dtype == DType::bfloat16) return static_cast<float>(bfloat16(static_cast<float>(value)));
    if (dtype == DType::float16) return static_cast<float>(float16(static_cast<float>(value)));
    return static_cast<float>(value);
}

}  // namespace

void Model::norm(const Norm& norm, const Array& x, const Array* residual, const Array& out) const {
    if (config().architecture->norm == NormKind::layer) {
        ops::layer_norm(x, norm.weight, norm.bias, config().norm_eps, residual, &out);
    } else {
        ops::rms_norm(x, norm.weight, config().norm_eps, residual, &out);
    }
}

// From the ids to `hidden`. `delta` is free until the first layer's attention.
void Model::embed(const Buffers& b, const std::optional<Place>& place) {
    const Architecture& a = *config().architecture;
    if (weights_->embedding_codes) {
        ops::embedding(*weights_->embedding_codes, b.ids, b.hidden.dtype(), &b.hidden);
    } else {
        ops::embedding(weights_->embedding, b.ids, &b.hidden);
    }
    if (a.scaled_embedding) {
        const double scale = std::sqrt(static_cast<double>(config().hidden_size));
        ops::binary(BinaryOp::multiply, b.hidden, rounded(scale, weights_->dtype), &b.hidden);
    }
    if (a.learned_positions) {
        const std::int64_t tokens = b.ids.shape()[0];
        const Array places = !place ? positions_.slice(0, 0, 1, tokens)
                             : place->length
                                 ? ops::arange_integer(device(), *place->length, 1, tokens, DType::int32)
                                 : place->each;
        ops::embedding(weights_->positions, places, &b.delta);
        ops::binary(BinaryOp::add, b.hidden, b.delta, &b.hidden);
    }
}

// From `normed` to `delta`; or, where norms are joined, from `hidden` to `hidden`.
void Model::attend(const Buffers& b, std::size_t index, const std::optional<Place>& place) {
    const ModelConfig& c = config();
    const ModelLayer& layer = weights_->layers[index];
    const LayerConfig& kind = c.layers[index];
    const std::int64_t d = c.head_dim, rows = b.normed.shape()[0];
    // [sequences, tokens, heads, d]: of one sequence, or a token of each.
    const int added = place ? 0 : 1;
    const auto heads_of = [&](std::int64_t first, std::int64_t heads) {
        return heads_view(b.qkv, first * d, heads, d).expand_dims(added);
    };
    const Array q = heads_of(0, c.num_heads), k = heads_of(c.num_heads, c.num_kv_heads);
    const Array v = heads_of(c.num_heads + c.num_kv_heads, c.num_kv_heads);
    const Array attended = b.attended.expand_dims(added);
    const auto taken = [&](const Array& of_slots) {
        return of_slots.slice(0, place ? place->slot : 0, 1, place ? 1 : rows);
    };
    const Array keys = taken(layer_keys_[index]), values = taken(layer_values_[index]);
    const Array positions = place ? place->position : taken(positions_);

    const bool joined = joins_norms(b);
    if (joined) {
        apply_few(layer.qkv, b.hidden, &layer.attention_norm, c.norm_eps, nullptr, b.qkv);
    } else {
        apply(layer.qkv, b.normed, b.qkv);
    }
    std::optional<ops::Rope> rope;
    if (!rotations_.empty()) rope.emplace(rotations_[kind.rope].inv_freq, rotations_[kind.rope].factor);
    const bool normed = layer.q_norm.defined();
    const ops::KvAppendOptions append{.rope = rope ? &*rope : nullptr,
                                      .q = rope || normed ? &q : nullptr,
                                      .q_norm = normed ? &layer.q_norm : nullptr,
                                      .k_norm = normed ? &layer.k_norm : nullptr,
                                      .norm_eps = c.norm_eps};
    const ops::AttentionOptions options{.causal = true,
                                        .scale = c.attention_scale,
                                        .left = kind.window > 0 ? kind.window - 1 : -1,
                                        .soft_cap = c.attention_soft_cap};
    // A text's own step: its sums have the order of those of a pass over several of its tokens.
    const bool step_alone = !place && rows == 1;
    if (!place && append.q != nullptr) {
        ops::append_and_attend(k, v, keys, values, positions, append, options, step_alone, &attended);
    } else if (place && !place->length) {
        ops::kv_append(k, v, keys, values, positions, append);
        // A sequence for each token, over one cache: sums in the order of a step's.
        const auto by_token = [&](const Array& cache) {
            return cache.broadcast_to({rows, c.num_kv_heads, max_length_, d});
        };
        const Array each = heads_view(b.qkv, 0, c.num_heads, d).expand_dims(1),
                    out = b.attended.expand_dims(1);
        ops::attention_cached(each, by_token(keys), by_token(values), place->each, {.as_alone = true},
                              options, &out);
    } else {
        ops::kv_append(k, v, keys, values, positions, append);
        // The host knows how many keys a prompt sees, so that no more need to be widened.
        const std::int64_t seen = place ? *place->length + rows : max_length_;
        ops::attention_cached(q, keys.slice(2, 0, 1, seen), values.slice(2, 0, 1, seen), positions,
                              {.as_alone = step_alone}, options, &attended);
    }
    const Array all_heads = *b.attended.reshape_view({rows, c.num_heads * d});
    if (joined) {
        apply_few(layer.out, all_heads, nullptr, 0, &b.hidden, b.hidden);
    } else {
        apply(layer.out, all_heads, b.delta);
    }
}

// From `normed` to `delta`, or from `hidden` to `hidden`, as attend().
void Model::mlp(const Buffers& b, std::size_t index) {
    const ModelLayer& layer = weights_->layers[index];
    if (layer.experts.router.defined()) return mix_experts(b, layer.experts);
    const ActivationOps& op = activation_ops(config());
    if (joins_norms(b)) {
        ops::gated_linear(
            b.hidden, layer.gate_up.weight, op.gated, &b.activated,
            {.norm = &layer.mlp_norm.weight, .norm_eps = config().norm_eps, .weight_settled = true});
        return apply_few(layer.down, b.activated, nullptr, 0, &b.hidden, b.hidden);
    }
    const bool plain = layer.gate_up.codes.empty() && !layer.gate_up.bias.defined();
    if (config().architecture->gated && plain) {
        ops::gated_linear(b.normed, layer.gate_up.weight, op.gated, &b.activated);
    } else if (config().architecture->gated) {
        apply(layer.gate_up, b.normed, b.gate_up);
        ops::glu(op.gated, b.gate_up, &b.activated);
    } else {
        apply(layer.gate_up, b.normed, b.activated, &op);
    }
    apply(layer.down, b.activated, b.delta);
}

// From `normed` to `delta`: the tokens' rows by expert, there and back.
void Model::mix_experts(const Buffers& b, const Experts& experts) {
    const ExpertsConfig& e = config().experts;
    const Array scores = ops::linear(b.normed, experts.router, {}, nullptr, DType::float32);
    const ops::Routes routes = ops::route(scores, e.of_token, e.normalized);
    const ops::ExpertOrder order = ops::sort_by_expert(routes.experts, e.count);
    const Array rows = ops::embedding(b.normed, order.tokens);
    const GluOp gate = activation_ops(config()).gated;
    const Array activated = experts.gate_up_codes
                                ? ops::grouped_linear(rows, *experts.gate_up_codes, order.offsets, gate)
                                : ops::grouped_linear(rows, experts.gate_up, order.offsets, gate);
    const Array y = experts.down_codes ? ops::grouped_linear(activated, *experts.down_codes, order.offsets)
                                       : ops::grouped_linear(activated, experts.down, order.offsets);
    ops::combine_experts(y, order.places, routes.weights, nullptr, &b.delta);
}

// From buffers.ids through so many layers to buffers.normed, which is then ready for the head.
void Model::forward(const Buffers& b, const std::optional<Place>& place, std::size_t layers) {
    const ModelWeights& w = *weights_;
    const bool post = config().architecture->post_norms;
    embed(b, place);
    if (joins_norms(b)) {
        for (std::size_t i = 0; i < layers; ++i) {
            attend(b, i, place);
            mlp(b, i);
        }
        return norm(w.final_norm, b.hidden, nullptr, b.normed);
    }
    norm(w.layers[0].attention_norm, b.hidden, nullptr, b.normed);
    for (std::size_t i = 0; i < layers; ++i) {
        const ModelLayer& layer = w.layers[i];
        attend(b, i, place);
        if (post) norm(layer.post_attention_norm, b.delta, nullptr, b.delta);
        norm(layer.mlp_norm, b.delta, &b.hidden, b.normed);
        mlp(b, i);
        if (post) norm(layer.post_mlp_norm, b.delta, nullptr, b.delta);
        const bool last = i + 1 == layers;
        norm(last ? w.final_norm : w.layers[i + 1].attention_norm, b.delta, &b.hidden, b.normed);
    }
}

// The sums of 16-bit weights, not rounded to 16 bits: near ties would all go to the lower id.
void Model::head(const Array& normed, const Array& logits) {
    apply(weights_->lm_head, normed, logits);
    if (const double cap = config().logits_soft_cap; cap > 0) {
        ops::binary(BinaryOp::divide, logits, cap, &logits);
        ops::unary(UnaryOp::tanh, logits, &logits);
        ops::binary(BinaryOp::multiply, logits, cap, &logits);
    }
}

}  // namespace gpk::llm
