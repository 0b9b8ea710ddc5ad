// A step in one launch beside the same step op by op.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>

#include "llama_support.hpp"
#include "llm/model.hpp"

namespace gpk::decode_step_tests {

using namespace gpk;
using llm::Model;
using llm::ModelConfig;
using llm::ModelWeights;

inline ModelConfig served_config(std::int64_t head_dim) {
    ModelConfig config = small_config();
    config.hidden_size = 128;
    config.intermediate_size = 192;
    config.num_layers = 2;
    config.num_heads = 6;
    config.num_kv_heads = 2;
    config.head_dim = head_dim;
    config.max_positions = 4096;
    config.attention_scale = 1 / std::sqrt(static_cast<double>(head_dim));
    config.ropes = {{.d = head_dim}};
    config.layers.resize(2);
    return config;
}

inline std::shared_ptr<const ModelWeights> weights_of(const ModelConfig& config, DType dtype,
                                                      std::optional<QuantFormat> quantize = std::nullopt,
                                                      std::uint32_t seed = 5) {
    NamedTensors tensors = random_tensors(config, seed);
    if (config.architecture->qk_norm) {
        for (std::int64_t i = 0; i < config.num_layers; ++i) {
            for (const char* name : {"q_norm", "k_norm"}) {
                auto values = random_floats(config.head_dim, ++seed, 0.3f);
                for (float& value : values) value += 1;
                tensors["model.layers." + std::to_string(i) + ".self_attn." + name + ".weight"] = {
                    {config.head_dim}, values};
            }
        }
    }
    const MemoryFile file(tensors);
    return ModelWeights::load(test_device(), config, llm::FileSource(file), dtype, quantize);
}

inline std::vector<float> on_host(const Array& logits) {
    const Array whole = logits.rank() == 2 ? logits.select(0, 0) : logits;
    std::vector<float> values(static_cast<std::size_t>(whole.size()));
    whole.copy_to_host(values.data());
    return values;
}

template <class T>
double distance(const std::vector<float>& a, const std::vector<T>& b) {
    double difference = 0, norm = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
        difference += (a[i] - b[i]) * (a[i] - b[i]);
        norm += double(b[i]) * double(b[i]);
    }
    return std::sqrt(difference / norm);
}

inline std::vector<std::int32_t> some_tokens(std::size_t count, std::uint32_t seed) {
    std::mt19937 generator(seed);
    std::vector<std::int32_t> tokens(count);
    for (auto& token : tokens) token = static_cast<std::int32_t>(generator() % 97);
    return tokens;
}

inline double bound_of(DType dtype) { return dtype == DType::bfloat16 ? 2e-2 : 3e-3; }

// Both models see the same tokens; each step is compared.
inline void compare(const std::shared_ptr<const ModelWeights>& weights, std::size_t prompt_length,
                    std::size_t steps) {
    const ModelConfig& config = weights->config;
    const DType dtype = weights->dtype;
    const std::int64_t room = static_cast<std::int64_t>(prompt_length + steps) + 2;
    Model whole(weights, {.max_length = room}), plain(weights, {.max_length = room, .whole_step = false});
    ASSERT_TRUE(whole.steps_at_once());
    ASSERT_FALSE(plain.steps_at_once());
    const auto prompt = some_tokens(prompt_length, 3), more = some_tokens(steps, 4);
    whole.prefill(prompt);
    plain.prefill(prompt);
    for (const std::int32_t token : more) {
        const auto a = on_host(whole.decode(token)), b = on_host(plain.decode(token));
        ASSERT_LT(distance(a, b), bound_of(dtype));
        const auto largest = std::max_element(a.begin(), a.begin() + config.num_tokens) - a.begin();
        ASSERT_EQ(whole.chosen(), largest);
        ASSERT_EQ(whole.chosen_after(whole.length()), largest);
    }
    // Both hold the same keys and values afterwards.
    const auto a = on_host(whole.decode(1)), b = on_host(plain.decode(1));
    EXPECT_LT(distance(a, b), bound_of(dtype));
}
inline void compare(const ModelConfig& config, DType dtype, std::size_t prompt_length, std::size_t steps) {
    compare(weights_of(config, dtype), prompt_length, steps);
}

// By dtype and head size.
class WholeStepTest : public testing::TestWithParam<std::tuple<DType, std::int64_t>> {
   protected:
    void SetUp() override {
        const int sm = test_device().info().sm;
        if (sm != 0 && sm != 90) GTEST_SKIP() << "no kernel for SM " << sm;
    }
    static DType dtype() { return std::get<0>(GetParam()); }
    static ModelConfig config() { return served_config(std::get<1>(GetParam())); }
};

}  // namespace gpk::decode_step_tests
