#include "llm/config.hpp"

#include <algorithm>
#include <cmath>

#include "base/error.hpp"
#include "llm/architectures.hpp"
#include "ops/experts.hpp"

namespace gpk::llm {

namespace {

// Bounds that keep every product of two sizes far inside int64.
constexpr std::int64_t kMaxSize = 1 << 28;
constexpr std::int64_t kMaxLayers = 1 << 14;

}  // namespace

void ModelConfig::validate(const std::string& what) const {
    const auto require = [&](bool holds, const char* field, const char* expected, const std::string& got) {
        if (!holds)
            throw error(ErrorKind::file, {.call = what, .argument = field, .expected = expected, .got = got});
    };
    const struct {
        const char* field;
        std::int64_t value;
        std::int64_t limit;
    } sizes[] = {
        {"vocab_size", vocab_size, kMaxSize},      {"num_tokens", num_tokens, vocab_size},
        {"hidden_size", hidden_size, kMaxSize},    {"intermediate_size", intermediate_size, kMaxSize},
        {"num_layers", num_layers, kMaxLayers},    {"num_heads", num_heads, 1 << 15},
        {"num_kv_heads", num_kv_heads, num_heads}, {"head_dim", head_dim, 256},
        {"max_positions", max_positions, 1 << 30},
    };
    for (const auto& size : sizes) {
        require(size.value >= 1 && size.value <= size.limit, size.field,
                str("a number from 1 to ", size.limit).c_str(), str(size.value));
    }
    require(head_dim % 2 == 0, "head_dim", "an even number", str(head_dim));
    require(num_heads % num_kv_heads == 0, "num_kv_heads", str("a divisor of ", num_heads, " heads").c_str(),
            str(num_kv_heads));
    if (experts.count != 0) {
        require(experts.count >= 1 && experts.count <= ops::kMostExperts, "num_experts",
                str("a number from 1 to ", ops::kMostExperts).c_str(), str(experts.count));
        const std::int64_t most = std::min(experts.count, ops::kMostRouteTop);
        require(experts.of_token >= 1 && experts.of_token <= most, "num_experts_per_tok",
                str("a number from 1 to ", most).c_str(), str(experts.of_token));
        require(experts.size >= 1 && experts.size <= kMaxSize, "moe_intermediate_size",
                str("a number from 1 to ", kMaxSize).c_str(), str(experts.size));
    }
    // As float32, which the kernels take.
    const auto finite = [](double value) { return std::isfinite(static_cast<float>(value)) && value >= 0; };
    require(finite(norm_eps), "norm_eps", "a number >= 0", str(norm_eps));
    require(finite(attention_scale) && static_cast<float>(attention_scale) > 0, "attention_scale",
            "a number > 0", str(attention_scale));
    require(finite(attention_soft_cap), "attn_logit_softcapping", "a number >= 0", str(attention_soft_cap));
    require(finite(logits_soft_cap), "final_logit_softcapping", "a number >= 0", str(logits_soft_cap));
    require(static_cast<std::int64_t>(layers.size()) == num_layers, "layer_types",
            str("one for each of ", num_layers, " layers").c_str(), str(layers.size()));
    require(architecture->learned_positions == ropes.empty(), "rope_parameters",
            "a rotation, or learned positions", "both or none");
    for (const LayerConfig& layer : layers) {
        require(layer.window >= 0 && layer.window <= 1 << 30, "sliding_window", "a number of tokens",
                str(layer.window));
        require(ropes.empty() || layer.rope < ropes.size(), "rope_parameters", "one for each kind of layer",
                str(ropes.size()));
    }
    for (const ops::RopeSettings& rope : ropes) {
        require(rope.d >= 2 && rope.d <= head_dim, "partial_rotary_factor", "a part of the head",
                str(rope.d));
    }
    // The rotations' own checks, once, before anything is loaded.
    try {
        for (std::size_t i = 0; i < ropes.size(); ++i) {
            const ops::RopeFrequencies table = rope_frequencies(*this, i, max_positions);
            const bool good = finite(table.attention_factor) &&
                              std::all_of(table.inv_freq.begin(), table.inv_freq.end(), finite);
            require(good, "rope_parameters", "finite frequencies", "an infinite one");
        }
    } catch (const Error& reason) {
        throw error(ErrorKind::file, {.call = what,
                                      .argument = "rope_parameters",
                                      .expected = "a rotation that can be computed",
                                      .got = reason.what()});
    }
}

std::int64_t ModelConfig::longest_context() const {
    const auto is_dynamic = [](const ops::RopeSettings& r) { return r.variant == ops::RopeVariant::dynamic; };
    if (ropes.empty() || !std::all_of(ropes.begin(), ropes.end(), is_dynamic)) return max_positions;
    constexpr double kMost = 1 << 30;
    return static_cast<std::int64_t>(std::clamp(static_cast<double>(max_positions) * ropes[0].factor,
                                                static_cast<double>(max_positions), kMost));
}

ops::RopeFrequencies rope_frequencies(const ModelConfig& config, std::size_t index, std::int64_t max_length) {
    ops::RopeSettings settings = config.ropes[index];
    settings.sequence_length = static_cast<double>(max_length);
    return ops::rope_frequencies("rope", settings);
}

}  // namespace gpk::llm
