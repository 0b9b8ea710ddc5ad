#include "llm/weights.hpp"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "base/error.hpp"
#include "ops/elementwise.hpp"
#include "ops/model_checks.hpp"

namespace gpk::llm {

namespace {

// GGUF: the frequencies' divisors, one for each pair of a head.
constexpr const char* kRopeDivisors = "rope_freqs.weight";

// One part of a fused matrix.
struct Part {
    std::string name;  // without ".weight"
    std::int64_t rows;
    std::int64_t interleaved_heads = 0;  // > 0: the rows are to be put back in order
};

class Loader {
   public:
    Loader(Device& device, const ModelConfig& config, const WeightSource& source, DType dtype,
           std::optional<QuantFormat> quantize)
        : device_(device),
          config_(config),
          source_(source),
          dtype_(dtype),
          quantize_(quantize),
          gguf_(config.architecture->gguf_names != nullptr && source.contains("token_embd.weight")),
          names_(gguf_ ? *config.architecture->gguf_names : *config.architecture->names) {
        const auto fits = [&](std::string_view each) {
            return source.contains(str(each, names_.embedding, ".weight"));
        };
        const auto found = std::find_if(std::begin(names_.prefixes), std::end(names_.prefixes), fits);
        prefix_ = found == std::end(names_.prefixes) ? names_.prefixes[0] : *found;
    }

    std::shared_ptr<const ModelWeights> load() {
        auto weights = std::make_shared<ModelWeights>();
        const ModelConfig& c = config_;
        const Architecture& a = *c.architecture;
        weights->config = c;
        weights->dtype = dtype_;
        const std::vector<Part> embedding = {{prefix_ + names_.embedding, c.vocab_size}};
        if (std::vector<ops::QuantizedWeight> codes = coded(embedding, c.hidden_size); !codes.empty()) {
            weights->embedding_codes = std::move(codes[0]);
        } else {
            weights->embedding = tensor(top(names_.embedding), {c.vocab_size, c.hidden_size});
        }
        if (a.learned_positions)
            weights->positions = tensor(top(names_.positions), {c.max_positions, c.hidden_size});
        for (std::int64_t i = 0; i < c.num_layers; ++i) weights->layers.push_back(layer(i));
        weights->final_norm = norm(prefix_ + names_.final_norm, c.hidden_size);
        const std::string lm_head = std::string(names_.lm_head) + ".weight";
        if (c.tie_word_embeddings) {
            weights->lm_head.weight = weights->embedding;
            if (weights->embedding_codes) weights->lm_head.codes = {*weights->embedding_codes};
            used_.insert(lm_head);
        } else {
            weights->lm_head.codes = coded({{names_.lm_head, c.vocab_size}}, c.hidden_size);
            if (weights->lm_head.codes.empty()) {
                set_matrix(weights->lm_head, tensor(lm_head, {c.vocab_size, c.hidden_size}), head_format());
            }
        }
        if (gguf_ && source_.contains(kRopeDivisors)) weights->rope_divisors = divisors();
        weights->parameters = parameters_;
        refuse_unexpected();
        source_.wait();
        return weights;
    }

   private:
    std::string top(const char* name) const { return prefix_ + name + ".weight"; }

    ModelLayer layer(std::int64_t index) {
        const ModelConfig& c = config_;
        const Architecture& a = *c.architecture;
        const std::string prefix = str(prefix_, names_.layer_prefix, index, ".");
        const auto at = [&](const char* name) { return prefix + name; };
        const std::int64_t q_rows = c.num_heads * c.head_dim, kv_rows = c.num_kv_heads * c.head_dim;
        const auto heads = [&](std::int64_t count) { return names_.interleaved ? count : 0; };
        std::vector<Part> qkv, gate_up;
        if (names_.qkv != nullptr) {
            qkv = {{at(names_.qkv), q_rows + 2 * kv_rows}};
        } else {
            qkv = {{at(names_.q), q_rows, heads(c.num_heads)},
                   {at(names_.k), kv_rows, heads(c.num_kv_heads)},
                   {at(names_.v), kv_rows}};
        }
        if (a.gated) gate_up.push_back({at(names_.gate), c.intermediate_size});
        gate_up.push_back({at(names_.up), c.intermediate_size});
        ModelLayer layer;
        layer.attention_norm = norm(at(names_.attention_norm), c.hidden_size);
        layer.qkv = linear(qkv, c.hidden_size, c.qkv_bias);
        if (a.qk_norm) {
            layer.q_norm = norm_weight(at(names_.q_norm), c.head_dim);
            layer.k_norm = norm_weight(at(names_.k_norm), c.head_dim);
        }
        layer.out = linear({{at(names_.out), c.hidden_size}}, q_rows, c.out_bias);
        layer.mlp_norm = norm(at(names_.mlp_norm), c.hidden_size);
        if (c.layers[static_cast<std::size_t>(index)].sparse) {
            layer.experts = experts(prefix);
        } else {
            layer.gate_up = linear(gate_up, c.hidden_size, c.mlp_bias);
            layer.down = linear({{at(names_.down), c.hidden_size}}, c.intermediate_size, c.mlp_bias);
        }
        if (a.post_norms) {
            layer.post_attention_norm = norm(at(names_.post_attention_norm), c.hidden_size);
            layer.post_mlp_norm = norm(at(names_.post_mlp_norm), c.hidden_size);
        }
        return layer;
    }

    Experts experts(const std::string& prefix) {
        const ExpertsConfig& e = config_.experts;
        const std::int64_t hidden = config_.hidden_size;
        Experts experts;
        experts.router = tensor(prefix + names_.router + ".weight", {e.count, hidden});
        const std::string whole = prefix + names_.experts_gate_up;
        if (source_.contains(whole)) {
            experts.gate_up = tensor(whole, {e.count, 2 * e.size, hidden});
            experts.down = tensor(prefix + names_.experts_down, {e.count, hidden, e.size});
            if (quantize_) quantize_whole(experts);
            return experts;
        }
        const auto name = [&](std::int64_t expert, const char* matrix) {
            return str(prefix, names_.experts, expert, ".", matrix, ".weight");
        };
        // All shapes are checked before memory is taken for their sum.
        for (std::int64_t i = 0; i < e.count; ++i) {
            find(name(i, names_.expert_gate), {e.size, hidden});
            find(name(i, names_.expert_up), {e.size, hidden});
            find(name(i, names_.expert_down), {hidden, e.size});
        }
        if (quantize_) {
            experts.gate_up_codes.emplace(device_, *quantize_, e.count, 2 * e.size, hidden, dtype_);
            experts.down_codes.emplace(device_, *quantize_, e.count, hidden, e.size, dtype_);
        } else {
            experts.gate_up = Array::empty(device_, {e.count, 2 * e.size, hidden}, dtype_);
            experts.down = Array::empty(device_, {e.count, hidden, e.size}, dtype_);
        }
        for (std::int64_t i = 0; i < e.count; ++i) {
            const Array both = quantize_ ? Array::empty(device_, {2 * e.size, hidden}, dtype_)
                                         : experts.gate_up.select(0, i);
            const Array down =
                quantize_ ? Array::empty(device_, {hidden, e.size}, dtype_) : experts.down.select(0, i);
            source_.load_into(both.slice(0, 0, 1, e.size), name(i, names_.expert_gate), {});
            source_.load_into(both.slice(0, e.size, 1, e.size), name(i, names_.expert_up), {});
            source_.load_into(down, name(i, names_.expert_down), {});
            if (!quantize_) continue;
            experts.gate_up_codes->set(i, both);
            experts.down_codes->set(i, down);
        }
        if (!quantize_) {
            experts.gate_up = experts.gate_up.readonly();
            experts.down = experts.down.readonly();
        }
        return experts;
    }

    void quantize_whole(Experts& experts) const {
        const auto codes_of = [&](Array& all) {
            const Dims& shape = all.shape();
            ops::QuantizedExperts codes(device_, *quantize_, shape[0], shape[1], shape[2], dtype_);
            for (std::int64_t i = 0; i < shape[0]; ++i) codes.set(i, all.select(0, i));
            all = Array();
            return codes;
        };
        experts.gate_up_codes = codes_of(experts.gate_up);
        experts.down_codes = codes_of(experts.down);
    }

    Norm norm(const std::string& name, std::int64_t n) {
        Norm norm{.weight = norm_weight(name, n), .bias = {}};
        if (config_.architecture->norm == NormKind::layer) norm.bias = tensor(name + ".bias", {n});
        return norm;
    }

    Array norm_weight(const std::string& name, std::int64_t n) {
        const Array stored = tensor(name + ".weight", {n});
        const double offset = gguf_ ? 0 : config_.architecture->norm_offset;
        if (offset == 0) return stored;
        return ops::binary(BinaryOp::add, stored, offset).readonly();
    }

    Linear linear(const std::vector<Part>& parts, std::int64_t columns, bool bias) {
        Linear linear;
        linear.codes = coded(parts, columns);
        if (linear.codes.empty()) set_matrix(linear, fused(parts, ".weight", columns), quantize_);
        if (bias) linear.bias = fused(parts, ".bias", 0);
        return linear;
    }

    static void set_matrix(Linear& linear, const Array& matrix, std::optional<QuantFormat> format) {
        if (format) {
            linear.codes = {ops::quantize(matrix, *format)};
        } else {
            linear.weight = matrix;
        }
    }

    // The parts' rows one after another as they are stored, where all are codes; neighbours in one format are
    // one matrix. Nothing where one is not, or where the model is to be quantised otherwise.
    std::vector<ops::QuantizedWeight> coded(const std::vector<Part>& parts, std::int64_t columns) {
        if (quantize_ || names_.transposed) return {};
        std::vector<ops::CodedMatrix> joined;
        for (const Part& part : parts) {
            const std::string name = part.name + ".weight";
            find(name, {part.rows, columns});
            std::optional<ops::CodedMatrix> matrix = source_.coded(name, original_rows(part), dtype_);
            if (!matrix) return {};
            if (!joined.empty() && ops::same_form(joined.back(), *matrix)) {
                joined.back() = ops::join_rows(joined.back(), *matrix);
            } else {
                joined.push_back(std::move(*matrix));
            }
        }
        std::vector<ops::QuantizedWeight> codes;
        for (const ops::CodedMatrix& matrix : joined) codes.push_back(ops::pack_codes(device_, matrix));
        return codes;
    }

    std::optional<QuantFormat> head_format() const {
        const bool narrow = quantize_ == QuantFormat::int4 || quantize_ == QuantFormat::nvfp4;
        return narrow ? QuantFormat::int8 : quantize_;
    }

    // The parts' rows one after another; `columns` of 0 gives a vector.
    Array fused(const std::vector<Part>& parts, const char* suffix, std::int64_t columns) {
        const bool turned = names_.transposed && columns > 0;
        const auto stored_shape = [&](std::int64_t rows) {
            if (columns == 0) return Dims{rows};
            return turned ? Dims{columns, rows} : Dims{rows, columns};
        };
        // All shapes are checked before memory is taken for their sum.
        std::int64_t rows = 0;
        for (const Part& part : parts) {
            find(part.name + suffix, stored_shape(part.rows));
            rows += part.rows;
        }
        const Array whole = Array::empty(device_, columns > 0 ? Dims{rows, columns} : Dims{rows}, dtype_);
        std::int64_t first = 0;
        for (const Part& part : parts) {
            const std::string name = part.name + suffix;
            const Array here = whole.slice(0, first, 1, part.rows);
            if (turned) {
                ops::assign(here, tensor(name, stored_shape(part.rows)).transpose({1, 0}));
            } else {
                source_.load_into(here, name, original_rows(part));
            }
            first += part.rows;
        }
        return whole.readonly();
    }

    // llama.cpp's convert_hf_to_gguf.py permutes each head's rows from (2, d / 2) to (d / 2, 2).
    std::vector<std::int64_t> original_rows(const Part& part) const {
        std::vector<std::int64_t> rows;
        const std::int64_t d = config_.head_dim;
        for (std::int64_t head = 0; head < part.interleaved_heads; ++head) {
            for (std::int64_t half = 0; half < 2; ++half) {
                for (std::int64_t i = 0; i < d / 2; ++i) rows.push_back(head * d + 2 * i + half);
            }
        }
        return rows;
    }

    Array tensor(const std::string& name, const Dims& shape) { return tensor(name, shape, dtype_); }

    Array tensor(const std::string& name, const Dims& shape, DType dtype) {
        find(name, shape);
        const Array array = Array::empty(device_, shape, dtype);
        source_.load_into(array, name, {});
        return array.readonly();
    }

    // Checks that it is there, and what it is.
    void find(const std::string& name, const Dims& shape) {
        const Dims stored = source_.shape(name);
        if (stored != shape) {
            throw error(ErrorKind::file, {.call = str(source_.what(), ": tensor '", name, "'"),
                                          .expected = "shape " + to_string(shape),
                                          .got = to_string(stored)});
        }
        source_.check_convertible(name, dtype_);
        if (used_.insert(name).second) parameters_ += element_count(shape);
    }

    std::vector<float> divisors() {
        if (config_.ropes.empty()) return {};  // then it is one tensor too many
        std::vector<float> values(static_cast<std::size_t>(config_.ropes[0].d / 2));
        tensor(kRopeDivisors, {config_.ropes[0].d / 2}, DType::float32).copy_to_host(values.data());
        for (const float each : values) {
            if (!(each > 0)) {
                throw error(ErrorKind::file, {.call = str(source_.what(), ": tensor '", kRopeDivisors, "'"),
                                              .expected = "numbers > 0",
                                              .got = str(each)});
            }
        }
        return values;
    }

    // A tensor that the config knows nothing of (a bias, a further layer) would be left out silently.
    void refuse_unexpected() const {
        for (const std::string& name : source_.names()) {
            const auto derived = [&](std::string_view end) { return name.ends_with(end); };
            const auto apart = [&](std::string_view begin) {
                return !begin.empty() && name.starts_with(begin);
            };
            if (used_.contains(name) ||
                std::any_of(std::begin(names_.ignored), std::end(names_.ignored), derived) ||
                std::any_of(std::begin(names_.beside), std::end(names_.beside), apart)) {
                continue;
            }
            throw error(ErrorKind::file,
                        {.call = str(source_.what(), ": tensor ", io::json_quoted(name)),
                         .expected = "only the tensors that the model's configuration asks for",
                         .got = "one more"});
        }
    }

    Device& device_;
    const ModelConfig& config_;
    const WeightSource& source_;
    DType dtype_;
    std::optional<QuantFormat> quantize_;
    bool gguf_;
    const TensorNames& names_;
    std::string prefix_;
    std::set<std::string, std::less<>> used_;
    std::int64_t parameters_ = 0;
};

}  // namespace

std::shared_ptr<const ModelWeights> ModelWeights::load(Device& device, const ModelConfig& config,
                                                       const WeightSource& source, DType dtype,
                                                       std::optional<QuantFormat> quantize) {
    ops::require_model_float("load", "dtype", dtype);
    config.validate(source.what());
    return Loader(device, config, source, dtype, quantize).load();
}

}  // namespace gpk::llm
