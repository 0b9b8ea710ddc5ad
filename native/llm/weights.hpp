// LlamaWeights: a model's parameters on a device, read-only, in one dtype. Several Llama objects may
// share them.
#pragma once

#include <memory>
#include <vector>

#include "array/array.hpp"
#include "io/tensor_view.hpp"
#include "llm/config.hpp"

namespace gpk::llm {

// A matrix [out, in] with its bias [out], which is not defined where the model has none.
struct Linear {
    Array weight;
    Array bias;
};

struct LlamaLayer {
    Array attention_norm;  // [hidden]
    Linear qkv;            // the rows of q, then k, then v
    Linear out;
    Array mlp_norm;  // [hidden]
    Linear gate_up;  // the rows of gate, then up
    Linear down;
};

struct LlamaWeights {
    LlamaConfig config;
    DType dtype = DType::float32;
    Array embedding;  // [vocab, hidden]
    std::vector<LlamaLayer> layers;
    Array final_norm;             // [hidden]
    Array lm_head;                // [vocab, hidden]; the embedding where they are tied
    Array inv_freq;               // float32 [head_dim / 2]
    std::int64_t parameters = 0;  // as stored: tied ones count once

    // `file` holds tensors by Hugging Face's names or by llama.cpp's; in the latter, the rows of Q and K
    // stand in the order of interleaved RoPE and are put back. Each shape is checked against `config`.
    // Throws Error (file), naming the tensor, for one that is missing, misshapen or unexpected.
    // `dtype`: float32, float16 or bfloat16.
    static std::shared_ptr<const LlamaWeights> load(Device& device, const LlamaConfig& config,
                                                    const io::TensorFile& file, DType dtype);
};

}  // namespace gpk::llm
