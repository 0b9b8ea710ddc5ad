#include "llm/model.hpp"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/error.hpp"
#include "llm/verifier.hpp"
#include "ops/attention.hpp"

namespace gpk::llm {

Model::Buffers::Buffers(Device& device, const ModelConfig& c, DType dtype, std::int64_t tokens)
    : ids(Array::empty(device, {tokens}, DType::int32)),
      hidden(Array::empty(device, {tokens, c.hidden_size}, dtype)),
      normed(Array::empty(device, {tokens, c.hidden_size}, dtype)),
      qkv(Array::empty(device, {tokens, (c.num_heads + 2 * c.num_kv_heads) * c.head_dim}, dtype)),
      attended(Array::empty(device, {tokens, c.num_heads, c.head_dim}, dtype)),
      gate_up(Array::empty(device, {tokens, c.architecture->gated ? 2 * c.intermediate_size : 0}, dtype)),
      activated(Array::empty(device, {tokens, c.intermediate_size}, dtype)),
      delta(Array::empty(device, {tokens, c.hidden_size}, dtype)) {}

Model::Buffers Model::Buffers::rows(std::int64_t first, std::int64_t count) const {
    Buffers part;
    constexpr Array Buffers::* kAll[] = {&Buffers::ids,       &Buffers::hidden,   &Buffers::normed,
                                         &Buffers::qkv,       &Buffers::attended, &Buffers::gate_up,
                                         &Buffers::activated, &Buffers::delta};
    for (const auto each : kAll) part.*each = (this->*each).slice(0, first, 1, count);
    return part;
}

namespace {

// Prompts are worked on in pieces of this many tokens, so that what lies between the layers stays small.
constexpr std::int64_t kPrefillTokens = 2048;

std::int32_t checked_choice(std::int32_t token) {
    if (token >= 0) return token;
    throw error(ErrorKind::value,
                {.call = "generate",
                 .argument = "logits",
                 .expected = "finite numbers from the model",
                 .got = "a NaN, or no finite largest one",
                 .fix = "check the weights for NaN and infinity, or use a dtype with a larger range: what "
                        "overflows in float16 often fits bfloat16 or float32; penalties can overflow too"});
}

std::int64_t choose_max_length(const ModelConfig& config, const ModelOptions& options) {
    if (options.max_length == 0) return std::min(config.max_positions, kDefaultMaxLength);
    const std::int64_t most = config.longest_context();
    if (options.max_length < 0 || options.max_length > most) {
        throw error(ErrorKind::value, {.call = "Model",
                                       .argument = "max_length",
                                       .expected = str("1 to ", most, ", which the model was made for"),
                                       .got = str(options.max_length)});
    }
    return options.max_length;
}

std::int64_t checked_slots(const ModelOptions& options) {
    constexpr std::int64_t kMostSlots = 1024;
    if (options.slots >= 1 && options.slots <= kMostSlots) return options.slots;
    throw error(ErrorKind::value, {.call = "batch",
                                   .argument = "max_sequences",
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

// Whether norms can go into the products after them, and products add into `hidden` themselves.
bool may_join_norms(const ModelWeights& weights) {
    const Architecture& a = *weights.config.architecture;
    const auto plain = [](const Linear& linear) { return linear.codes.empty() && linear.weight.defined(); };
    return weights.dtype != DType::float32 && a.norm == NormKind::rms && a.gated && !a.post_norms &&
           std::ranges::all_of(weights.layers, [&](const ModelLayer& layer) {
               return plain(layer.qkv) && plain(layer.out) && plain(layer.gate_up) && plain(layer.down) &&
                      !layer.gate_up.bias.defined();
           });
}

}  // namespace

Model::Model(std::shared_ptr<const ModelWeights> weights, const ModelOptions& options)
    : weights_(std::move(weights)),
      max_length_(choose_max_length(weights_->config, options)),
      lengths_(static_cast<std::size_t>(checked_slots(options))),
      decode_buffers_(device(), weights_->config, weights_->dtype, std::max(slots(), Verifier::kMostRows)),
      may_join_norms_(may_join_norms(*weights_)),
      use_graph_(options.use_graph),
      chooser_(device(), slots(), weights_->config.num_tokens) {
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
    if (options.whole_step && !rotations_.empty()) {
        const ops::Rope rope{rotations_[0].inv_freq, rotations_[0].factor};
        whole_step_ = llm::whole_step(*weights_, layer_keys_, layer_values_, &rope);
    }
    log_ = PinnedPool::of(device()).allocate(static_cast<std::size_t>(slots() * (max_length_ + 1)) *
                                             sizeof(std::int32_t));
}

Model::~Model() {
    const std::vector<std::shared_ptr<Event>> after{chosen_.begin(), chosen_.end()};
    verifier_.reset();
    PinnedPool::of(device()).release(log_, after);
    chooser_.release(after);
}

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

// Chooses the next token of slots from logits_ and moves their positions on.
void Model::choose(std::int64_t first_slot, std::int64_t slots, std::int64_t tokens,
                   const Chooser::Mode& mode) {
    const auto of = [&](const Array& x) { return x.slice(0, first_slot, 1, slots); };
    chooser_.choose(of(logits_), first_slot, tokens, of(decode_buffers_.ids), of(positions_),
                    {reinterpret_cast<std::int32_t*>(log_.data), max_length_ + 1}, mode);
}

void Model::choose_by(const Choice& choice, std::span<const std::int32_t> prompt, std::int64_t slot) {
    check_slot("choose_by", slot);
    choice.validate();
    chooser_.begin(slot, choice, prompt);
}

void Model::reseed(std::int64_t slot) {
    check_slot("reseed", slot);
    chooser_.reseed(slot);
}

// To be waited for by chosen_after(). In a caller's capture nothing is known before its launch.
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
            forward(buffers, Place{slot, length + first, positions_.slice(0, slot, 1, 1)},
                    weights_->layers.size());
            if (all_logits) head(buffers.normed, all.slice(0, first, 1, here));
            if (first + here < count) {
                set_position(slot, length + first + here);
                continue;
            }
            head(buffers.normed.slice(0, here - 1, 1, 1), logits);
            Chooser::Mode mode;
            chooser_.add_to(mode, slot);
            choose(slot, 1, here, mode);
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

bool Model::steps_at_once(std::int64_t slots) const {
    if (whole_step_ == nullptr || slots == 1) return whole_step_ != nullptr;
    return slots <= kernels::kDecodeTexts &&
           *std::max_element(lengths_.begin(), lengths_.end()) < kKeysAtOnce && whole_step_->takes_texts();
}

void Model::step_at_once(std::int64_t slots, const Chooser::Mode& mode) {
    const auto of = [&](const Array& of_slots) { return of_slots.slice(0, 0, 1, slots); };
    const bool chooses = slots == 1 && mode == Chooser::Mode{};
    if (slots == 1) {
        whole_step_->run(of(decode_buffers_.ids), of(positions_), logits_.select(0, 0), chooses,
                         reinterpret_cast<std::int32_t*>(log_.data), max_length_ + 1);
    } else {
        whole_step_->run_texts(of(decode_buffers_.ids), of(positions_), of(logits_));
    }
    if (!chooses) choose(0, slots, 1, mode);
}

void Model::step(std::int64_t slots, const Chooser::Mode& mode) {
    const Buffers buffers = decode_buffers_.rows(0, slots);
    forward(buffers, std::nullopt, weights_->layers.size());
    head(buffers.normed, logits_.slice(0, 0, 1, slots));
    choose(0, slots, 1, mode);
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

Array Model::decode() { return decode(Steps::quickest); }

Array Model::decode(Steps how) {
    const std::int64_t slots = step_slots();
    const auto& stream = current_stream(device());
    Chooser::Mode mode;
    for (std::int64_t slot = 0; slot < slots; ++slot) {
        if (length(slot) > 0) chooser_.add_to(mode, slot);
    }
    if (how == Steps::quickest && steps_at_once(slots)) {
        step_at_once(slots, mode);  // a graph of one launch gains nothing
    } else if (use_graph_) {
        graphs_.run(stream, {slots, mode}, [&] { step(slots, mode); });
    } else {
        step(slots, mode);
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

std::int32_t Model::chosen(std::int64_t slot) const {
    check_slot("chosen", slot);
    if (length(slot) == 0) {
        throw error(ErrorKind::value,
                    {.call = "chosen", .expected = "a text to go on with", .got = "an empty context"});
    }
    std::int32_t token = 0;
    decode_buffers_.ids.slice(0, slot, 1, 1).copy_to_host(&token);
    return checked_choice(token);
}

std::int32_t Model::chosen_after(std::int64_t length, std::int64_t slot) const {
    check_slot("chosen_after", slot);
    const std::int64_t held = this->length(slot), steps_ago = held - length;
    if (length < 1 || steps_ago < 0) {
        throw error(ErrorKind::value, {.call = "chosen_after",
                                       .argument = "length",
                                       .expected = str("1 to ", held),
                                       .got = str(length)});
    }
    // Choices for other slots in between only make it a later one.
    const std::int64_t choice = std::max<std::int64_t>(choices_ - 1 - std::min(steps_ago, kAhead), 0);
    chosen_[static_cast<std::size_t>(choice % (kAhead + 1))]->synchronize();
    return checked_choice(
        reinterpret_cast<const std::int32_t*>(log_.data)[slot * (max_length_ + 1) + length]);
}

Verifier& Model::verifier() {
    if (!verifier_) verifier_ = std::make_unique<Verifier>(*this);
    return *verifier_;
}

TokenLogprobs Model::logprobs_after(std::int64_t length, std::int64_t slot) const {
    chosen_after(length, slot);
    return chooser_.logprobs(slot, length);
}

}  // namespace gpk::llm
