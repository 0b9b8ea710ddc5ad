#include "llm/model.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.hpp"
#include "ops/attention.hpp"
#include "ops/elementwise.hpp"
#include "ops/embedding.hpp"
#include "ops/glu.hpp"
#include "ops/matmul.hpp"
#include "ops/next_token.hpp"
#include "ops/norm.hpp"

namespace gpk::llm {

namespace {

// Prompts are worked on in pieces of this many tokens, so that what lies between the layers stays small.
constexpr std::int64_t kPrefillTokens = 512;

void apply(const Linear& linear, const Array& x, const Array& out) {
    ops::linear(x, linear.weight, {.bias = linear.bias.defined() ? &linear.bias : nullptr}, &out);
}

// Columns [first, first + heads * d) of [tokens, ...] as [tokens, heads, d].
Array heads_view(const Array& rows, std::int64_t first, std::int64_t heads, std::int64_t d) {
    return *rows.slice(1, first, 1, heads * d).reshape_view({rows.shape()[0], heads, d});
}

}  // namespace

Llama::Buffers::Buffers(Device& device, const LlamaConfig& c, DType dtype, std::int64_t tokens)
    : ids(Array::empty(device, {tokens}, DType::int32)),
      hidden(Array::empty(device, {tokens, c.hidden_size}, dtype)),
      normed(Array::empty(device, {tokens, c.hidden_size}, dtype)),
      qkv(Array::empty(device, {tokens, (c.num_heads + 2 * c.num_kv_heads) * c.head_dim}, dtype)),
      attended(Array::empty(device, {tokens, c.num_heads, c.head_dim}, dtype)),
      gate_up(Array::empty(device, {tokens, 2 * c.intermediate_size}, dtype)),
      activated(Array::empty(device, {tokens, c.intermediate_size}, dtype)),
      delta(Array::empty(device, {tokens, c.hidden_size}, dtype)) {}

namespace {

std::int64_t choose_max_length(const LlamaConfig& config, const LlamaOptions& options) {
    if (options.max_length == 0) return std::min(config.max_positions, kDefaultMaxLength);
    if (options.max_length < 0 || options.max_length > config.max_positions) {
        throw error(ErrorKind::value,
                    {.call = "Llama",
                     .argument = "max_length",
                     .expected = str("1 to ", config.max_positions, ", which the model was trained for"),
                     .got = str(options.max_length)});
    }
    return options.max_length;
}

}  // namespace

Llama::Llama(std::shared_ptr<const LlamaWeights> weights, const LlamaOptions& options)
    : weights_(std::move(weights)),
      max_length_(choose_max_length(weights_->config, options)),
      decode_buffers_(device(), weights_->config, weights_->dtype, 1),
      use_graph_(options.use_graph) {
    const LlamaConfig& c = config();
    const Dims cache{c.num_layers, c.num_kv_heads, max_length_, c.head_dim};
    keys_ = Array::empty(device(), cache, weights_->dtype);
    values_ = Array::empty(device(), cache, weights_->dtype);
    for (std::int64_t i = 0; i < c.num_layers; ++i) {
        layer_keys_.push_back(keys_.select(0, i));
        layer_values_.push_back(values_.select(0, i));
    }
    position_ = Array::empty(device(), {1}, DType::int32);
    logits_ = Array::empty(device(), {1, c.vocab_size}, DType::float32);
    workspace_ = ops::attention_workspace(device(), {.tokens = 1,
                                                     .heads = c.num_heads,
                                                     .kv_heads = c.num_kv_heads,
                                                     .d = c.head_dim,
                                                     .capacity = max_length_});
    truncate(0);
}

void Llama::truncate(std::int64_t length) {
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

void Llama::check_tokens(const char* call, std::span<const std::int32_t> tokens) const {
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

// From buffers.ids to buffers.normed, which is then ready for the head.
void Llama::forward(const Buffers& b, const Array* workspace) {
    const LlamaConfig& c = config();
    const LlamaWeights& w = *weights_;
    const std::int64_t d = c.head_dim;
    const Array q = heads_view(b.qkv, 0, c.num_heads, d);
    const Array k = heads_view(b.qkv, c.num_heads * d, c.num_kv_heads, d);
    const Array v = heads_view(b.qkv, (c.num_heads + c.num_kv_heads) * d, c.num_kv_heads, d);
    const Array attended = *b.attended.reshape_view({b.attended.shape()[0], c.num_heads * d});
    const ops::Rope rope{.inv_freq = w.inv_freq};
    const double scale = 1.0 / std::sqrt(static_cast<double>(d));

    ops::embedding(w.embedding, b.ids, &b.hidden);
    ops::rms_norm(b.hidden, w.layers[0].attention_norm, c.rms_norm_eps, nullptr, &b.normed);
    for (std::size_t i = 0; i < w.layers.size(); ++i) {
        const LlamaLayer& layer = w.layers[i];
        apply(layer.qkv, b.normed, b.qkv);
        ops::kv_append(k, v, layer_keys_[i], layer_values_[i], position_, &rope, &q);
        ops::attention(q, layer_keys_[i], layer_values_[i], position_, scale, &b.attended, workspace);
        apply(layer.out, attended, b.delta);
        ops::rms_norm(b.delta, layer.mlp_norm, c.rms_norm_eps, &b.hidden, &b.normed);
        apply(layer.gate_up, b.normed, b.gate_up);
        ops::glu(GluOp::swiglu, b.gate_up, &b.activated);
        apply(layer.down, b.activated, b.delta);
        const bool last = i + 1 == w.layers.size();
        ops::rms_norm(b.delta, last ? w.final_norm : w.layers[i + 1].attention_norm, c.rms_norm_eps,
                      &b.hidden, &b.normed);
    }
}

// The sums of 16-bit weights, not rounded to 16 bits: near ties would all go to the lower id.
void Llama::head(const Array& normed, const Array& logits) {
    ops::linear(normed, weights_->lm_head, {}, &logits, DType::float32);
}

// Chooses the next token from logits_ and moves the device's position on.
void Llama::finish(std::int64_t tokens) {
    ops::next_token(logits_.select(0, 0), config().num_tokens, tokens, decode_buffers_.ids, position_);
}

Array Llama::run_prompt(const char* call, std::span<const std::int32_t> tokens, bool all_logits) {
    check_tokens(call, tokens);
    const auto count = static_cast<std::int64_t>(tokens.size());
    Array all;
    if (all_logits) all = Array::empty(device(), {count, config().vocab_size}, DType::float32);
    try {
        for (std::int64_t first = 0; first < count; first += kPrefillTokens) {
            const std::int64_t here = std::min(kPrefillTokens, count - first);
            const Buffers buffers(device(), config(), weights_->dtype, here);
            buffers.ids.copy_from_host(tokens.data() + first);
            forward(buffers, nullptr);
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
    return all_logits ? all : logits_.select(0, 0).readonly();
}

Array Llama::prefill(std::span<const std::int32_t> tokens) { return run_prompt("prefill", tokens, false); }

Array Llama::score(std::span<const std::int32_t> tokens) { return run_prompt("score", tokens, true); }

void Llama::step() {
    forward(decode_buffers_, &workspace_);
    head(decode_buffers_.normed, logits_);
    finish(1);
}

Array Llama::decode() {
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
    return logits_.select(0, 0).readonly();
}

Array Llama::decode(std::int32_t token) {
    check_tokens("decode", {&token, 1});
    decode_buffers_.ids.copy_from_host(&token);
    return decode();
}

std::int32_t Llama::greedy() const {
    if (length_ == 0) {
        throw error(ErrorKind::value,
                    {.call = "greedy", .expected = "a text to go on with", .got = "an empty context"});
    }
    std::int32_t token = 0;
    decode_buffers_.ids.copy_to_host(&token);
    return token;
}

}  // namespace gpk::llm
