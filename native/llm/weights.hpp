// ModelWeights: a model's parameters on a device, read-only, in one dtype. Several Model objects may share
// them.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "array/array.hpp"
#include "llm/architectures.hpp"
#include "llm/source.hpp"
#include "ops/quantize.hpp"

namespace gpk::llm {

// A matrix [out, in]; or, where it is quantised, the codes of it, in parts of the rows where these are in
// several formats. With its bias [out], which is not defined where the model has none.
struct Linear {
    Array weight;
    std::vector<ops::QuantizedWeight> codes;
    Array bias;
};

// Weights [n], with a bias where the architecture has layer norms.
struct Norm {
    Array weight;
    Array bias;
};

// A mixture of experts.
struct Experts {
    Array router;   // [experts, hidden]
    Array gate_up;  // [experts, 2 size, hidden]: each one's rows of gate, then up
    Array down;     // [experts, hidden, size]
    std::optional<ops::QuantizedExperts> gate_up_codes, down_codes;  // instead of these, where quantised
};

// What the architecture, or a layer of it, lacks is not defined.
struct ModelLayer {
    Norm attention_norm;
    Linear qkv;            // the rows of q, then k, then v
    Array q_norm, k_norm;  // [head_dim]
    Linear out;
    Norm post_attention_norm;
    Norm mlp_norm;
    Linear gate_up;  // the rows of gate, then up; those of up alone where there is no gate
    Linear down;
    Experts experts;  // instead of the two
    Norm post_mlp_norm;
};

struct ModelWeights {
    ModelConfig config;
    DType dtype = DType::float32;
    Array embedding;  // [vocab, hidden]; or
    std::optional<ops::QuantizedWeight> embedding_codes;
    Array positions;  // [max_positions, hidden], where they are learned
    std::vector<ModelLayer> layers;
    Norm final_norm;
    Linear lm_head;                    // [vocab, hidden]; the embedding where they are tied
    std::vector<float> rope_divisors;  // of the frequencies, or none (GGUF's rope_freqs)
    std::int64_t parameters = 0;       // as stored: tied ones count once

    // `source` holds tensors by Hugging Face's names or by llama.cpp's; what stands there in another order or
    // transposed is put right. Each shape is checked against `config`. Throws Error (file), naming the
    // tensor, for one that is missing, misshapen or unexpected. `dtype`: float32, float16 or bfloat16.
    // `quantize`: the format of the layers' matrices, those of experts too, and of the head where it is not
    // the embedding; a head takes int8 where they take 4 bits, for it decides between neighbours. Norms,
    // biases and the embedding stay as they are. Without `quantize`, matrices that the source holds as codes
    // stay those codes.
    static std::shared_ptr<const ModelWeights> load(Device& device, const ModelConfig& config,
                                                    const WeightSource& source, DType dtype,
                                                    std::optional<QuantFormat> quantize = std::nullopt);
};

}  // namespace gpk::llm
