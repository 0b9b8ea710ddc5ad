// DecodeStep: one token of a llama-like model in one launch, or of each of up to eight texts, see
// kernels/decode/decode_step.hpp. It keeps the arrays that it is made of, and what its blocks exchange.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "array/array.hpp"
#include "kernels/decode/decode_texts.hpp"
#include "ops/quantize.hpp"

namespace gpk::ops {

// Matrices are [out, in]. What a layer lacks is not defined.
struct DecodeStepArrays {
    Array attention_norm;      // [hidden]
    Array qkv, qkv_bias;       // the rows of q, then k, then v
    Array q_norm, k_norm;      // [d]
    Array out, out_bias;       // [hidden, heads * d]
    Array mlp_norm;            // [hidden]
    Array gate_up, gate_bias;  // the rows of gate, then up: [2 intermediate, hidden]
    Array down, down_bias;     // [hidden, intermediate]
    Array keys, values;        // [texts, kv_heads, capacity, d], written
    // Instead of the matrices, where they are quantised: all four.
    std::optional<QuantizedWeight> qkv_codes, out_codes, gate_up_codes, down_codes;
    std::int64_t left = INT32_MAX;  // keys before its own that a query sees
};

struct DecodeStepModel {
    Array embedding, final_norm, head;  // [vocab, hidden], [hidden], [vocab, hidden]
    // Instead of the embedding and of the head, where the layers are quantised, too.
    std::optional<QuantizedWeight> embedding_codes, head_codes;
    std::vector<DecodeStepArrays> layers;
    Array inv_freq;  // float32 [d / 2]: the rotation, and what its cosines and sines are multiplied by
    double rope_factor = 1;
    std::int64_t heads = 0, kv_heads = 0, head_dim = 0, intermediate = 0;
    std::int64_t num_tokens = 0;  // ids that may be chosen
    double norm_eps = 1e-6;
    double scale = 1;  // of the products of queries and keys
    GluOp glu = GluOp::swiglu;
};

class DecodeStep {
   public:
    // Null where no kernel serves the model on its device: it wants float16 or bfloat16 without gaps, heads
    // of 64 or 128 elements that turn as a whole, sizes in whole 64 and SM 90 (or the simulated device).
    // Of quantised matrices it takes int8 and int4, in their own order along k.
    static std::unique_ptr<DecodeStep> make(DecodeStepModel model);

    // The token [1] at the position [1] (int32, in device memory) goes into the first text's cache; logits
    // float32 [vocab]. With `choose`, `token` is then the one with the largest logit, `position` one more,
    // and the token in log[position], in pinned host memory or null. Nothing happens where the position is
    // below 0.
    void run(const Array& token, const Array& position, const Array& logits, bool choose, std::int32_t* log,
             std::int64_t log_size);

    // Whether run_texts() serves the model on the current stream: of 16 bits, of up to 2,048 elements (8,192
    // of `intermediate`), with some rows of each matrix for every multiprocessor.
    bool takes_texts() const;
    // The tokens [n] at the positions [n], 1 to 8 of them, each into its own text's cache; logits float32 [n,
    // vocab]. A text whose position is below 0 has none. A text's bits do not depend on what the others are.
    void run_texts(const Array& tokens, const Array& positions, const Array& logits);

   private:
    // Of launches of so many blocks.
    struct State {
        Array exchange, epochs, vectors;
    };
    // `texts` is 0 where run() launches.
    struct Launches {
        int blocks, texts;
        auto operator<=>(const Launches&) const = default;
    };
    explicit DecodeStep(DecodeStepModel model);
    State state(Launches of, std::int64_t words, std::int64_t vector_words);
    int blocks() const;
    std::int32_t max_splits(int blocks, std::int64_t texts) const;
    std::int64_t texts_slots(int blocks) const;
    template <class Params>
    void launch(const Kernel& kernel, int blocks, int threads, std::int64_t shared_bytes,
                const Params& params, std::initializer_list<const Array*> reads,
                std::initializer_list<const Array*> writes) const;

    DecodeStepModel model_;
    kernels::DecodeStepParams params_;
    const Kernel* kernel_;
    Array layers_;
    std::vector<const Array*> reads_;
    double bytes_ = 0;  // of the weights
    std::map<Launches, State> states_;
};

}  // namespace gpk::ops
