#include "llm/architectures.hpp"

#include <algorithm>
#include <iterator>

#include "base/error.hpp"

namespace gpk::llm {

namespace {

constexpr TensorNames kLlamaNames = {
    .embedding = "embed_tokens",
    .layer_prefix = "layers.",
    .attention_norm = "input_layernorm",
    .q = "self_attn.q_proj",
    .k = "self_attn.k_proj",
    .v = "self_attn.v_proj",
    .q_norm = "self_attn.q_norm",
    .k_norm = "self_attn.k_norm",
    .out = "self_attn.o_proj",
    .mlp_norm = "post_attention_layernorm",
    .gate = "mlp.gate_proj",
    .up = "mlp.up_proj",
    .down = "mlp.down_proj",
    .router = "mlp.gate",
    .experts = "mlp.experts.",
    .expert_gate = "gate_proj",
    .expert_up = "up_proj",
    .expert_down = "down_proj",
    .experts_gate_up = "mlp.experts.gate_up_proj",
    .experts_down = "mlp.experts.down_proj",
    .final_norm = "norm",
    .lm_head = "lm_head",
};
constexpr TensorNames with_post_norms(TensorNames names) {
    names.post_attention_norm = "post_attention_layernorm";
    names.mlp_norm = "pre_feedforward_layernorm";
    names.post_mlp_norm = "post_feedforward_layernorm";
    return names;
}
constexpr TensorNames kGemmaNames = with_post_norms(kLlamaNames);
// Of checkpoints of text alone, and those of models that see, as older and newer releases write them.
constexpr TensorNames with_a_model_that_sees(TensorNames names) {
    names.prefixes[1] = "language_model.model.";
    names.prefixes[2] = "model.language_model.";
    constexpr std::string_view kBeside[] = {"vision_tower.", "multi_modal_projector.", "model.vision_tower.",
                                            "model.multi_modal_projector."};
    std::copy(std::begin(kBeside), std::end(kBeside), names.beside);
    return names;
}
constexpr TensorNames kGemma3Names = with_a_model_that_sees(kGemmaNames);
constexpr TensorNames with_mixtral_experts(TensorNames names) {
    names.router = "block_sparse_moe.gate";
    names.experts = "block_sparse_moe.experts.";
    names.expert_gate = "w1";
    names.expert_up = "w3";
    names.expert_down = "w2";
    return names;
}
constexpr TensorNames kMixtralNames = with_mixtral_experts(kLlamaNames);
constexpr TensorNames kGpt2Names = {
    .embedding = "wte",
    .positions = "wpe",
    .layer_prefix = "h.",
    .attention_norm = "ln_1",
    .qkv = "attn.c_attn",
    .out = "attn.c_proj",
    .mlp_norm = "ln_2",
    .up = "mlp.c_fc",
    .down = "mlp.c_proj",
    .final_norm = "ln_f",
    .lm_head = "lm_head",
    .transposed = true,
    .ignored = {".attn.bias", ".attn.masked_bias"},
    .prefixes = {"", "transformer."},
};
constexpr TensorNames gguf(bool interleaved) {
    return {
        .embedding = "token_embd",
        .layer_prefix = "blk.",
        .attention_norm = "attn_norm",
        .q = "attn_q",
        .k = "attn_k",
        .v = "attn_v",
        .q_norm = "attn_q_norm",
        .k_norm = "attn_k_norm",
        .out = "attn_output",
        .post_attention_norm = "post_attention_norm",
        .mlp_norm = "ffn_norm",
        .gate = "ffn_gate",
        .up = "ffn_up",
        .down = "ffn_down",
        .post_mlp_norm = "post_ffw_norm",
        .final_norm = "output_norm",
        .lm_head = "output",
        .interleaved = interleaved,
        .ignored = {"rope_factors_long.weight", "rope_factors_short.weight"},  // in the configuration
        .prefixes = {""},
    };
}
constexpr TensorNames kGgufNames = gguf(false), kGgufLlamaNames = gguf(true);

constexpr Architecture kArchitectures[] = {
    {.model_type = "llama", .gguf = "llama", .names = &kLlamaNames, .gguf_names = &kGgufLlamaNames},
    {.model_type = "mistral", .gguf = "", .names = &kLlamaNames, .windows = Windows::all},
    {.model_type = "mixtral",
     .gguf = "",
     .names = &kMixtralNames,
     .experts = true,
     .windows = Windows::all,
     .defaults = R"({"norm_topk_prob": true})"},
    {.model_type = "qwen2",
     .gguf = "qwen2",
     .names = &kLlamaNames,
     .gguf_names = &kGgufNames,
     .qkv_bias = true,
     .windows = Windows::trailing},
    {.model_type = "qwen3",
     .gguf = "qwen3",
     .names = &kLlamaNames,
     .gguf_names = &kGgufNames,
     .qk_norm = true,
     .windows = Windows::trailing},
    {.model_type = "qwen3_moe",
     .gguf = "",
     .names = &kLlamaNames,
     .qk_norm = true,
     .experts = true,
     .windows = Windows::trailing},
    {.model_type = "gemma",
     .gguf = "",
     .names = &kLlamaNames,
     .norm_offset = 1,
     .activation = Activation::gelu_tanh,
     .scaled_embedding = true,
     .tied = true},
    {.model_type = "gemma2",
     .gguf = "",
     .names = &kGemmaNames,
     .norm_offset = 1,
     .activation = Activation::gelu_tanh,
     .post_norms = true,
     .scaled_embedding = true,
     .tied = true,
     .windows = Windows::even},
    {.model_type = "gemma3_text",
     .seeing = "gemma3",
     .gguf = "",
     .names = &kGemma3Names,
     .norm_offset = 1,
     .activation = Activation::gelu_tanh,
     .qk_norm = true,
     .post_norms = true,
     .scaled_embedding = true,
     .tied = true,
     .windows = Windows::of_six,
     .defaults = R"({"vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216,
                     "num_hidden_layers": 26, "num_attention_heads": 8, "num_key_value_heads": 4,
                     "head_dim": 256, "max_position_embeddings": 131072, "sliding_window": 4096,
                     "query_pre_attn_scalar": 256, "rope_theta": 1000000, "rope_local_base_freq": 10000})"},
    {.model_type = "gpt2",
     .gguf = "",
     .names = &kGpt2Names,
     .norm = NormKind::layer,
     .gated = false,
     .activation = Activation::gelu_tanh,
     .biases = true,
     .learned_positions = true,
     .tied = true},
};

const Architecture& find(const std::string& what, const char* argument, std::string_view wanted,
                         std::string_view Architecture::* name) {
    const auto found =
        std::find_if(std::begin(kArchitectures), std::end(kArchitectures),
                     [&](const Architecture& each) { return !wanted.empty() && each.*name == wanted; });
    if (found != std::end(kArchitectures)) return *found;
    std::string known;
    for (const Architecture& each : kArchitectures) {
        if ((each.*name).empty()) continue;
        known += (known.empty() ? "" : ", ") + std::string(each.*name);
    }
    throw error(ErrorKind::unsupported, {.call = what,
                                         .argument = argument,
                                         .expected = "one of " + known,
                                         .got = io::json_quoted(std::string(wanted))});
}

}  // namespace

std::span<const Architecture> architectures() { return kArchitectures; }

const Architecture& architecture_of_json(const std::string& what, std::string_view model_type) {
    return find(what, "model_type", model_type, &Architecture::model_type);
}
const Architecture& architecture_of_gguf(const std::string& what, std::string_view name) {
    return find(what, "general.architecture", name, &Architecture::gguf);
}

const Architecture* writing_part_of(std::string_view model_type) {
    const auto found = std::find_if(
        std::begin(kArchitectures), std::end(kArchitectures),
        [&](const Architecture& each) { return !each.seeing.empty() && each.seeing == model_type; });
    return found == std::end(kArchitectures) ? nullptr : &*found;
}

}  // namespace gpk::llm
