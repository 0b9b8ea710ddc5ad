// A step in one launch against the same step op by op, and against float64.

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.hpp"
#include "decode_step_support.hpp"
#include "llm/batch.hpp"
#include "ops/decode_step.hpp"

namespace {

using namespace gpk::decode_step_tests;

class DecodeStepTest : public WholeStepTest {};

TEST_P(DecodeStepTest, GivesWhatTheOpsGive) {
    compare(config(), dtype(), 5, 20);
    compare(config(), dtype(), 1, 3);
}

TEST_P(DecodeStepTest, BiasesNormsAndWindows) {
    ModelConfig biased = config();
    biased.qkv_bias = biased.out_bias = biased.mlp_bias = true;
    compare(biased, dtype(), 7, 4);
    ModelConfig normed = config();
    normed.architecture = &llm::architecture_of_json("test", "qwen3");
    normed.layers[1].window = 11;
    normed.num_tokens = 90;  // the rest is padding, never chosen
    compare(normed, dtype(), 9, 20);
}

// More query heads than a block takes at a time, and one key/value head.
TEST_P(DecodeStepTest, ManyQueryHeads) {
    ModelConfig many = config();
    many.num_heads = 10;
    many.num_kv_heads = 1;
    compare(many, dtype(), 6, 5);
    many.num_heads = many.num_kv_heads = 3;
    many.vocab_size = many.num_tokens = 98;
    many.tie_word_embeddings = true;
    compare(many, dtype(), 6, 5);
}

// Rows of two and three slots, the last of which are not whole, and every width of a last piece.
TEST_P(DecodeStepTest, RowsOfSeveralSlots) {
    ModelConfig wide = config();
    wide.hidden_size = 1152;
    wide.intermediate_size = 2048 + 704;
    wide.num_heads = 18;
    wide.num_layers = 1;
    wide.layers.resize(1);
    compare(wide, dtype(), 3, 3);
}

// Keys spread over several blocks, their number going up from one step to the next.
TEST_P(DecodeStepTest, LongTexts) {
    const bool simulated = test_device().info().sm == 0;  // takes its time, and does not spread them
    for (const std::size_t length :
         {125u, simulated ? 150u : 254u, simulated ? 80u : 700u, simulated ? 60u : 2500u})
        compare(config(), dtype(), length, 4);
}

TEST_P(DecodeStepTest, IsNearFloat64) {
    const ModelConfig c = config();
    const NamedTensors tensors = random_tensors(c, 5);
    const auto tokens = some_tokens(12, 8);
    Model model(weights_of(c, dtype()), {.max_length = 32});
    model.prefill(std::span(tokens).first(1));
    std::vector<float> logits;
    for (const std::int32_t token : std::span(tokens).subspan(1)) logits = on_host(model.decode(token));
    const auto all = llama_reference(c, tensors, tokens);
    const std::vector<double> last(all.end() - c.vocab_size, all.end());
    EXPECT_LT(distance(logits, last), dtype() == DType::bfloat16 ? 5e-2 : 6e-3);
}

// A slot's step is the whole one where it is alone, and other slots' texts stay as they are.
TEST_P(DecodeStepTest, AmongSlotsAndInGraphs) {
    const auto weights = weights_of(config(), dtype());
    Model model(weights, {.max_length = 64, .slots = 2}),
        single(weights, {.max_length = 64, .use_graph = false});
    const auto prompt = some_tokens(9, 6), other = some_tokens(4, 7);
    single.prefill(prompt);
    model.prefill(prompt, 0);
    for (int i = 0; i < 4; ++i) {
        EXPECT_LT(distance(on_host(model.decode()), on_host(single.decode())), bound_of(dtype()));
    }
    model.prefill(other, 1);
    const auto rows = model.decode();
    EXPECT_LT(distance(on_host(rows.select(0, 0)), on_host(single.decode())), bound_of(dtype()));
    model.truncate(0, 1);
    const auto& stream = current_stream(test_device());
    const auto graph = Graph::capture(stream, [&] { single.decode(); });
    for (int i = 0; i < 3; ++i) {
        const auto a = on_host(model.decode());
        graph->launch(stream);
        EXPECT_EQ(model.chosen(), std::max_element(a.begin(), a.end()) - a.begin());
    }
}

// Pieces of weights arrive in any order; wide layers have many of them under way.
TEST_P(DecodeStepTest, WideLayersGiveTheSameEachTime) {
    const bool simulated = test_device().info().sm == 0;
    ModelConfig c = config();
    c.num_layers = 1;
    c.layers.resize(1);
    c.hidden_size = 512;
    c.intermediate_size = simulated ? 1024 : 16384;
    Model model(weights_of(c, dtype()), {.max_length = 8});
    ASSERT_TRUE(model.steps_at_once());
    model.prefill(some_tokens(3, 1));
    const std::vector<float> first = on_host(model.decode(2));
    for (int i = 0; i < (simulated ? 3 : 500); ++i) {
        model.truncate(3);
        ASSERT_EQ(on_host(model.decode(2)), first) << "step " << i;
    }
}

// Nothing is done for a text that is not there.
TEST_P(DecodeStepTest, PositionsBelowZeroAndPastTheEnd) {
    const ModelConfig c = config();
    const auto weights = weights_of(c, dtype());
    Device& device = test_device();
    const std::int64_t capacity = 4;
    const Dims cache{1, c.num_kv_heads, capacity, c.head_dim};
    std::vector<Array> keys, values;
    for (std::int64_t i = 0; i < c.num_layers; ++i) {
        for (auto* each : {&keys, &values}) {
            each->push_back(Array::empty(device, cache, dtype()));
            const std::vector<std::uint16_t> zeros(static_cast<std::size_t>(each->back().size()));
            each->back().copy_from_host(zeros.data());
        }
    }
    const auto table = llm::rope_frequencies(c, 0, 16);
    const Array inv_freq = Array::empty(device, {c.head_dim / 2}, DType::float32);
    inv_freq.copy_from_host(table.inv_freq.data());
    const ops::Rope rope{inv_freq};
    const auto step = llm::whole_step(*weights, keys, values, &rope);
    ASSERT_TRUE(step);
    const Array token = Array::empty(device, {1}, DType::int32),
                position = Array::empty(device, {1}, DType::int32);
    const Array logits = Array::empty(device, {c.vocab_size}, DType::float32);
    const auto run = [&](std::int32_t from, std::int32_t at) {
        const std::vector<float> poison(static_cast<std::size_t>(c.vocab_size), 77.0f);
        logits.copy_from_host(poison.data());
        token.copy_from_host(&from);
        position.copy_from_host(&at);
        step->run(token, position, logits, true, nullptr, 0);
        std::int32_t now = 0;
        position.copy_to_host(&now);
        return now;
    };
    EXPECT_EQ(run(5, -1), -1);
    EXPECT_EQ(on_host(logits)[0], 77.0f);
    EXPECT_EQ(run(5, 3), 4);
    EXPECT_NE(on_host(logits)[0], 77.0f);
    std::vector<std::uint16_t> before(static_cast<std::size_t>(keys[0].size())), after = before;
    keys[0].copy_to_host(before.data());
    EXPECT_EQ(run(5, 9), 10);  // dropped, as kv_append does; the queries see what is there
    keys[0].copy_to_host(after.data());
    EXPECT_EQ(before, after);
    EXPECT_FALSE(std::isnan(on_host(logits)[0]));
    EXPECT_THROW(step->run(token, logits, logits, true, nullptr, 0), Error);
    EXPECT_THROW(step->run(token, position, logits.slice(0, 0, 1, 5), true, nullptr, 0), Error);
    const auto refused = [&](const Array& position, const Array& logits) {
        try {
            step->run(token, position, logits, true, nullptr, 0);
        } catch (const Error& reason) {
            return std::string(reason.what());
        }
        return std::string();
    };
    EXPECT_NE(refused(position.readonly(), logits).find("position"), std::string::npos);
    EXPECT_NE(refused(position, logits.readonly()).find("logits"), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(All, DecodeStepTest,
                         testing::Combine(testing::Values(DType::bfloat16, DType::float16),
                                          testing::Values(64, 128)));

TEST(DecodeStepServes, OnlyWhatItCan) {
    const auto served = [](const ModelConfig& config, DType dtype) {
        return Model(weights_of(config, dtype), {}).steps_at_once();
    };
    EXPECT_FALSE(served(small_config(), DType::bfloat16));
    EXPECT_FALSE(served(served_config(64), DType::float32));
    ModelConfig odd = served_config(64);
    odd.intermediate_size = 150;
    EXPECT_FALSE(served(odd, DType::bfloat16));
}

}  // namespace
