#include "llm/model.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "base/error.hpp"
#include "base/float_types.hpp"
#include "ops/attention.hpp"
#include "ops/creation.hpp"
#include "ops/elementwise.hpp"
#include "ops/embedding.hpp"
#include "ops/experts.hpp"
#include "ops/glu.hpp"
#include "ops/grouped_linear.hpp"
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

const ActivationOps& activation_ops(const ModelConfig& config) {
    return kActivations[static_cast<std::size_t>(config.activation)];
}

void apply(const Linear& linear, const Array& x, const Array& out,
           const ActivationOps* activation = nullptr) {
    const Array* bias = linear.bias.defined() ? &linear.bias : nullptr;
    if (linear.codes.empty()) {
        const GemmActivation following = activation != nullptr ? activation->following : GemmActivation::none;
        ops::linear(x, linear.weight, {.bias = bias, .activation = following}, &out, out.dtype());
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

Model::Buffers::Buffers(Device& device, const ModelConfig& c, DType dtype, std::int64_t tokens)
    : ids(Array::empty(device, {tokens}, DType::int32)),
      hidden(Array::empty(device, {tokens, c.hidden_size}, dtype)),
      normed(Array::empty(device, {tokens, c.hidden_size}, dtype)),
      qkv(Array::empty(device, {tokens, (c.num_heads + 2 * c.num_kv_heads) * c.head_dim}, dtype)),
      attended(Array::empty(device, {tokens, c.num_heads, c.head_dim}, dtype)),
      gate_up(Array::empty(device, {tokens, c.architecture->gated ? 2 * c.intermediate_size : 0}, dtype)),
      activated(Array::empty(device, {tokens, c.intermediate_size}, dtype)),
      delta(Array::empty(device, {tokens, c.hidden_size}, dtype)) {}

Model::Buffers Model::Buffers::first(std::int64_t tokens) const {
    Buffers part;
    constexpr Array Buffers::* kAll[] = {&Buffers::ids,       &Buffers::hidden,   &Buffers::normed,
                                         &Buffers::qkv,       &Buffers::attended, &Buffers::gate_up,
                                         &Buffers::activated, &Buffers::delta};
    for (const auto each : kAll) part.*each = (this->*each).slice(0, 0, 1, tokens);
    return part;
}

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

std::int64_t checked_slots(const ModelOptions& options) {
    constexpr std::int64_t kMostSlots = 1024;
    if (options.slots >= 1 && options.slots <= kMostSlots) return options.slots;
    throw error(ErrorKind::value, {.call = "Model",
                                   .argument = "slots",
                                   .expected = str("1 to ", kMostSlots),
                                   .got = str(options.slots)});
}

DType checked_cache_dtype(DType weights, const ModelOptions& options) {
    const DType dtype = options.cache_dtype.value_or(weights);
    if (dtype == weights || dtype == DType::float8_e4m3) return dtype;
    throw error(ErrorKind::type, {.call = "Model",
                                  .argument = "cache_dtype",
                                  .expected = str(name(weights), ", as the weights, or float8_e4m3"),
                                  .got = std::string(name(dtype))});
}

}  // namespace

Model::Model(std::shared_ptr<const ModelWeights> weights, const ModelOptions& options)
    : weights_(std::move(weights)),
      max_length_(choose_max_length(weights_->config, options)),
      lengths_(static_cast<std::size_t>(checked_slots(options))),
      decode_buffers_(device(), weights_->config, weights_->dtype, slots()),
      use_graph_(options.use_graph) {
    const ModelConfig& c = config();
    const Dims cache{c.num_layers, slots(), c.num_kv_heads, max_length_, c.head_dim};
    const DType cache_dtype = checked_cache_dtype(weights_->dtype, options);
    keys_ = Array::empty(device(), cache, cache_dtype);
    values_ = Array::empty(device(), cache, cache_dtype);
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
    positions_ = Array::empty(device(), {slots()}, DType::int32);
    for (std::int64_t slot = 0; slot < slots(); ++slot) set_position(slot, -1);
    logits_ = Array::empty(device(), {slots(), c.vocab_size}, DType::float32);
    for (auto& event : chosen_) event = std::make_shared<Event>(device());
    log_ = PinnedPool::of(device()).allocate(static_cast<std::size_t>(slots() * (max_length_ + 1)) *
                                             sizeof(std::int32_t));
}

Model::~Model() { PinnedPool::of(device()).release(log_, {chosen_.begin(), chosen_.end()}); }

void Model::check_slot(const char* call, std::int64_t slot) const {
    if (slot >= 0 && slot < slots()) return;
    throw error(ErrorKind::value,
                {.call = call, .argument = "slot", .expected = str("0 to ", slots() - 1), .got = str(slot)});
}

void Model::set_position(std::int64_t slot, std::int64_t position) const {
    const auto value = static_cast<std::int32_t>(position);
    positions_.slice(0, slot, 1, 1).copy_from_host(&value);
}

void Model::truncate(std::int64_t length, std::int64_t slot) {
    check_slot("truncate", slot);
    std::int64_t& held = lengths_[static_cast<std::size_t>(slot)];
    if (length < 0 || length > held) {
        throw error(
            ErrorKind::value,
            {.call = "truncate", .argument = "length", .expected = str("0 to ", held), .got = str(length)});
    }
    set_position(slot, length > 0 ? length : -1);
    held = length;
}

void Model::check_tokens(const char* call, std::span<const std::int32_t> tokens, std::int64_t slot) const {
    if (tokens.empty()) {
        throw error(ErrorKind::value,
                    {.call = call, .argument = "tokens", .expected = "at least one", .got = "none"});
    }
    const std::int64_t room = max_length_ - length(slot);
    if (static_cast<std::int64_t>(tokens.size()) > room) {
        throw error(ErrorKind::value,
                    {.call = call,
                     .argument = "tokens",
                     .expected = str("at most ", room, " more, for the context of ", max_length_, " holds ",
                                     length(slot), " already"),
                     .got = str(tokens.size()),
                     .fix = "shorten the text, truncate the context or load the model with a larger "
                            "max_length"});
    }
    check_vocabulary(call, "tokens", tokens);
}

void Model::check_vocabulary(const char* call, const char* argument,
                             std::span<const std::int32_t> tokens) const {
    for (const std::int32_t token : tokens) {
        if (token >= 0 && token < config().vocab_size) continue;
        throw error(ErrorKind::value, {.call = call,
                                       .argument = argument,
                                       .expected = str("ids from 0 to ", config().vocab_size - 1),
                                       .got = str(token)});
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
void Model::embed(const Buffers& b, std::optional<Place> prompt) {
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
        const Array places = prompt ? ops::arange_integer(device(), prompt->length, 1, tokens, DType::int32)
                                    : positions_.slice(0, 0, 1, tokens);
        ops::embedding(weights_->positions, places, &b.delta);
        ops::binary(BinaryOp::add, b.hidden, b.delta, &b.hidden);
    }
}

// From `normed` to `delta`.
void Model::attend(const Buffers& b, std::size_t index, std::optional<Place> prompt) {
    const ModelConfig& c = config();
    const ModelLayer& layer = weights_->layers[index];
    const LayerConfig& kind = c.layers[index];
    const std::int64_t d = c.head_dim, rows = b.normed.shape()[0];
    // [sequences, tokens, heads, d]: of one sequence, or a token of each.
    const int added = prompt ? 0 : 1;
    const auto heads_of = [&](std::int64_t first, std::int64_t heads) {
        return heads_view(b.qkv, first * d, heads, d).expand_dims(added);
    };
    const Array q = heads_of(0, c.num_heads), k = heads_of(c.num_heads, c.num_kv_heads);
    const Array v = heads_of(c.num_heads + c.num_kv_heads, c.num_kv_heads);
    const Array attended = b.attended.expand_dims(added);
    const auto taken = [&](const Array& of_slots) {
        return of_slots.slice(0, prompt ? prompt->slot : 0, 1, prompt ? 1 : rows);
    };
    const Array keys = taken(layer_keys_[index]), values = taken(layer_values_[index]);
    const Array positions = taken(positions_);

    apply(layer.qkv, b.normed, b.qkv);
    std::optional<ops::Rope> rope;
    if (!rotations_.empty()) rope.emplace(rotations_[kind.rope].inv_freq, rotations_[kind.rope].factor);
    const bool normed = layer.q_norm.defined();
    ops::kv_append(k, v, keys, values, positions,
                   {.rope = rope ? &*rope : nullptr,
                    .q = rope || normed ? &q : nullptr,
                    .q_norm = normed ? &layer.q_norm : nullptr,
                    .k_norm = normed ? &layer.k_norm : nullptr,
                    .norm_eps = c.norm_eps});
    const ops::AttentionOptions options{.causal = true,
                                        .scale = c.attention_scale,
                                        .left = kind.window > 0 ? kind.window - 1 : -1,
                                        .soft_cap = c.attention_soft_cap};
    // The host knows how many keys a prompt sees, so that no more need to be widened.
    const std::int64_t seen = prompt ? prompt->length + rows : max_length_;
    ops::attention_cached(q, keys.slice(2, 0, 1, seen), values.slice(2, 0, 1, seen), positions, {}, options,
                          &attended);
    apply(layer.out, *b.attended.reshape_view({rows, c.num_heads * d}), b.delta);
}

// From `normed` to `delta`.
void Model::mlp(const Buffers& b, const ModelLayer& layer) {
    if (layer.experts.router.defined()) return mix_experts(b, layer.experts);
    const ActivationOps& op = activation_ops(config());
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

// From buffers.ids to buffers.normed, which is then ready for the head.
void Model::forward(const Buffers& b, std::optional<Place> prompt) {
    const ModelWeights& w = *weights_;
    const bool post = config().architecture->post_norms;
    embed(b, prompt);
    norm(w.layers[0].attention_norm, b.hidden, nullptr, b.normed);
    for (std::size_t i = 0; i < w.layers.size(); ++i) {
        const ModelLayer& layer = w.layers[i];
        attend(b, i, prompt);
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

// Chooses the next token of slots from logits_ and moves their positions on.
void Model::choose(std::int64_t first_slot, std::int64_t slots, std::int64_t tokens) {
    const auto of = [&](const Array& x) { return x.slice(0, first_slot, 1, slots); };
    const std::int64_t places = max_length_ + 1;
    ops::next_token(of(logits_), config().num_tokens, tokens, of(decode_buffers_.ids), of(positions_),
                    reinterpret_cast<std::int32_t*>(log_.data) + first_slot * places, places);
}

// To be waited for by greedy_after(). In a caller's capture nothing is known before its launch.
void Model::mark() {
    const auto& stream = current_stream(device());
    if (stream->capture() != nullptr) return;
    chosen_[static_cast<std::size_t>(choices_ % (kAhead + 1))]->record(*stream);
    ++choices_;
}

Array Model::run_prompt(const char* call, std::span<const std::int32_t> tokens, std::int64_t slot,
                        bool all_logits) {
    check_slot(call, slot);
    check_tokens(call, tokens, slot);
    const auto count = static_cast<std::int64_t>(tokens.size());
    std::int64_t& length = lengths_[static_cast<std::size_t>(slot)];
    const Array logits = logits_.slice(0, slot, 1, 1);
    Array all;
    if (all_logits) all = Array::empty(device(), {count, config().vocab_size}, DType::float32);
    try {
        if (length == 0) set_position(slot, 0);
        for (std::int64_t first = 0; first < count; first += kPrefillTokens) {
            const std::int64_t here = std::min(kPrefillTokens, count - first);
            const Buffers buffers(device(), config(), weights_->dtype, here);
            buffers.ids.copy_from_host(tokens.data() + first);
            forward(buffers, Place{slot, length + first});
            if (all_logits) head(buffers.normed, all.slice(0, first, 1, here));
            // The last token's logits; those of earlier pieces only move the position.
            head(buffers.normed.slice(0, here - 1, 1, 1), logits);
            choose(slot, 1, here);
        }
    } catch (...) {
        truncate(length, slot);  // the device's position goes back to where it was
        throw;
    }
    length += count;
    mark();
    return all_logits ? all : logits.select(0, 0).readonly();
}

Array Model::prefill(std::span<const std::int32_t> tokens, std::int64_t slot) {
    return run_prompt("prefill", tokens, slot, false);
}

Array Model::score(std::span<const std::int32_t> tokens, std::int64_t slot) {
    return run_prompt("score", tokens, slot, true);
}

void Model::step(std::int64_t slots) {
    const Buffers buffers = decode_buffers_.first(slots);
    forward(buffers, std::nullopt);
    head(buffers.normed, logits_.slice(0, 0, 1, slots));
    choose(0, slots, 1);
}

// Slots of a step: up to the last that holds tokens, in powers of two, so that few graphs serve all numbers.
std::int64_t Model::step_slots() const {
    std::int64_t last = -1;
    for (std::int64_t slot = 0; slot < slots(); ++slot) {
        if (length(slot) == 0) continue;
        last = slot;
        if (length(slot) < max_length_) continue;
        throw error(ErrorKind::value,
                    {.call = "decode",
                     .expected = str("a context with room (it holds ", max_length_, " tokens)"),
                     .got = str("a full one", slots() > 1 ? str(" in slot ", slot) : ""),
                     .fix = "truncate the context or load the model with a larger max_length"});
    }
    if (last < 0) {
        throw error(ErrorKind::value,
                    {.call = "decode", .expected = "a text to go on with", .got = "an empty context"});
    }
    const auto taken = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(last + 1)));
    return std::min(taken, slots());
}

Array Model::decode() {
    const std::int64_t slots = step_slots();
    const auto& stream = current_stream(device());
    // Loading a kernel's code is not allowed in a capture, so the first step runs without; inside a
    // caller's own capture the step becomes part of it.
    const auto known = graphs_.find(slots);
    if (!use_graph_ || known == graphs_.end() || stream->capture() != nullptr) {
        step(slots);
        graphs_.try_emplace(slots);
    } else {
        if (!known->second) known->second = Graph::capture(stream, [&] { step(slots); });
        known->second->launch(stream);
    }
    for (std::int64_t& length : lengths_) length += length > 0 ? 1 : 0;
    mark();
    return logits_.slice(0, 0, 1, slots).readonly();
}

Array Model::decode(std::int32_t token) {
    check_tokens("decode", {&token, 1}, 0);
    decode_buffers_.ids.slice(0, 0, 1, 1).copy_from_host(&token);
    return decode();
}

std::int32_t Model::greedy(std::int64_t slot) const {
    check_slot("greedy", slot);
    if (length(slot) == 0) {
        throw error(ErrorKind::value,
                    {.call = "greedy", .expected = "a text to go on with", .got = "an empty context"});
    }
    std::int32_t token = 0;
    decode_buffers_.ids.slice(0, slot, 1, 1).copy_to_host(&token);
    return token;
}

std::int32_t Model::greedy_after(std::int64_t length, std::int64_t slot) const {
    check_slot("greedy_after", slot);
    const std::int64_t held = this->length(slot), steps_ago = held - length;
    if (length < 1 || steps_ago < 0 || steps_ago > kAhead) {
        throw error(ErrorKind::value,
                    {.call = "greedy_after",
                     .argument = "length",
                     .expected = str(std::max<std::int64_t>(held - kAhead, 1), " to ", held),
                     .got = str(length)});
    }
    // Choices for other slots in between only make it a later one.
    const std::int64_t choice = std::max<std::int64_t>(choices_ - 1 - steps_ago, 0);
    chosen_[static_cast<std::size_t>(choice % (kAhead + 1))]->synchronize();
    return reinterpret_cast<const std::int32_t*>(log_.data)[slot * (max_length_ + 1) + length];
}

}  // namespace gpk::llm
