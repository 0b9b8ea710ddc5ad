// A step of several texts in one launch against steps of each text alone, and against the ops.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "base/error.hpp"
#include "decode_step_support.hpp"
#include "llm/batch.hpp"
#include "ops/decode_step.hpp"

namespace {

using namespace gpk::decode_step_tests;

bool is_simulated() { return test_device().info().sm == 0; }

// Enough rows of every matrix for all multiprocessors.
ModelConfig texts_config(std::int64_t head_dim) {
    ModelConfig config = served_config(head_dim);
    config.hidden_size = 320;
    config.intermediate_size = 448;
    return config;
}

// Steps of many texts, each in its cache.
class Texts {
   public:
    Texts(const std::shared_ptr<const ModelWeights>& weights, std::int64_t count, std::int64_t capacity)
        : config_(weights->config),
          count_(count),
          ids_(Array::empty(test_device(), {count}, DType::int32)),
          positions_(Array::empty(test_device(), {count}, DType::int32)),
          logits_(Array::empty(test_device(), {count, config_.vocab_size}, DType::float32)) {
        const Dims cache{count, config_.num_kv_heads, capacity, config_.head_dim};
        // What was never written is NaN.
        const std::vector<std::uint16_t> poison(
            static_cast<std::size_t>(count * config_.num_kv_heads * capacity * config_.head_dim), 0xffff);
        for (std::int64_t i = 0; i < config_.num_layers; ++i) {
            for (auto* each : {&keys_, &values_}) {
                each->push_back(Array::empty(test_device(), cache, weights->dtype));
                each->back().copy_from_host(poison.data());
            }
        }
        const auto table = llm::rope_frequencies(config_, 0, capacity);
        inv_freq_ = Array::empty(test_device(), {config_.head_dim / 2}, DType::float32);
        inv_freq_.copy_from_host(table.inv_freq.data());
        const ops::Rope rope{inv_freq_};
        step_ = llm::whole_step(*weights, keys_, values_, &rope);
        for (std::int64_t i = 0; i < count; ++i) {
            std::vector<Array> keys, values;
            for (const Array& each : keys_) keys.push_back(each.slice(0, i, 1, 1));
            for (const Array& each : values_) values.push_back(each.slice(0, i, 1, 1));
            alone_.push_back(llm::whole_step(*weights, keys, values, &rope));
        }
    }
    ops::DecodeStep& step() { return *step_; }

    // The logits, 77 where there were none.
    std::vector<float> run(const std::vector<std::int32_t>& tokens,
                           const std::vector<std::int32_t>& positions, bool together) {
        const std::vector<float> nothing(static_cast<std::size_t>(logits_.size()), 77.0f);
        logits_.copy_from_host(nothing.data());
        ids_.copy_from_host(tokens.data());
        positions_.copy_from_host(positions.data());
        if (together) {
            step_->run_texts(ids_, positions_, logits_);
        } else {
            for (std::int64_t i = 0; i < count_; ++i) {
                alone_[static_cast<std::size_t>(i)]->run(ids_.slice(0, i, 1, 1), positions_.slice(0, i, 1, 1),
                                                         logits_.select(0, i), false, nullptr, 0);
            }
        }
        std::vector<float> found(nothing.size());
        logits_.copy_to_host(found.data());
        return found;
    }
    Array ids() const { return ids_; }
    Array positions() const { return positions_; }
    Array logits() const { return logits_; }

   private:
    const ModelConfig config_;
    std::int64_t count_;
    Array ids_, positions_, logits_, inv_freq_;
    std::vector<Array> keys_, values_;
    std::unique_ptr<ops::DecodeStep> step_;
    std::vector<std::unique_ptr<ops::DecodeStep>> alone_;
};

std::vector<float> row_of(const std::vector<float>& logits, std::size_t row, std::size_t rows) {
    const std::size_t width = logits.size() / rows;
    const auto begin = logits.begin() + static_cast<std::ptrdiff_t>(row * width);
    return {begin, begin + static_cast<std::ptrdiff_t>(width)};
}

// Texts that come and go: text i begins at step 3 i, ends after `length` + 20 i tokens, is away for two
// steps, then another begins in its place.
void compare_texts(const ModelConfig& config, DType dtype, std::size_t count, std::int32_t length,
                   int steps) {
    const auto weights = weights_of(config, dtype);
    const std::int64_t capacity = length + 20 * static_cast<std::int64_t>(count) + 1;
    Texts together(weights, static_cast<std::int64_t>(count), capacity),
        alone(weights, static_cast<std::int64_t>(count), capacity);
    ASSERT_TRUE(together.step().takes_texts());
    std::mt19937 generator(7);
    std::vector<std::int32_t> tokens(count), positions(count);
    for (std::size_t i = 0; i < count; ++i) positions[i] = -1 - 3 * static_cast<std::int32_t>(i);
    for (int at = 0; at < steps; ++at) {
        for (std::size_t i = 0; i < count; ++i) {
            tokens[i] = static_cast<std::int32_t>(generator() % 97);
            ++positions[i];
            if (positions[i] == length + 20 * static_cast<std::int32_t>(i)) positions[i] = -2;
        }
        const auto a = together.run(tokens, positions, true), b = alone.run(tokens, positions, false);
        for (std::size_t i = 0; i < count; ++i) {
            const auto of_a = row_of(a, i, count), of_b = row_of(b, i, count);
            if (positions[i] < 0) {
                ASSERT_EQ(of_a, std::vector<float>(of_a.size(), 77.0f));
            } else {
                ASSERT_LT(distance(of_a, of_b), bound_of(dtype)) << "text " << i << ", step " << at;
            }
        }
    }
}

class DecodeTextsTest : public WholeStepTest {
   protected:
    static ModelConfig config() { return texts_config(std::get<1>(GetParam())); }
};

TEST_P(DecodeTextsTest, GiveWhatEachGivesAlone) {
    for (const std::size_t count : {2u, 5u, 8u}) compare_texts(config(), dtype(), count, 9, 60);
}

TEST_P(DecodeTextsTest, BiasesNormsAndWindows) {
    ModelConfig biased = config();
    biased.qkv_bias = biased.out_bias = biased.mlp_bias = true;
    compare_texts(biased, dtype(), 3, 7, 20);
    ModelConfig normed = config();
    normed.architecture = &llm::architecture_of_json("test", "qwen3");
    normed.layers[1].window = 11;
    compare_texts(normed, dtype(), 8, 30, is_simulated() ? 30 : 300);
}

// Keys spread over several blocks, more of them from step to step.
TEST_P(DecodeTextsTest, LongTexts) {
    compare_texts(config(), dtype(), 3, is_simulated() ? 30 : 1100, is_simulated() ? 40 : 1150);
    ModelConfig many = config();
    many.num_heads = 10;
    many.num_kv_heads = std::get<1>(GetParam()) == 64 ? 5 : 1;
    compare_texts(many, dtype(), 8, is_simulated() ? 10 : 300, is_simulated() ? 20 : 700);
}

// Rows of several slots, the last of which are not whole; and an odd number of layers.
TEST_P(DecodeTextsTest, RowsOfSeveralSlots) {
    ModelConfig wide = config();
    wide.hidden_size = 1152;
    wide.intermediate_size = 4096 + 704;
    wide.num_heads = std::get<1>(GetParam()) == 64 ? 18 : 9;
    wide.num_kv_heads = 3;
    for (const std::int64_t layers : {1, 3}) {
        wide.num_layers = layers;
        wide.layers.resize(static_cast<std::size_t>(layers));
        compare_texts(wide, dtype(), 4, 5, is_simulated() ? 8 : 200);
    }
}

// Whatever the other texts are, and each time.
TEST_P(DecodeTextsTest, BitsAreATextsOwn) {
    const auto weights = weights_of(config(), dtype());
    Texts one(weights, 8, 400), other(weights, 8, 400);
    std::mt19937 generator(3);
    std::vector<std::int32_t> tokens(8), positions(8, -1), others(8), places(8, -1);
    for (std::int32_t at = 0; at < (is_simulated() ? 6 : 390); ++at) {
        for (std::size_t i = 0; i < 8; ++i) {
            others[i] = static_cast<std::int32_t>(generator() % 97);
            places[i] = static_cast<std::int32_t>(generator() % 400) - 200;
        }
        tokens[5] = others[5], positions[5] = places[5] = at;
        const auto a = one.run(tokens, positions, true), b = other.run(others, places, true);
        ASSERT_EQ(row_of(a, 5, 8), row_of(b, 5, 8)) << at;
    }
}

// A step keeps what the blocks of either launch exchange apart.
TEST_P(DecodeTextsTest, OneTextByEitherLaunch) {
    const auto weights = weights_of(config(), dtype());
    Texts by_turns(weights, 1, 8), other(weights, 1, 8);
    const Array logits = by_turns.logits();
    for (std::int32_t at = 0; at < 6; ++at) {
        const std::vector<std::int32_t> token{7 * at + 1}, position{at};
        const auto expected = other.run(token, position, true);
        if (at % 2 != 0) {
            ASSERT_LT(distance(by_turns.run(token, position, true), expected), bound_of(dtype())) << at;
            continue;
        }
        by_turns.ids().copy_from_host(token.data());
        by_turns.positions().copy_from_host(position.data());
        by_turns.step().run(by_turns.ids(), by_turns.positions(), logits.select(0, 0), false, nullptr, 0);
        ASSERT_LT(distance(on_host(logits.select(0, 0)), expected), bound_of(dtype())) << at;
    }
}

TEST_P(DecodeTextsTest, RefusesWhatItCannot) {
    Texts texts(weights_of(config(), dtype()), 2, 8);
    const auto refused = [&](const Array& ids, const Array& positions, const Array& logits) {
        try {
            texts.step().run_texts(ids, positions, logits);
        } catch (const Error& reason) {
            return std::string(reason.what());
        }
        return std::string();
    };
    const Array three = Array::empty(test_device(), {3}, DType::int32);
    EXPECT_NE(refused(three, texts.positions(), texts.logits()).find("tokens"), std::string::npos);
    EXPECT_NE(refused(texts.ids(), three, texts.logits()).find("positions"), std::string::npos);
    EXPECT_NE(refused(texts.ids(), texts.positions(), texts.logits().select(0, 0)).find("logits"),
              std::string::npos);
    EXPECT_NE(refused(texts.ids(), texts.positions(), texts.logits().readonly()).find("logits"),
              std::string::npos);
    ModelConfig large = config();
    large.hidden_size = 2176;
    Texts not_served(weights_of(large, dtype()), 2, 8);
    EXPECT_FALSE(not_served.step().takes_texts());
    EXPECT_THROW(not_served.step().run_texts(not_served.ids(), not_served.positions(), not_served.logits()),
                 Error);
}

// Slots of a model: what the ops give, the largest logit chosen, drawn texts among others.
TEST_P(DecodeTextsTest, SlotsOfAModel) {
    const auto weights = weights_of(config(), dtype());
    Model whole(weights, {.max_length = 64, .slots = 5}),
        plain(weights, {.max_length = 64, .whole_step = false, .slots = 5});
    ASSERT_TRUE(whole.steps_at_once(5));
    ASSERT_FALSE(plain.steps_at_once(5));
    for (Model* model : {&whole, &plain}) {
        model->prefill(some_tokens(9, 1), 0);
        model->prefill(some_tokens(4, 2), 1);
        model->prefill(some_tokens(17, 3), 4);
    }
    const auto check = [&] {
        const auto a = whole.decode(), b = plain.decode();
        ASSERT_EQ(a.shape(), b.shape());
        for (std::int64_t slot = 0; slot < a.shape()[0]; ++slot) {
            if (whole.length(slot) == 0) continue;
            const auto of_a = on_host(a.select(0, slot)), of_b = on_host(b.select(0, slot));
            EXPECT_LT(distance(of_a, of_b), bound_of(dtype()));
            EXPECT_EQ(whole.chosen(slot), std::max_element(of_a.begin(), of_a.end()) - of_a.begin());
            EXPECT_EQ(whole.chosen_after(whole.length(slot), slot), whole.chosen(slot));
        }
    };
    check();
    for (Model* model : {&whole, &plain}) {
        for (const std::int64_t slot : {0, 1, 4}) model->truncate(0, slot);
        model->prefill(some_tokens(5, 4), 2);
        model->prefill(some_tokens(6, 5), 1);
    }
    check();
}

// In the middle of a text, where it becomes long.
TEST_P(DecodeTextsTest, LongTextsGoOpByOp) {
    const auto weights = weights_of(config(), dtype());
    Model whole(weights, {.max_length = Model::kKeysAtOnce + 8, .slots = 2}),
        fresh(weights, {.max_length = Model::kKeysAtOnce + 8});
    whole.prefill(some_tokens(5, 1), 0);
    auto tokens = some_tokens(Model::kKeysAtOnce - 2, 2);
    whole.prefill(tokens, 1);
    Array logits;
    for (const bool at_once : {true, true, false, false}) {
        ASSERT_EQ(whole.steps_at_once(2), at_once);
        tokens.push_back(whole.chosen(1));
        logits = whole.decode();
    }
    EXPECT_LT(distance(on_host(logits.select(0, 1)), on_host(fresh.prefill(tokens))), bound_of(dtype()));
    EXPECT_TRUE(whole.steps_at_once());
}

INSTANTIATE_TEST_SUITE_P(All, DecodeTextsTest,
                         testing::Combine(testing::Values(DType::bfloat16, DType::float16),
                                          testing::Values(64, 128)));

}  // namespace
