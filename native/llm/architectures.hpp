// The families of models: one row each of what differs between them.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "llm/config.hpp"

namespace gpk::llm {

enum class NormKind : std::uint8_t { rms, layer };

// Which layers see a window only.
enum class Windows : std::uint8_t {
    none,
    all,       // where the configuration has a window at all
    even,      // the first, the third, ...
    of_six,    // five in each six; or as sliding_window_pattern says
    trailing,  // from max_window_layers on, where use_sliding_window is set
};

// Where a layer's tensors are: names without ".weight". Null: the family has none.
struct TensorNames {
    const char* embedding = nullptr;
    const char* positions = nullptr;
    const char* layer_prefix = nullptr;
    const char* attention_norm = nullptr;
    const char* qkv = nullptr;  // all three in one, or
    const char* q = nullptr;
    const char* k = nullptr;
    const char* v = nullptr;
    const char* q_norm = nullptr;
    const char* k_norm = nullptr;
    const char* out = nullptr;
    const char* post_attention_norm = nullptr;
    const char* mlp_norm = nullptr;
    const char* gate = nullptr;
    const char* up = nullptr;
    const char* down = nullptr;
    const char* router = nullptr;   // of a layer with experts
    const char* experts = nullptr;  // before an expert's number and its three matrices, or
    const char* expert_gate = nullptr;
    const char* expert_up = nullptr;
    const char* expert_down = nullptr;
    const char* experts_gate_up = nullptr;  // those of all experts in one: [experts, 2 size, hidden]
    const char* experts_down = nullptr;     // [experts, hidden, size]
    const char* post_mlp_norm = nullptr;
    const char* final_norm = nullptr;
    const char* lm_head = nullptr;
    bool transposed = false;   // matrices are [in, out]
    bool interleaved = false;  // the rows of Q and K stand in the order of interleaved RoPE
    // Names' ends of tensors that can be derived, and that old checkpoints hold.
    std::string_view ignored[2] = {"rotary_emb.inv_freq", "rotary_emb.inv_freq"};
    // What all names but lm_head's begin with, in one checkpoint or another; the first where none fits.
    std::string_view prefixes[3] = {"model."};
    // What the names of parts begin with that write no text: those of a model that sees, too.
    std::string_view beside[4] = {};
};

struct Architecture {
    std::string_view model_type;   // in config.json
    std::string_view seeing = {};  // that of models that see, too, whose "text_config" describes this family
    std::string_view gguf;         // general.architecture; "": not read
    const TensorNames* names;
    const TensorNames* gguf_names = nullptr;  // llama.cpp's, where it is read
    NormKind norm = NormKind::rms;
    double norm_offset = 0;  // of the norms' weights as they are stored, but for GGUF files: what is missing
    bool gated = true;       // down(act(gate(x)) * up(x)), else down(act(up(x)))
    Activation activation = Activation::silu;  // where the configuration names none
    bool qkv_bias = false;                     // where it says nothing of biases
    bool biases = false;                       // all of them, always
    bool qk_norm = false;                      // RMSNorm of each head of q and k
    bool post_norms = false;                   // also after attention and MLP
    bool scaled_embedding = false;             // by sqrt(hidden_size)
    bool learned_positions = false;
    bool tied = false;  // where the configuration does not say
    bool experts = false;
    Windows windows = Windows::none;
    // What transformers takes where config.json leaves something out; a JSON object.
    std::string_view defaults = "{}";
};

std::span<const Architecture> architectures();
// Throws Error (unsupported), naming `what`.
const Architecture& architecture_of_json(const std::string& what, std::string_view model_type);
const Architecture& architecture_of_gguf(const std::string& what, std::string_view name);
// The family of what writes in a model that sees, too; null for other models.
const Architecture* writing_part_of(std::string_view model_type);

}  // namespace gpk::llm
