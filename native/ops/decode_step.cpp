#include "ops/decode_step.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "ops/launch.hpp"
#include "ops/model_checks.hpp"
#include "ops/sm90.hpp"

namespace gpk::ops {

namespace {

using kernels::DecodeChunks;
using kernels::DecodeCodes;
using kernels::DecodeLayerCodes;
using kernels::DecodeStepLayer;
using kernels::DecodeStepParams;

constexpr std::int64_t kUnit = DecodeChunks::kUnit;
constexpr int kInFlightWaiting = 2, kTextsInFlightWaiting = 1;
constexpr std::int64_t kMostHeads = 512, kMostSplits = 32;

// A layer's matrices where they are quantised.
struct CodesField {
    std::optional<QuantizedWeight> DecodeStepArrays::* codes;
    const void* DecodeStepLayer::* address;
    kernels::DecodePart part;
};
constexpr CodesField kCodes[] = {
    {&DecodeStepArrays::qkv_codes, &DecodeStepLayer::qkv, kernels::DecodePart::qkv},
    {&DecodeStepArrays::out_codes, &DecodeStepLayer::out, kernels::DecodePart::out},
    {&DecodeStepArrays::gate_up_codes, &DecodeStepLayer::gate_up, kernels::DecodePart::gate_up},
    {&DecodeStepArrays::down_codes, &DecodeStepLayer::down, kernels::DecodePart::down},
};

// Arrays of a layer and where the kernel has their addresses.
struct LayerField {
    Array DecodeStepArrays::* array;
    const void* DecodeStepLayer::* address;
};
constexpr LayerField kFields[] = {
    {&DecodeStepArrays::attention_norm, &DecodeStepLayer::attention_norm},
    {&DecodeStepArrays::qkv, &DecodeStepLayer::qkv},
    {&DecodeStepArrays::qkv_bias, &DecodeStepLayer::qkv_bias},
    {&DecodeStepArrays::q_norm, &DecodeStepLayer::q_norm},
    {&DecodeStepArrays::k_norm, &DecodeStepLayer::k_norm},
    {&DecodeStepArrays::out, &DecodeStepLayer::out},
    {&DecodeStepArrays::out_bias, &DecodeStepLayer::out_bias},
    {&DecodeStepArrays::mlp_norm, &DecodeStepLayer::mlp_norm},
    {&DecodeStepArrays::gate_up, &DecodeStepLayer::gate_up},
    {&DecodeStepArrays::gate_bias, &DecodeStepLayer::gate_up_bias},
    {&DecodeStepArrays::down, &DecodeStepLayer::down},
    {&DecodeStepArrays::down_bias, &DecodeStepLayer::down_bias},
};

bool has_shape(const Array& array, const Dims& shape, DType dtype) {
    return array.defined() && array.dtype() == dtype && array.shape() == shape && array.is_contiguous() &&
           aligned16(array);
}

bool has_codes(const std::optional<QuantizedWeight>& w, std::int64_t n, std::int64_t k) {
    return w && (w->format == QuantFormat::int8 || w->format == QuantFormat::int4) && w->n == n &&
           w->k == k && !w->columns.defined();
}

// Of the embedding.
struct Table {
    std::int64_t vocab, hidden;
    explicit Table(const DecodeStepModel& m)
        : vocab(m.embedding_codes ? m.embedding_codes->n : m.embedding.shape()[0]),
          hidden(m.embedding_codes ? m.embedding_codes->k : m.embedding.shape()[1]) {}
};

bool is_quantized(const DecodeStepModel& m) { return !m.layers.empty() && m.layers[0].qkv_codes.has_value(); }

// The kernel for all codes of the model.
std::optional<kernels::DecodeForm> form_of(const DecodeStepModel& m) {
    using kernels::DecodeForm;
    if (!is_quantized(m)) return std::nullopt;
    const auto is = [](const std::optional<QuantizedWeight>& w, QuantFormat format, std::int64_t group) {
        return w && w->format == format && w->group == group && !w->offsets.defined();
    };
    if (m.head_codes && !is(m.head_codes, QuantFormat::int8, 0)) return DecodeForm::any;
    const auto all = [&](QuantFormat format, std::int64_t group) {
        return std::all_of(m.layers.begin(), m.layers.end(), [&](const DecodeStepArrays& layer) {
            return std::all_of(std::begin(kCodes), std::end(kCodes), [&](const CodesField& field) {
                return is(layer.*field.codes, format, group);
            });
        });
    };
    return all(QuantFormat::int8, 0)     ? DecodeForm::int8
           : all(QuantFormat::int4, 128) ? DecodeForm::int4_128
                                         : DecodeForm::any;
}

bool serves_layer(const DecodeStepModel& m, const DecodeStepArrays& layer) {
    const DType dtype = m.final_norm.dtype();
    const std::int64_t hidden = Table(m).hidden, d = m.head_dim, of_heads = m.heads * d;
    const std::int64_t qkv = of_heads + 2 * m.kv_heads * d;
    const auto has = [&](const Array& array, const Dims& shape) { return has_shape(array, shape, dtype); };
    const auto may = [&](const Array& array, std::int64_t n) { return !array.defined() || has(array, {n}); };
    const bool quantized = is_quantized(m);
    const auto matrix = [&](const Array& array, const std::optional<QuantizedWeight>& codes, std::int64_t n,
                            std::int64_t k) {
        return quantized ? has_codes(codes, n, k) : !codes && has(array, {n, k});
    };
    return has(layer.attention_norm, {hidden}) && matrix(layer.qkv, layer.qkv_codes, qkv, hidden) &&
           may(layer.qkv_bias, qkv) && may(layer.q_norm, d) && may(layer.k_norm, d) &&
           matrix(layer.out, layer.out_codes, hidden, of_heads) && may(layer.out_bias, hidden) &&
           has(layer.mlp_norm, {hidden}) &&
           matrix(layer.gate_up, layer.gate_up_codes, 2 * m.intermediate, hidden) &&
           may(layer.gate_bias, 2 * m.intermediate) &&
           matrix(layer.down, layer.down_codes, hidden, m.intermediate) && may(layer.down_bias, hidden) &&
           has(layer.keys, {layer.keys.shape()[0], m.kv_heads, layer.keys.shape()[2], d}) &&
           has(layer.values, layer.keys.shape()) && layer.left >= 0;
}

std::int64_t slot_bytes(const DecodeStepParams& p) {
    return p.codes != nullptr ? kernels::kDecodeCodesSlotBytes : kernels::kDecodeStepSlotBytes;
}

// As many as fit beside `bytes` of shared memory.
std::int64_t slots_of(const Device& device, std::int64_t bytes, std::int64_t of_slot) {
    const auto all = static_cast<std::int64_t>(device.info().shared_bytes_per_block);
    return std::min<std::int64_t>((all - kernels::kDecodeStepStaticBytes - bytes) / of_slot,
                                  kernels::kDecodeStepMostSlots);
}

bool serves(const DecodeStepModel& m) {
    const bool table = m.embedding_codes || (m.embedding.defined() && m.embedding.rank() == 2);
    if (!table || !m.final_norm.defined() || m.layers.empty()) return false;
    const DType dtype = m.final_norm.dtype();
    const Kernel* kernel = kernels::decode_step(dtype, m.head_dim, form_of(m));
    if (kernel == nullptr || !runs_sm90(*kernel, m.final_norm.device().info().sm)) return false;
    const auto [vocab, hidden] = Table(m);
    constexpr std::int64_t kMostIntermediate = 1 << 16;
    const bool sizes = hidden % kUnit == 0 && hidden > 0 && hidden <= kernels::kDecodeStepMostHidden &&
                       m.intermediate % kUnit == 0 && m.intermediate > 0 &&
                       m.intermediate <= kMostIntermediate && m.kv_heads > 0 && m.heads % m.kv_heads == 0 &&
                       m.heads > 0 && m.heads <= kMostHeads && m.num_tokens > 0 && m.num_tokens <= vocab &&
                       vocab <= INT32_MAX;
    const auto is_table = [&](const Array& array, const std::optional<QuantizedWeight>& codes) {
        return codes ? is_quantized(m) && has_codes(codes, vocab, hidden)
                     : has_shape(array, {vocab, hidden}, dtype);
    };
    if (!sizes || !is_table(m.embedding, m.embedding_codes) || !is_table(m.head, m.head_codes) ||
        !has_shape(m.final_norm, {hidden}, dtype) ||
        !has_shape(m.inv_freq, {m.head_dim / 2}, DType::float32)) {
        return false;
    }
    return std::all_of(m.layers.begin(), m.layers.end(), [&](const DecodeStepArrays& layer) {
        return layer.keys.defined() && layer.keys.rank() == 4 && layer.keys.shape()[2] > 0 &&
               layer.keys.shape() == m.layers[0].keys.shape() && layer.keys.shape()[2] <= INT32_MAX &&
               serves_layer(m, layer);
    });
}

}  // namespace

std::unique_ptr<DecodeStep> DecodeStep::make(DecodeStepModel model) {
    if (!serves(model)) return nullptr;
    std::unique_ptr<DecodeStep> step(new DecodeStep(std::move(model)));
    return step->params_.slots >= kernels::kDecodeStepLeastSlots ? std::move(step) : nullptr;
}

DecodeStep::DecodeStep(DecodeStepModel model) : model_(std::move(model)), params_() {
    const DecodeStepModel& m = model_;
    Device& device = m.final_norm.device();
    kernel_ = kernels::decode_step(m.final_norm.dtype(), m.head_dim, form_of(m));
    const auto narrow = [](std::int64_t value) { return static_cast<std::int32_t>(value); };
    DecodeStepParams& p = params_;
    p.embedding = (m.embedding_codes ? m.embedding_codes->data : m.embedding).as<const void>();
    p.embedding_codes =
        m.embedding_codes ? DecodeCodes::of(m.embedding_codes->layout()) : DecodeCodes::none();
    p.final_norm = m.final_norm.as<const void>();
    p.rope = {m.inv_freq.as<const float>(), narrow(m.head_dim / 2), static_cast<float>(m.rope_factor)};
    p.layer_count = narrow(std::ssize(m.layers));
    p.hidden = narrow(Table(m).hidden);
    p.heads = narrow(m.heads);
    p.kv_heads = narrow(m.kv_heads);
    p.intermediate = narrow(m.intermediate);
    p.vocab = narrow(Table(m).vocab);
    p.num_tokens = narrow(m.num_tokens);
    p.capacity = narrow(m.layers[0].keys.shape()[2]);
    p.norm_eps = static_cast<float>(m.norm_eps);
    p.scale = static_cast<float>(m.scale);
    p.glu = m.glu;

    std::vector<DecodeStepLayer> table;
    std::vector<DecodeLayerCodes> codes;
    reads_ = {&m.final_norm, &m.inv_freq, &layers_};
    if (m.embedding_codes) {
        const QuantizedWeight& w = *m.embedding_codes;
        for (const Array* array : {&w.data, &w.scales, &w.offsets})
            if (array->defined()) reads_.push_back(array);
    } else {
        reads_.push_back(&m.embedding);
    }
    const auto read = [&](const Array& array) {
        if (!array.defined()) return;
        reads_.push_back(&array);
        bytes_ += static_cast<double>(array.nbytes());
    };
    p.least_group = kernels::kDecodeCodesBlock;
    const auto read_codes = [&](const QuantizedWeight& w) {
        for (const Array* array : {&w.data, &w.scales, &w.offsets}) read(*array);
        if (w.group != 0) p.least_group = std::min(p.least_group, narrow(w.group));
        return DecodeCodes::of(w.layout());
    };
    p.head_codes = m.head_codes ? read_codes(*m.head_codes) : DecodeCodes::none();
    p.head = (m.head_codes ? m.head_codes->data : m.head).as<const void>();
    if (!m.head_codes) read(m.head);
    for (const DecodeStepArrays& layer : m.layers) {
        DecodeStepLayer& row = table.emplace_back();
        for (const LayerField& field : kFields) {
            const Array& array = layer.*field.array;
            if (!array.defined()) continue;
            row.*field.address = array.as<const void>();
            read(array);
        }
        if (is_quantized(m)) {
            DecodeLayerCodes& how = codes.emplace_back();
            for (const CodesField& field : kCodes) {
                how.of[static_cast<int>(field.part)] = read_codes(*(layer.*field.codes));
                row.*field.address = (layer.*field.codes)->data.as<const void>();
            }
        }
        row.keys = layer.keys.as<void>();
        row.values = layer.values.as<void>();
        row.left = layer.left;
    }
    // Both tables in one array.
    const std::size_t table_bytes = table.size() * sizeof(DecodeStepLayer);
    std::vector<unsigned char> bytes(table_bytes + codes.size() * sizeof(DecodeLayerCodes));
    std::memcpy(bytes.data(), table.data(), table_bytes);
    if (!codes.empty()) std::memcpy(bytes.data() + table_bytes, codes.data(), bytes.size() - table_bytes);
    layers_ = Array::empty(device, {std::ssize(bytes)}, DType::uint8);
    layers_.copy_from_host(bytes.data());
    const auto* tables = layers_.as<const unsigned char>();
    p.layers = reinterpret_cast<const DecodeStepLayer*>(tables);
    if (!codes.empty()) p.codes = reinterpret_cast<const DecodeLayerCodes*>(tables + table_bytes);

    p.parts = kernels::decode_step_shared(p, static_cast<int>(m.head_dim));
    p.slots = narrow(slots_of(device, p.parts.bytes, slot_bytes(p)));
    // Teams that multiply numbers want an even number; the warps that multiply codes all see every slot.
    if (p.codes == nullptr || !m.head_codes) p.slots = p.slots / 2 * 2;
    if (p.slots < kernels::kDecodeStepLeastSlots) return;  // make() gives none
    p.in_flight = p.slots;
    p.in_flight_waiting = std::min(p.in_flight, kInFlightWaiting);
}

int DecodeStep::blocks() const {
    return std::max(current_stream(model_.final_norm.device())->multiprocessors(), 1);
}

// So many that all texts' heads have blocks at once.
std::int32_t DecodeStep::max_splits(int blocks, std::int64_t texts) const {
    const std::int64_t queries = kernels::kDecodeStepQueries;
    const std::int64_t tiles = (model_.heads / model_.kv_heads + queries - 1) / queries * model_.kv_heads;
    return static_cast<std::int32_t>(std::clamp<std::int64_t>(blocks / (tiles * texts), 1, kMostSplits));
}

// `vector_words`: beside the words with epochs, those of decode_texts.
DecodeStep::State DecodeStep::state(Launches of, std::int64_t words, std::int64_t vector_words) {
    if (const auto known = states_.find(of); known != states_.end()) return known->second;
    Device& device = model_.final_norm.device();
    State state{Array::empty(device, {words}, DType::uint64),
                Array::empty(device, {of.blocks}, DType::uint32),
                Array::empty(device, {vector_words}, DType::uint32)};
    const auto& stream = current_stream(device);
    const UseScope scope;
    const std::pair<const Array*, std::uint8_t> fills[] = {
        {&state.exchange, 0}, {&state.epochs, 0}, {&state.vectors, 0xff}};
    for (const auto& [array, value] : fills) {
        if (array->size() == 0) continue;
        array->storage()->before_write(stream);
        device.launcher().fill(*stream, array->data(), value, array->nbytes());
    }
    // Of a capture, it is the graph's: each replay begins with the fill.
    if (stream->capture() == nullptr) states_.emplace(of, state);
    return state;
}

template <class Params>
void DecodeStep::launch(const Kernel& kernel, int blocks, int threads, std::int64_t shared_bytes,
                        const Params& params, std::initializer_list<const Array*> reads,
                        std::initializer_list<const Array*> writes) const {
    const LaunchConfig config{.grid = {static_cast<std::uint32_t>(blocks)},
                              .block = {static_cast<std::uint32_t>(threads)},
                              .shared_bytes = static_cast<std::uint32_t>(shared_bytes),
                              .cluster = 0};
    const auto& stream = current_stream(model_.final_norm.device());
    const UseScope scope;
    for (const Array* array : reads_) array->storage()->before_read(stream);
    for (const Array* array : reads) array->storage()->before_read(stream);
    for (const Array* array : writes) array->storage()->before_write(stream);
    for (const DecodeStepArrays& layer : model_.layers) {
        layer.keys.storage()->before_write(stream);
        layer.values.storage()->before_write(stream);
    }
    stream->device().launcher().launch(*stream, kernel, config, params, {.flops = bytes_, .bytes = bytes_});
}

void DecodeStep::run(const Array& token, const Array& position, const Array& logits, bool choose,
                     std::int32_t* log, std::int64_t log_size) {
    constexpr const char* kCall = "DecodeStep.run";
    require_array(kCall, "token", token, {1}, DType::int32);
    require_array(kCall, "position", position, {1}, DType::int32);
    require_array(kCall, "logits", logits, {params_.vocab}, DType::float32);
    require_contiguous(kCall, "logits", logits);
    require_writable(kCall, "token", token);
    require_writable(kCall, "position", position);
    require_writable(kCall, "logits", logits);
    const int blocks = this->blocks();
    DecodeStepParams p = params_;
    p.max_splits = max_splits(blocks, 1);
    p.at = kernels::decode_exchange(p, static_cast<int>(model_.head_dim), blocks);
    const State state = this->state({blocks, 0}, p.at.words, 0);
    p.exchange = state.exchange.as<std::uint64_t>();
    p.epochs = state.epochs.as<std::uint32_t>();
    p.token = token.as<std::int32_t>();
    p.position = position.as<std::int32_t>();
    p.logits = logits.as<float>();
    p.chooses = choose;
    p.log = log;
    p.log_size = log != nullptr ? log_size : 0;
    launch(*kernel_, blocks, kernels::kDecodeStepThreads, p.slots * slot_bytes(p) + p.parts.bytes, p, {},
           {&token, &position, &logits, &state.exchange, &state.epochs});
}

std::int64_t DecodeStep::texts_slots(int blocks) const {
    const kernels::DecodeTextsShared parts =
        kernels::decode_texts_shared(params_, static_cast<int>(model_.head_dim), blocks);
    return slots_of(model_.final_norm.device(), parts.bytes, kernels::kTextsSlotBytes);
}

bool DecodeStep::takes_texts() const {
    const DecodeStepParams& p = params_;
    const std::int64_t d = model_.head_dim, blocks = this->blocks();
    const std::int64_t of_heads = p.heads * d;
    const auto has_rows = [&](std::int64_t rows) { return rows / 2 >= blocks; };
    return p.codes == nullptr && p.hidden <= kernels::kTextsColumns && of_heads <= kernels::kTextsColumns &&
           p.intermediate <= kernels::kTextsMostIntermediate && has_rows(p.hidden) && has_rows(of_heads) &&
           has_rows(p.intermediate) &&
           texts_slots(static_cast<int>(blocks)) >= kernels::kDecodeStepLeastSlots;
}

void DecodeStep::run_texts(const Array& tokens, const Array& positions, const Array& logits) {
    constexpr const char* kCall = "DecodeStep.run_texts";
    const std::int64_t texts = tokens.rank() == 1 ? tokens.shape()[0] : 0;
    const std::int64_t most = std::min<std::int64_t>(kernels::kDecodeTexts, model_.layers[0].keys.shape()[0]);
    if (texts < 1 || texts > most || !takes_texts()) {
        throw error(ErrorKind::value,
                    {.call = kCall,
                     .argument = "tokens",
                     .expected = str("1 to ", most, " tokens, of a model that takes_texts()"),
                     .got = str(texts, takes_texts() ? "" : " of one that does not")});
    }
    require_array(kCall, "positions", positions, {texts}, DType::int32);
    require_array(kCall, "tokens", tokens, {texts}, DType::int32);
    require_array(kCall, "logits", logits, {texts, params_.vocab}, DType::float32);
    require_contiguous(kCall, "tokens", tokens);
    require_contiguous(kCall, "positions", positions);
    require_contiguous(kCall, "logits", logits);
    require_writable(kCall, "logits", logits);
    const int blocks = this->blocks(), d = static_cast<int>(model_.head_dim);
    kernels::DecodeTextsParams p{.step = params_,
                                 .at = kernels::decode_texts_vectors(params_, d),
                                 .parts = kernels::decode_texts_shared(params_, d, blocks),
                                 .vectors = nullptr,
                                 .text_cache = model_.layers[0].keys.strides()[0],
                                 .texts = static_cast<std::int32_t>(texts)};
    p.step.max_splits = max_splits(blocks, texts);
    p.step.at = kernels::decode_texts_exchange(p.step, d);
    p.step.slots = static_cast<std::int32_t>(texts_slots(blocks));
    p.step.in_flight = p.step.slots;
    p.step.in_flight_waiting = kTextsInFlightWaiting;
    const State state = this->state({blocks, static_cast<int>(texts)}, p.step.at.words, p.at.words);
    p.step.exchange = state.exchange.as<std::uint64_t>();
    p.step.epochs = state.epochs.as<std::uint32_t>();
    p.vectors = state.vectors.as<std::uint32_t>();
    p.step.token = tokens.as<std::int32_t>();
    p.step.position = positions.as<std::int32_t>();
    p.step.logits = logits.as<float>();
    launch(*kernels::decode_texts(model_.final_norm.dtype(), model_.head_dim), blocks, kernels::kTextsThreads,
           p.step.slots * std::int64_t{kernels::kTextsSlotBytes} + p.parts.bytes, p, {&tokens, &positions},
           {&logits, &state.exchange, &state.epochs, &state.vectors});
}

}  // namespace gpk::ops
