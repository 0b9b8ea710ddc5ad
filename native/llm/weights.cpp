#include "llm/weights.hpp"

#include <set>
#include <string>

#include "base/error.hpp"
#include "io/dequantize.hpp"
#include "io/load.hpp"
#include "ops/model_checks.hpp"

namespace gpk::llm {

namespace {

// A layer's tensors by their parts, and where the layer's name goes.
struct Names {
    const char* embedding;
    const char* layer_prefix;
    const char* attention_norm;
    const char* q;
    const char* k;
    const char* v;
    const char* out;
    const char* mlp_norm;
    const char* gate;
    const char* up;
    const char* down;
    const char* final_norm;
    const char* lm_head;
    bool interleaved;  // the rows of Q and K
};

constexpr Names kHuggingFace = {
    .embedding = "model.embed_tokens",
    .layer_prefix = "model.layers.",
    .attention_norm = "input_layernorm",
    .q = "self_attn.q_proj",
    .k = "self_attn.k_proj",
    .v = "self_attn.v_proj",
    .out = "self_attn.o_proj",
    .mlp_norm = "post_attention_layernorm",
    .gate = "mlp.gate_proj",
    .up = "mlp.up_proj",
    .down = "mlp.down_proj",
    .final_norm = "model.norm",
    .lm_head = "lm_head",
    .interleaved = false,
};
constexpr Names kGguf = {
    .embedding = "token_embd",
    .layer_prefix = "blk.",
    .attention_norm = "attn_norm",
    .q = "attn_q",
    .k = "attn_k",
    .v = "attn_v",
    .out = "attn_output",
    .mlp_norm = "ffn_norm",
    .gate = "ffn_gate",
    .up = "ffn_up",
    .down = "ffn_down",
    .final_norm = "output_norm",
    .lm_head = "output",
    .interleaved = true,
};
// GGUF: the frequencies' divisors, one for each pair of a head.
constexpr const char* kRopeDivisors = "rope_freqs.weight";
// Derived tensors that old checkpoints hold.
constexpr std::string_view kIgnoredSuffix = "rotary_emb.inv_freq";

// One part of a fused matrix.
struct Part {
    std::string name;  // without ".weight"
    std::int64_t rows;
    std::int64_t interleaved_heads = 0;  // > 0: the rows are to be put back in order
};

class Loader {
   public:
    Loader(Device& device, const LlamaConfig& config, const io::TensorFile& file, DType dtype)
        : device_(device),
          config_(config),
          file_(file),
          dtype_(dtype),
          names_(file.find(std::string(kGguf.embedding) + ".weight") != nullptr ? kGguf : kHuggingFace) {}

    std::shared_ptr<const LlamaWeights> load() {
        auto weights = std::make_shared<LlamaWeights>();
        const LlamaConfig& c = config_;
        weights->config = c;
        weights->dtype = dtype_;
        weights->embedding = tensor(std::string(names_.embedding) + ".weight", {c.vocab_size, c.hidden_size});
        for (std::int64_t i = 0; i < c.num_layers; ++i) weights->layers.push_back(layer(i));
        weights->final_norm = tensor(std::string(names_.final_norm) + ".weight", {c.hidden_size});
        const std::string lm_head = std::string(names_.lm_head) + ".weight";
        if (c.tie_word_embeddings) {
            weights->lm_head = weights->embedding;
            used_.insert(lm_head);
        } else {
            weights->lm_head = tensor(lm_head, {c.vocab_size, c.hidden_size});
        }
        weights->inv_freq = frequencies();
        weights->parameters = parameters_;
        refuse_unexpected();
        return weights;
    }

   private:
    LlamaLayer layer(std::int64_t index) {
        const LlamaConfig& c = config_;
        const std::string prefix = str(names_.layer_prefix, index, ".");
        const std::int64_t q_rows = c.num_heads * c.head_dim, kv_rows = c.num_kv_heads * c.head_dim;
        const auto heads = [&](std::int64_t count) { return names_.interleaved ? count : 0; };
        return {
            .attention_norm = tensor(prefix + names_.attention_norm + ".weight", {c.hidden_size}),
            .qkv = linear({{prefix + names_.q, q_rows, heads(c.num_heads)},
                           {prefix + names_.k, kv_rows, heads(c.num_kv_heads)},
                           {prefix + names_.v, kv_rows}},
                          c.hidden_size, c.attention_bias),
            .out = linear({{prefix + names_.out, c.hidden_size}}, q_rows, c.attention_bias),
            .mlp_norm = tensor(prefix + names_.mlp_norm + ".weight", {c.hidden_size}),
            .gate_up = linear(
                {{prefix + names_.gate, c.intermediate_size}, {prefix + names_.up, c.intermediate_size}},
                c.hidden_size, c.mlp_bias),
            .down = linear({{prefix + names_.down, c.hidden_size}}, c.intermediate_size, c.mlp_bias),
        };
    }

    Linear linear(const std::vector<Part>& parts, std::int64_t columns, bool bias) {
        return {.weight = fused(parts, ".weight", columns),
                .bias = bias ? fused(parts, ".bias", 0) : Array()};
    }

    // The parts' rows one after another; `columns` of 0 gives a vector.
    Array fused(const std::vector<Part>& parts, const char* suffix, std::int64_t columns) {
        const auto shape_of = [&](std::int64_t rows) {
            return columns > 0 ? Dims{rows, columns} : Dims{rows};
        };
        // All shapes are checked before memory is taken for their sum.
        std::int64_t rows = 0;
        for (const Part& part : parts) {
            find(part.name + suffix, shape_of(part.rows));
            rows += part.rows;
        }
        const Array whole = Array::empty(device_, shape_of(rows), dtype_);
        std::int64_t first = 0;
        for (const Part& part : parts) {
            const io::TensorView& stored = find(part.name + suffix, shape_of(part.rows));
            io::load_into(whole.slice(0, first, 1, part.rows), stored, original_rows(part));
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

    Array tensor(const std::string& name, const Dims& shape) {
        return io::load_tensor(device_, find(name, shape), dtype_);
    }

    const io::TensorView& find(const std::string& name, const Dims& shape) {
        const io::TensorView& stored = file_.tensor(name);
        if (stored.shape != shape) {
            throw error(ErrorKind::file, {.call = str(file_.path(), ": tensor '", name, "'"),
                                          .expected = "shape " + to_string(shape),
                                          .got = to_string(stored.shape)});
        }
        io::check_convertible(stored, dtype_);
        if (used_.insert(name).second) parameters_ += stored.size();
        return stored;
    }

    Array frequencies() {
        std::vector<float> values = rope_frequencies(config_);
        const auto count = static_cast<std::int64_t>(values.size());
        if (names_.interleaved && file_.find(kRopeDivisors) != nullptr) {
            const std::vector<float> divisors = io::read_float32(find(kRopeDivisors, {count}));
            for (std::size_t i = 0; i < values.size(); ++i) {
                if (!(divisors[i] > 0)) {
                    throw error(ErrorKind::file, {.call = str(file_.path(), ": tensor '", kRopeDivisors, "'"),
                                                  .expected = "numbers > 0",
                                                  .got = str(divisors[i])});
                }
                values[i] /= divisors[i];
            }
        }
        const Array array = Array::empty(device_, {count}, DType::float32);
        array.copy_from_host(values.data());
        return array.readonly();
    }

    // A tensor that the config knows nothing of (a bias, a further layer) would be left out silently.
    void refuse_unexpected() const {
        for (const io::TensorView& stored : file_.tensors()) {
            if (used_.contains(stored.name) || stored.name.ends_with(kIgnoredSuffix)) continue;
            throw error(ErrorKind::file,
                        {.call = str(file_.path(), ": tensor ", io::json_quoted(stored.name)),
                         .expected = "only the tensors that the model's configuration asks for",
                         .got = "one more"});
        }
    }

    Device& device_;
    const LlamaConfig& config_;
    const io::TensorFile& file_;
    DType dtype_;
    const Names& names_;
    std::set<std::string, std::less<>> used_;
    std::int64_t parameters_ = 0;
};

}  // namespace

std::shared_ptr<const LlamaWeights> LlamaWeights::load(Device& device, const LlamaConfig& config,
                                                       const io::TensorFile& file, DType dtype) {
    ops::require_model_float("Llama", "dtype", dtype);
    config.validate(file.path());
    return Loader(device, config, file, dtype).load();
}

}  // namespace gpk::llm
