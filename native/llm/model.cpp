#include "llm/model.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.hpp"
#include "base/float_types.hpp"
#include "ops/attention.hpp"
#include "ops/creation.hpp"
#include "ops/elementwise.hpp"
#include "ops/embedding.hpp"
#include "ops/glu.hpp"
#include "ops/matmul.hpp"
#include "ops/next_token.hpp"
#include "ops/norm.hpp"

namespace gpk::llm {

namespace {

// Prompts are worked on in pieces of this many tokens, so that what lies between the layers stays small.
constexpr std::int64_t kPrefillTokens = 2048;

// What the activation is where it multiplies, in a product's epilogue, and alone.
struct ActivationOps {
    GluOp gated;
    GemmActivation following;
    UnaryOp alone;
};
constexpr ActivationOps kActivations[] = {
    {GluOp::swiglu, GemmActivation::silu, UnaryOp::silu},
    {GluOp::geglu, GemmActivation::gelu, UnaryOp::gelu},
    {GluOp::geglu_tanh, GemmActivation::gelu_tanh, UnaryOp::gelu_tanh},
};

void apply(const Linear& linear, const Array& x, const Array& out,
           const ActivationOps* activation = nullptr) {
    const Array* bias = linear.bias.defined() ? &linear.bias : nullptr;
    if (!linear.codes) {
        const GemmActivation following = activation != nullptr ? activation->following : GemmActivation::none;
        ops::linear(x, linear.weight, {.bias = bias, .activation = following}, &out, out.dtype());
        return;
    }
    ops::linear(x, *linear.codes, bias, out.dtype(), &out);
    if (activation != nullptr) ops::unary(activation->alone, out, &out);
}

// Columns [first, first + heads * d) of [tokens, ...] as [1, tokens, heads, d].
Array heads_view(const Array& rows, std::int64_t first, std::int64_t heads, std::int64_t d) {
    return *rows.slice(1, first, 1, heads * d).reshape_view({1, rows.shape()[0], heads, d});
}

// As it is stored: transformers' embeddings are multiplied by a number of their own dtype.
double rounded(double value, DType dtype) {
    if (dtype == DType::bfloat16) return static_cast<float>(bfloat16(static_cast<float>(value)));
    if (dtype == DType::float16) return static_cast<float>(float16(static_cast<float>(value)));
    return static_cast<float>(value);
}

}  // namespace

Model::Buffers::Buffers(Device& device, const ModelConfig& c, DType dtype, std::int64_t tokens)
    : ids(Array::empty(device, {tokens}, DType::int32)),
      hidden(Array::empty(device, {tokens, c.hidden_size}, dtype)),
      normed(Array::empty(device, {tokens, c.hidden_size}, dtype)),
      qkv(Array::empty(device, {tokens, (c.num_heads + 2 * c.num_kv_heads) * c.head_dim}, dtype)),
      attended(Array::empty(device, {1, tokens, c.num_heads, c.head_dim}, dtype)),
      gate_up(Array::empty(device, {tokens, c.architecture->gated ? 2 * c.intermediate_size : 0}, dtype)),
      activated(Array::empty(device, {tokens, c.intermediate_size}, dtype)),
      delta(Array::empty(device, {tokens, c.hidden_size}, dtype)) {}

namespace {

std::int64_t choose_max_length(const ModelConfig& config, const ModelOptions& options) {
    if (options.max_length == 0) return std::min(config.max_positions, kDefaultMaxLength);
    if (options.max_length < 0 || options.max_length > config.max_positions) {
        throw error(ErrorKind::value,
                    {.call = "Model",
                     .argument = "max_length",
                     .expected = str("1 to ", config.max_positions, ", which the model was trained for"),
                     .got = str(options.max_length)});
    }
    return options.max_length;
}

}  // namespace

Model::Model(std::shared_ptr<const ModelWeights> weights, const ModelOptions& options)
    : weights_(std::move(weights)),
      max_length_(choose_max_length(weights_->config, options)),
      decode_buffers_(device(), weights_->config, weights_->dtype, 1),
      use_graph_(options.use_graph) {
    const ModelConfig& c = config();
    const Dims cache{c.num_layers, 1, c.num_kv_heads, max_length_, c.head_dim};
    keys_ = Array::empty(device(), cache, weights_->dtype);
    values_ = Array::empty(device(), cache, weights_->dtype);
    for (std::size_t i = 0; i < c.ropes.size(); ++i) {
        ops::RopeFrequencies table = rope_frequencies(c, i, max_length_);
        const std::vector<float>& divisors = weights_->rope_divisors;
        for (std::size_t j = 0; j < divisors.size(); ++j) table.inv_freq[j] /= divisors[j];
        const Array inv_freq =
            Array::empty(device(), {static_cast<std::int64_t>(table.inv_freq.size())}, DType::float32);
        inv_freq.copy_from_host(table.inv_freq.data());
        rotations_.push_back({inv_freq, table.attention_factor});
    }
    for (std::int64_t i = 0; i < c.num_layers; ++i) {
        layer_keys_.push_back(keys_.select(0, i));
        layer_values_.push_back(values_.select(0, i));
    }
    position_ = Array::empty(device(), {1}, DType::int32);
    logits_ = Array::empty(device(), {1, c.vocab_size}, DType::float32);
    const auto places = static_cast<std::size_t>(max_length_ + 1);
    for (auto& event : chosen_) event = std::make_shared<Event>(device());
    truncate(0);
    log_ = PinnedPool::of(device()).allocate(places * sizeof(std::int32_t));
    log_tokens_ = {reinterpret_cast<std::int32_t*>(log_.data), places};
}

Model::~Model() { PinnedPool::of(device()).release(log_, {chosen_.begin(), chosen_.end()}); }

void Model::truncate(std::int64_t length) {
    if (length < 0 || length > length_) {
        throw error(ErrorKind::value, {.call = "truncate",
                                       .argument = "length",
                                       .expected = str("0 to ", length_),
                                       .got = str(length)});
    }
    const auto position = static_cast<std::int32_t>(length);
    position_.copy_from_host(&position);
    length_ = length;
}

void Model::check_tokens(const char* call, std::span<const std::int32_t> tokens) const {
    if (tokens.empty()) {
        throw error(ErrorKind::value,
                    {.call = call, .argument = "tokens", .expected = "at least one", .got = "none"});
    }
    if (static_cast<std::int64_t>(tokens.size()) > max_length_ - length_) {
        throw error(ErrorKind::value,
                    {.call = call,
                     .argument = "tokens",
                     .expected = str("at most ", max_length_ - length_, " more, for the context of ",
                                     max_length_, " holds ", length_, " already"),
                     .got = str(tokens.size()),
                     .fix = "shorten the text, truncate the context or load the model with a larger "
                            "max_length"});
    }
    for (const std::int32_t token : tokens) {
        if (token < 0 || token >= config().vocab_size) {
            throw error(ErrorKind::value, {.call = call,
                                           .argument = "tokens",
                                           .expected = str("ids from 0 to ", config().vocab_size - 1),
                                           .got = str(token)});
        }
    }
}

void Model::norm(const Norm& norm, const Array& x, const Array* residual, const Array& out) const {
    if (config().architecture->norm == NormKind::layer) {
        ops::layer_norm(x, norm.weight, norm.bias, config().norm_eps, residual, &out);
    } else {
        ops::rms_norm(x, norm.weight, config().norm_eps, residual, &out);
    }
}

// From the ids to `hidden`. `delta` is free until the first layer's attention.
void Model::embed(const Buffers& b, std::optional<std::int64_t> length) {
    const Architecture& a = *config().architecture;
    ops::embedding(weights_->embedding, b.ids, &b.hidden);
    if (a.scaled_embedding) {
        const double scale = std::sqrt(static_cast<double>(config().hidden_size));
        ops::binary(BinaryOp::multiply, b.hidden, rounded(scale, weights_->dtype), &b.hidden);
    }
    if (a.learned_positions) {
        const Array places =
            length ? ops::arange_integer(device(), *length, 1, b.ids.shape()[0], DType::int32) : position_;
        ops::embedding(weights_->positions, places, &b.delta);
        ops::binary(BinaryOp::add, b.hidden, b.delta, &b.hidden);
    }
}

// From `normed` to `delta`.
void Model::attend(const Buffers& b, std::size_t index, std::optional<std::int64_t> length) {
    const ModelConfig& c = config();
    const ModelLayer& layer = weights_->layers[index];
    const LayerConfig& kind = c.layers[index];
    const std::int64_t d = c.head_dim, tokens = b.normed.shape()[0];
    const Array q = heads_view(b.qkv, 0, c.num_heads, d);
    const Array k = heads_view(b.qkv, c.num_heads * d, c.num_kv_heads, d);
    const Array v = heads_view(b.qkv, (c.num_heads + c.num_kv_heads) * d, c.num_kv_heads, d);
    const Array &keys = layer_keys_[index], &values = layer_values_[index];

    apply(layer.qkv, b.normed, b.qkv);
    std::optional<ops::Rope> rope;
    if (!rotations_.empty()) rope.emplace(rotations_[kind.rope].inv_freq, rotations_[kind.rope].factor);
    const bool normed = layer.q_norm.defined();
    ops::kv_append(k, v, keys, values, position_,
                   {.rope = rope ? &*rope : nullptr,
                    .q = rope || normed ? &q : nullptr,
                    .q_norm = normed ? &layer.q_norm : nullptr,
                    .k_norm = normed ? &layer.k_norm : nullptr,
                    .norm_eps = c.norm_eps,
                    .norm_offset = weights_->norm_offset});
    const ops::AttentionOptions options{.causal = true,
                                        .scale = c.attention_scale,
                                        .left = kind.window > 0 ? kind.window - 1 : -1,
                                        .soft_cap = c.attention_soft_cap};
    if (length) {
        const auto heads_first = [](const Array& x) { return x.transpose({0, 2, 1, 3}); };
        const auto known = [&](const Array& cache) { return cache.slice(2, 0, 1, *length + tokens); };
        const Array out = heads_first(b.attended);
        ops::attention(heads_first(q), known(keys), known(values), options, &out);
    } else {
        ops::attention_cached(q, keys, values, position_, {}, options, &b.attended);
    }
    apply(layer.out, *b.attended.reshape_view({tokens, c.num_heads * d}), b.delta);
}

// From `normed` to `delta`.
void Model::mlp(const Buffers& b, const ModelLayer& layer) {
    const ActivationOps& op = kActivations[static_cast<std::size_t>(config().activation)];
    if (config().architecture->gated) {
        apply(layer.gate_up, b.normed, b.gate_up);
        ops::glu(op.gated, b.gate_up, &b.activated);
    } else {
        apply(layer.gate_up, b.normed, b.activated, &op);
    }
    apply(layer.down, b.activated, b.delta);
}

// From buffers.ids to buffers.normed, which is then ready for the head.
void Model::forward(const Buffers& b, std::optional<std::int64_t> length) {
    const ModelWeights& w = *weights_;
    const bool post = config().architecture->post_norms;
    embed(b, length);
    norm(w.layers[0].attention_norm, b.hidden, nullptr, b.normed);
    for (std::size_t i = 0; i < w.layers.size(); ++i) {
        const ModelLayer& layer = w.layers[i];
        attend(b, i, length);
        if (post) norm(layer.post_attention_norm, b.delta, nullptr, b.delta);
        norm(layer.mlp_norm, b.delta, &b.hidden, b.normed);
        mlp(b, layer);
        if (post) norm(layer.post_mlp_norm, b.delta, nullptr, b.delta);
        const bool last = i + 1 == w.layers.size();
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

// Chooses the next token from logits_ and moves the device's position on.
void Model::finish(std::int64_t tokens) {
    ops::next_token(logits_.select(0, 0), config().num_tokens, tokens, decode_buffers_.ids, position_,
                    log_tokens_);
}

// To be waited for by greedy_after(). In a caller's capture nothing is known before its launch.
void Model::mark() {
    const auto& stream = current_stream(device());
    if (stream->capture() == nullptr)
        chosen_[static_cast<std::size_t>(length_ % (kAhead + 1))]->record(*stream);
}

Array Model::run_prompt(const char* call, std::span<const std::int32_t> tokens, bool all_logits) {
    check_tokens(call, tokens);
    const auto count = static_cast<std::int64_t>(tokens.size());
    Array all;
    if (all_logits) all = Array::empty(device(), {count, config().vocab_size}, DType::float32);
    try {
        for (std::int64_t first = 0; first < count; first += kPrefillTokens) {
            const std::int64_t here = std::min(kPrefillTokens, count - first);
            const Buffers buffers(device(), config(), weights_->dtype, here);
            buffers.ids.copy_from_host(tokens.data() + first);
            forward(buffers, length_ + first);
            if (all_logits) head(buffers.normed, all.slice(0, first, 1, here));
            // The last token's logits; those of earlier pieces only move the position.
            head(buffers.normed.slice(0, here - 1, 1, 1), logits_);
            finish(here);
        }
    } catch (...) {
        truncate(length_);  // the device's position goes back to where it was
        throw;
    }
    length_ += count;
    mark();
    return all_logits ? all : logits_.select(0, 0).readonly();
}

Array Model::prefill(std::span<const std::int32_t> tokens) { return run_prompt("prefill", tokens, false); }

Array Model::score(std::span<const std::int32_t> tokens) { return run_prompt("score", tokens, true); }

void Model::step() {
    forward(decode_buffers_, std::nullopt);
    head(decode_buffers_.normed, logits_);
    finish(1);
}

Array Model::decode() {
    if (length_ == max_length_) {
        throw error(ErrorKind::value,
                    {.call = "decode",
                     .expected = str("a context with room (it holds ", max_length_, " tokens)"),
                     .got = "a full one",
                     .fix = "truncate the context or load the model with a larger max_length"});
    }
    if (length_ == 0) {
        throw error(ErrorKind::value,
                    {.call = "decode", .expected = "a text to go on with", .got = "an empty context"});
    }
    const auto& stream = current_stream(device());
    // Loading a kernel's code is not allowed in a capture, so the first step runs without; inside a
    // caller's own capture the step becomes part of it.
    if (!use_graph_ || !warm_ || stream->capture() != nullptr) {
        step();
        warm_ = true;
    } else {
        if (!graph_) graph_ = Graph::capture(stream, [this] { step(); });
        graph_->launch(stream);
    }
    ++length_;
    mark();
    return logits_.select(0, 0).readonly();
}

Array Model::decode(std::int32_t token) {
    check_tokens("decode", {&token, 1});
    decode_buffers_.ids.copy_from_host(&token);
    return decode();
}

std::int32_t Model::greedy() const {
    if (length_ == 0) {
        throw error(ErrorKind::value,
                    {.call = "greedy", .expected = "a text to go on with", .got = "an empty context"});
    }
    std::int32_t token = 0;
    decode_buffers_.ids.copy_to_host(&token);
    return token;
}

std::int32_t Model::greedy_after(std::int64_t length) const {
    if (length < 1 || length > length_ || length < length_ - kAhead) {
        throw error(ErrorKind::value,
                    {.call = "greedy_after",
                     .argument = "length",
                     .expected = str(std::max<std::int64_t>(length_ - kAhead, 1), " to ", length_),
                     .got = str(length)});
    }
    chosen_[static_cast<std::size_t>(length % (kAhead + 1))]->synchronize();
    return log_tokens_[static_cast<std::size_t>(length)];
}

}  // namespace gpk::llm
