// Steps in one launch of quantised models, against the same steps op by op.

#include <gtest/gtest.h>

#include "decode_step_support.hpp"
#include "ops/quantize.hpp"

namespace {

using namespace gpk::decode_step_tests;
using ops::QuantizedWeight;

// What files of codes hold: random codes, and scales (and offsets) of groups.
struct Form {
    QuantFormat format;
    std::int64_t group;
    bool offsets;
};

QuantizedWeight random_codes(const Form& form, std::int64_t n, std::int64_t k, DType dtype,
                             std::uint32_t seed) {
    const float spread = 1 / std::sqrt(static_cast<float>(k)) / (form.format == QuantFormat::int4 ? 5 : 75);
    return ops::pack_codes(
        test_device(), {.format = form.format,
                        .n = n,
                        .k = k,
                        .group = form.group,
                        .offsets = form.offsets,
                        .dtype = dtype,
                        .read = [=](std::int64_t row, std::uint8_t* codes, float* scales, float* offsets) {
                            std::mt19937 generator(seed + static_cast<std::uint32_t>(row));
                            const std::uint32_t most = form.format == QuantFormat::int4 ? 15 : 255;
                            for (std::int64_t i = 0; i < k; ++i)
                                codes[i] = static_cast<std::uint8_t>(generator() & most);
                            const std::int64_t groups =
                                form.group == 0 ? 1 : (k + form.group - 1) / form.group;
                            std::uniform_real_distribution<float> uniform(0.5f, 1.5f);
                            for (std::int64_t i = 0; i < groups; ++i) {
                                scales[i] = spread * uniform(generator);
                                const float middle = form.format == QuantFormat::int4 ? -7.5f : 0.3f;
                                if (form.offsets) offsets[i] = scales[i] * middle;
                            }
                        }});
}

// The model with matrices of random codes; `tied`: with a table of codes that is embedding and head.
std::shared_ptr<const ModelWeights> coded(const ModelConfig& config, DType dtype, const Form& form,
                                          bool head = false, std::optional<Form> tied = std::nullopt) {
    auto weights = std::make_shared<ModelWeights>(*weights_of(config, dtype));
    std::uint32_t seed = 100;
    const auto replace = [&](llm::Linear& linear) {
        const Dims shape = linear.weight.shape();
        linear.codes = {random_codes(form, shape[0], shape[1], dtype, seed += 100000)};
        linear.weight = Array();
    };
    for (llm::ModelLayer& layer : weights->layers) {
        for (llm::Linear* linear : {&layer.qkv, &layer.out, &layer.gate_up, &layer.down}) replace(*linear);
    }
    if (head) replace(weights->lm_head);
    if (tied) {
        weights->embedding_codes = random_codes(*tied, config.vocab_size, config.hidden_size, dtype, 77);
        weights->lm_head.codes = {*weights->embedding_codes};
        weights->embedding = weights->lm_head.weight = Array();
    }
    return weights;
}

std::vector<float> on_host_all(const Array& array) {
    std::vector<float> values(static_cast<std::size_t>(array.size()));
    array.copy_to_host(values.data());
    return values;
}

class DecodeCodesTest : public WholeStepTest {};

TEST_P(DecodeCodesTest, GivesWhatTheOpsGive) {
    for (const QuantFormat format : {QuantFormat::int8, QuantFormat::int4}) {
        SCOPED_TRACE(ops::name(format));
        compare(weights_of(config(), dtype(), format), 5, 6);
        ModelConfig tied = config();
        tied.tie_word_embeddings = true;  // then the head is not quantised
        tied.qkv_bias = tied.out_bias = tied.mlp_bias = true;
        compare(weights_of(tied, dtype(), format), 3, 3);
    }
}

// Sizes in whole 64, several slots a tile, more tiles than are added up at a time.
TEST_P(DecodeCodesTest, AwkwardSizes) {
    ModelConfig odd = config();
    odd.hidden_size = 448;
    odd.intermediate_size = 4160;
    odd.num_layers = 1;
    odd.layers.resize(1);
    odd.vocab_size = odd.num_tokens = 1001;
    for (const QuantFormat format : {QuantFormat::int8, QuantFormat::int4}) {
        SCOPED_TRACE(ops::name(format));
        compare(weights_of(odd, dtype(), format), 3, 3);
    }
}

TEST_P(DecodeCodesTest, GroupsAndOffsetsOfFiles) {
    ModelConfig odd = config();
    odd.hidden_size = 192;
    odd.intermediate_size = 320;
    odd.architecture = &llm::architecture_of_json("test", "qwen3");
    for (const Form& form : {Form{QuantFormat::int8, 0, false}, Form{QuantFormat::int8, 16, false},
                             Form{QuantFormat::int8, 16, true}, Form{QuantFormat::int8, 32, true},
                             Form{QuantFormat::int8, 64, false}, Form{QuantFormat::int4, 32, false},
                             Form{QuantFormat::int4, 32, true}, Form{QuantFormat::int4, 64, true},
                             Form{QuantFormat::int4, 128, false}, Form{QuantFormat::int4, 128, true}}) {
        SCOPED_TRACE(testing::Message() << ops::name(form.format) << " " << form.group << form.offsets);
        compare(coded(odd, dtype(), form, form.group != 16), 4, 3);
    }
}

// As GGUF files have them: one table of codes is embedding and head.
TEST_P(DecodeCodesTest, EmbeddingsOfCodes) {
    ModelConfig tied = config();
    tied.hidden_size = 192;
    const Form layers{QuantFormat::int4, 32, true};
    for (const Form& form : {Form{QuantFormat::int8, 32, false}, Form{QuantFormat::int8, 16, true},
                             Form{QuantFormat::int4, 32, true}, Form{QuantFormat::int4, 128, false},
                             Form{QuantFormat::int8, 0, false}}) {
        SCOPED_TRACE(testing::Message() << ops::name(form.format) << " " << form.group << form.offsets);
        const auto weights = coded(tied, dtype(), layers, false, form);
        compare(weights, 4, 3);
        // The first and the last of its rows.
        Model whole(weights, {.max_length = 4}), plain(weights, {.max_length = 4, .whole_step = false});
        const auto last = static_cast<std::int32_t>(tied.vocab_size - 1);
        for (Model* model : {&whole, &plain}) model->prefill(some_tokens(1, 3));
        for (const std::int32_t token : {std::int32_t{0}, last}) {
            const auto a = on_host(whole.decode(token)), b = on_host(plain.decode(token));
            EXPECT_LT(distance(a, b), bound_of(dtype()));
        }
    }
}

TEST_P(DecodeCodesTest, LongTexts) {
    const bool simulated = test_device().info().sm == 0;
    const auto weights = weights_of(config(), dtype(), QuantFormat::int4);
    for (const std::size_t length : {simulated ? 100u : 254u, simulated ? 60u : 2500u})
        compare(weights, length, 4);
}

// Against float64 sums of the weights that the codes stand for.
TEST_P(DecodeCodesTest, IsNearFloat64) {
    const ModelConfig c = config();
    for (const QuantFormat format : {QuantFormat::int8, QuantFormat::int4}) {
        SCOPED_TRACE(ops::name(format));
        const auto weights = weights_of(c, dtype(), format);
        NamedTensors tensors = random_tensors(c, 5);
        // The rows of a matrix, from its codes, to the tensors that it was made from.
        const auto put = [&](const llm::Linear& linear, const std::vector<std::string>& names) {
            const std::vector<float> rows = on_host_all(ops::dequantize(linear.codes[0], DType::float32));
            auto from = rows.begin();
            for (const std::string& name : names) {
                std::vector<float>& values = tensors.at(name + ".weight").second;
                std::copy_n(from, values.size(), values.begin());
                from += std::ssize(values);
            }
            ASSERT_EQ(from, rows.end());
        };
        for (std::size_t i = 0; i < weights->layers.size(); ++i) {
            const std::string at = "model.layers." + std::to_string(i) + ".";
            const llm::ModelLayer& layer = weights->layers[i];
            put(layer.qkv, {at + "self_attn.q_proj", at + "self_attn.k_proj", at + "self_attn.v_proj"});
            put(layer.out, {at + "self_attn.o_proj"});
            put(layer.gate_up, {at + "mlp.gate_proj", at + "mlp.up_proj"});
            put(layer.down, {at + "mlp.down_proj"});
        }
        put(weights->lm_head, {"lm_head"});
        const auto tokens = some_tokens(12, 8);
        Model model(weights, {.max_length = 32});
        model.prefill(std::span(tokens).first(1));
        std::vector<float> logits;
        for (const std::int32_t token : std::span(tokens).subspan(1)) logits = on_host(model.decode(token));
        const auto all = llama_reference(c, tensors, tokens);
        const std::vector<double> last(all.end() - c.vocab_size, all.end());
        EXPECT_LT(distance(logits, last), dtype() == DType::bfloat16 ? 5e-2 : 6e-3);
    }
}

// An activation that is not finite gives logits that are not, and no token.
TEST_P(DecodeCodesTest, NotFinite) {
    auto weights = std::make_shared<ModelWeights>(*weights_of(config(), dtype(), QuantFormat::int8));
    Array norm = Array::empty(test_device(), {config().hidden_size}, dtype());
    std::vector<std::uint16_t> values(static_cast<std::size_t>(norm.size()), 0x3c00);
    values[70] = 0x7fff;  // NaN in either type
    norm.copy_from_host(values.data());
    weights->layers[1].mlp_norm.weight = norm;
    Model model(weights, {.max_length = 16});
    ASSERT_TRUE(model.steps_at_once());
    model.prefill(some_tokens(1, 3));
    model.decode(5);
    EXPECT_THROW(model.chosen(), Error);
}

INSTANTIATE_TEST_SUITE_P(All, DecodeCodesTest,
                         testing::Combine(testing::Values(DType::bfloat16, DType::float16),
                                          testing::Values(64, 128)));

TEST(DecodeCodesServes, OnlyWhatItCan) {
    const int sm = test_device().info().sm;
    if (sm != 0 && sm != 90) GTEST_SKIP() << "no kernel for SM " << sm;
    const ModelConfig config = served_config(64);
    const auto served = [](const std::shared_ptr<const ModelWeights>& weights) {
        return Model(weights, {}).steps_at_once();
    };
    EXPECT_TRUE(served(weights_of(config, DType::bfloat16, QuantFormat::int8)));
    EXPECT_FALSE(served(weights_of(config, DType::bfloat16, QuantFormat::fp8)));
    EXPECT_FALSE(served(weights_of(config, DType::bfloat16, QuantFormat::nvfp4)));
    EXPECT_FALSE(served(weights_of(config, DType::float32, QuantFormat::int8)));
    auto mixed = std::make_shared<ModelWeights>(*weights_of(config, DType::bfloat16, QuantFormat::int8));
    mixed->layers[1].out = weights_of(config, DType::bfloat16)->layers[1].out;
    EXPECT_FALSE(served(mixed));
}

}  // namespace
