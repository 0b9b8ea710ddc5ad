// A small random Llama model in memory, and the same forward pass in float64.
#pragma once

#include <cstring>
#include <deque>
#include <map>
#include <string>

#include "io/tensor_view.hpp"
#include "llm/architectures.hpp"
#include "model_support.hpp"

using NamedTensors = std::map<std::string, std::pair<gpk::Dims, std::vector<float>>>;

// float32 tensors as a model file.
class MemoryFile : public gpk::io::TensorFile {
   public:
    explicit MemoryFile(const NamedTensors& tensors) : TensorFile("memory") {
        for (const auto& [name, tensor] : tensors) {
            auto& bytes = bytes_.emplace_back(tensor.second.size() * sizeof(float));
            std::memcpy(bytes.data(), tensor.second.data(), bytes.size());
            add({.name = name,
                 .type = gpk::io::StoredType::f32,
                 .dtype = gpk::DType::float32,
                 .shape = tensor.first,
                 .bytes = bytes});
        }
    }

   private:
    std::deque<std::vector<std::byte>> bytes_;
};

inline gpk::llm::ModelConfig small_config() {
    gpk::llm::ModelConfig config;
    config.architecture = &gpk::llm::architecture_of_json("test", "llama");
    config.vocab_size = 97;
    config.num_tokens = 97;
    config.hidden_size = 40;
    config.intermediate_size = 53;
    config.num_layers = 3;
    config.num_heads = 6;
    config.num_kv_heads = 2;
    config.head_dim = 12;
    config.max_positions = 1024;
    config.norm_eps = 1e-5;
    config.attention_scale = 1 / std::sqrt(12.0);
    config.ropes = {{.d = 12}};
    config.layers.resize(3);
    return config;
}

// By Hugging Face's names.
inline NamedTensors random_tensors(const gpk::llm::ModelConfig& c, std::uint32_t seed) {
    NamedTensors tensors;
    const auto matrix = [&](const std::string& name, std::int64_t rows, std::int64_t columns, bool bias) {
        const float scale = 1.5f / std::sqrt(static_cast<float>(columns));
        tensors[name + ".weight"] = {{rows, columns}, random_floats(rows * columns, seed++, scale)};
        if (bias) tensors[name + ".bias"] = {{rows}, random_floats(rows, seed++, 0.3f)};
    };
    const auto norm = [&](const std::string& name) {
        auto values = random_floats(c.hidden_size, seed++, 0.2f);
        for (float& value : values) value += 1;
        tensors[name + ".weight"] = {{c.hidden_size}, values};
    };
    matrix("model.embed_tokens", c.vocab_size, c.hidden_size, false);
    for (std::int64_t i = 0; i < c.num_layers; ++i) {
        const std::string prefix = "model.layers." + std::to_string(i) + ".";
        norm(prefix + "input_layernorm");
        matrix(prefix + "self_attn.q_proj", c.num_heads * c.head_dim, c.hidden_size, c.qkv_bias);
        matrix(prefix + "self_attn.k_proj", c.num_kv_heads * c.head_dim, c.hidden_size, c.qkv_bias);
        matrix(prefix + "self_attn.v_proj", c.num_kv_heads * c.head_dim, c.hidden_size, c.qkv_bias);
        matrix(prefix + "self_attn.o_proj", c.hidden_size, c.num_heads * c.head_dim, c.out_bias);
        norm(prefix + "post_attention_layernorm");
        matrix(prefix + "mlp.gate_proj", c.intermediate_size, c.hidden_size, c.mlp_bias);
        matrix(prefix + "mlp.up_proj", c.intermediate_size, c.hidden_size, c.mlp_bias);
        matrix(prefix + "mlp.down_proj", c.hidden_size, c.intermediate_size, c.mlp_bias);
    }
    norm("model.norm");
    if (!c.tie_word_embeddings) matrix("lm_head", c.vocab_size, c.hidden_size, false);
    return tensors;
}

// The same weights by llama.cpp's names, Q and K permuted as its converter does.
inline NamedTensors as_gguf(const NamedTensors& tensors, const gpk::llm::ModelConfig& c) {
    const std::pair<std::string, std::string> names[] = {
        {"model.embed_tokens", "token_embd"},
        {"model.norm", "output_norm"},
        {"lm_head", "output"},
        {"model.layers.", "blk."},
        {"self_attn.q_proj", "attn_q"},
        {"self_attn.k_proj", "attn_k"},
        {"self_attn.v_proj", "attn_v"},
        {"self_attn.o_proj", "attn_output"},
        {"input_layernorm", "attn_norm"},
        {"post_attention_layernorm", "ffn_norm"},
        {"mlp.gate_proj", "ffn_gate"},
        {"mlp.up_proj", "ffn_up"},
        {"mlp.down_proj", "ffn_down"},
    };
    NamedTensors result;
    for (const auto& [name, tensor] : tensors) {
        std::string renamed = name;
        for (const auto& [from, to] : names) {
            if (const auto at = renamed.find(from); at != std::string::npos)
                renamed.replace(at, from.size(), to);
        }
        auto [shape, values] = tensor;
        if (name.find("q_proj") != std::string::npos || name.find("k_proj") != std::string::npos) {
            // (heads, 2, d / 2, columns) -> (heads, d / 2, 2, columns)
            const auto d = static_cast<std::size_t>(c.head_dim);
            const std::size_t columns = values.size() / static_cast<std::size_t>(shape[0]);
            for (std::size_t row = 0; row < static_cast<std::size_t>(shape[0]); ++row) {
                const std::size_t head = row / d, half = row % d / (d / 2), i = row % (d / 2);
                std::copy_n(
                    tensor.second.begin() + static_cast<std::ptrdiff_t>(row * columns), columns,
                    values.begin() + static_cast<std::ptrdiff_t>((head * d + 2 * i + half) * columns));
            }
        }
        result[renamed] = {shape, values};
    }
    return result;
}

// The logits of every token, in float64.
inline std::vector<double> llama_reference(const gpk::llm::ModelConfig& c, const NamedTensors& tensors,
                                           const std::vector<std::int32_t>& ids) {
    using Matrix = std::vector<double>;  // rows are tokens
    const std::size_t n = ids.size(), hidden = static_cast<std::size_t>(c.hidden_size);
    const std::size_t d = static_cast<std::size_t>(c.head_dim), heads = static_cast<std::size_t>(c.num_heads);
    const std::size_t group = static_cast<std::size_t>(c.num_heads / c.num_kv_heads);
    const std::vector<float> frequencies = gpk::llm::rope_frequencies(c, 0, c.max_positions).inv_freq;
    const auto weight = [&](const std::string& name) -> const std::vector<float>& {
        return tensors.at(name).second;
    };
    const auto linear = [&](const Matrix& x, const std::string& name) {
        const auto& w = weight(name + ".weight");
        const std::size_t k = x.size() / n, rows = w.size() / k;
        Matrix y(n * rows);
        for (std::size_t t = 0; t < n; ++t) {
            for (std::size_t r = 0; r < rows; ++r) {
                double sum = tensors.contains(name + ".bias") ? weight(name + ".bias")[r] : 0.0;
                for (std::size_t i = 0; i < k; ++i) sum += x[t * k + i] * w[r * k + i];
                y[t * rows + r] = sum;
            }
        }
        return y;
    };
    const auto norm = [&](const Matrix& x, const std::string& name) {
        Matrix y(x.size());
        for (std::size_t t = 0; t < n; ++t) {
            double squares = 0;
            for (std::size_t i = 0; i < hidden; ++i) squares += x[t * hidden + i] * x[t * hidden + i];
            const double scale = 1 / std::sqrt(squares / double(hidden) + c.norm_eps);
            for (std::size_t i = 0; i < hidden; ++i) {
                y[t * hidden + i] = x[t * hidden + i] * scale * weight(name + ".weight")[i];
            }
        }
        return y;
    };
    const auto rotate = [&](Matrix& x) {
        const std::size_t width = x.size() / n;
        for (std::size_t at = 0; at < x.size(); at += d) {
            for (std::size_t i = 0; i < d / 2; ++i) {
                const double angle = double(at / width) * frequencies[i];
                const double a = x[at + i], b = x[at + i + d / 2];
                x[at + i] = a * std::cos(angle) - b * std::sin(angle);
                x[at + i + d / 2] = b * std::cos(angle) + a * std::sin(angle);
            }
        }
    };

    Matrix x;
    for (const std::int32_t id : ids) {
        const auto row = weight("model.embed_tokens.weight").begin() + id * c.hidden_size;
        x.insert(x.end(), row, row + c.hidden_size);
    }
    for (std::int64_t layer = 0; layer < c.num_layers; ++layer) {
        const std::string prefix = "model.layers." + std::to_string(layer) + ".";
        const Matrix h = norm(x, prefix + "input_layernorm");
        Matrix q = linear(h, prefix + "self_attn.q_proj"), k = linear(h, prefix + "self_attn.k_proj");
        const Matrix v = linear(h, prefix + "self_attn.v_proj");
        rotate(q);
        rotate(k);
        Matrix attended(q.size());
        const std::size_t kv_width = k.size() / n;
        for (std::size_t t = 0; t < n; ++t) {
            for (std::size_t head = 0; head < heads; ++head) {
                const double* query = q.data() + (t * heads + head) * d;
                std::vector<double> scores;
                for (std::size_t s = 0; s <= t; ++s) {
                    const double* key = k.data() + s * kv_width + head / group * d;
                    double dot = 0;
                    for (std::size_t i = 0; i < d; ++i) dot += query[i] * key[i];
                    scores.push_back(dot / std::sqrt(double(d)));
                }
                const double highest = *std::max_element(scores.begin(), scores.end());
                double sum = 0;
                for (double& score : scores) sum += score = std::exp(score - highest);
                for (std::size_t s = 0; s <= t; ++s) {
                    for (std::size_t i = 0; i < d; ++i) {
                        attended[(t * heads + head) * d + i] +=
                            scores[s] / sum * v[s * kv_width + head / group * d + i];
                    }
                }
            }
        }
        const Matrix out = linear(attended, prefix + "self_attn.o_proj");
        for (std::size_t i = 0; i < x.size(); ++i) x[i] += out[i];
        const Matrix m = norm(x, prefix + "post_attention_layernorm");
        Matrix gate = linear(m, prefix + "mlp.gate_proj");
        const Matrix up = linear(m, prefix + "mlp.up_proj");
        for (std::size_t i = 0; i < gate.size(); ++i) gate[i] = gate[i] / (1 + std::exp(-gate[i])) * up[i];
        const Matrix down = linear(gate, prefix + "mlp.down_proj");
        for (std::size_t i = 0; i < x.size(); ++i) x[i] += down[i];
    }
    return linear(norm(x, "model.norm"), c.tie_word_embeddings ? "model.embed_tokens" : "lm_head");
}
