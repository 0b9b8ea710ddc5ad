#include <gtest/gtest.h>

#include <map>

#include "base/error.hpp"
#include "llama_support.hpp"
#include "llm/batch.hpp"

namespace {

using namespace gpk;
using llm::Batch;
using llm::BatchToken;
using llm::FinishReason;
using llm::GenerationOptions;
using llm::Model;

struct Text {
    std::vector<std::int32_t> prompt;
    GenerationOptions options;
};
struct Result {
    std::vector<std::int32_t> tokens;
    FinishReason reason = FinishReason::none;
    bool operator==(const Result&) const = default;
};

std::shared_ptr<const llm::ModelWeights> some_weights() {
    const llm::ModelConfig config = small_config();
    const NamedTensors tensors = random_tensors(config, 11);
    const MemoryFile file(tensors);
    return llm::ModelWeights::load(test_device(), config, llm::FileSource(file), DType::float32);
}

Result alone(const std::shared_ptr<const llm::ModelWeights>& weights, const Text& text,
             std::int64_t max_length) {
    Model model(weights, {.max_length = max_length});
    llm::Generator generator(model, text.prompt, text.options);
    Result result;
    while (const auto token = generator.next()) result.tokens.push_back(*token);
    result.reason = generator.finish_reason();
    return result;
}

std::vector<Text> some_texts(std::size_t count, std::uint32_t seed) {
    std::mt19937 generator(seed);
    std::vector<Text> texts;
    for (std::size_t i = 0; i < count; ++i) {
        Text text;
        for (std::size_t j = 0, n = 1 + generator() % 20; j < n; ++j)
            text.prompt.push_back(static_cast<std::int32_t>(generator() % 97));
        text.options.max_tokens = generator() % 4 == 0 ? 0 : static_cast<std::int64_t>(1 + generator() % 12);
        if (generator() % 2 == 0) {
            for (int j = 0; j < 6; ++j)
                text.options.stop_tokens.push_back(static_cast<std::int32_t>(generator() % 97));
        }
        // Greedy ones among others.
        if (generator() % 3 == 0) {
            text.options.choice.sampling = {
                .temperature = 1.2, .top_k = 30, .top_p = 0.95, .min_p = 0.01, .seed = generator()};
        }
        if (generator() % 4 == 0) {
            text.options.choice.sampling.repetition = 1.3;
            text.options.choice.sampling.frequency = 0.2;
        }
        if (generator() % 4 == 0 && text.options.max_tokens > 0) {
            text.options.slide = true;
            text.options.max_tokens += 40;
        }
        texts.push_back(text);
    }
    return texts;
}

void take(const std::vector<BatchToken>& step, std::map<std::int64_t, Result>& results) {
    for (const BatchToken& each : step) {
        Result& result = results[each.text];
        EXPECT_EQ(result.reason, FinishReason::none) << each.text;
        if (each.token >= 0) result.tokens.push_back(each.token);
        result.reason = each.finish_reason;
    }
}

TEST(Batch, EveryTextIsWhatItWouldBeAlone) {
    const auto weights = some_weights();
    constexpr std::int64_t kLength = 40;
    for (const std::int64_t slots : {1, 3, 8}) {
        for (const bool use_graph : {false, true}) {
            const auto texts = some_texts(20, static_cast<std::uint32_t>(slots));
            Model model(weights, {.max_length = kLength, .use_graph = use_graph, .slots = slots});
            Batch batch(model);
            std::map<std::int64_t, Result> results;
            std::mt19937 generator(5);
            std::size_t added = 0;
            // They come a few at a time, while others are under way.
            while (added < texts.size() || batch.active() + batch.waiting() > 0) {
                for (std::uint32_t n = generator() % 3; n > 0 && added < texts.size(); --n, ++added) {
                    EXPECT_EQ(batch.add(texts[added].prompt, texts[added].options), added);
                }
                take(batch.step(), results);
                EXPECT_LE(batch.active(), slots);
            }
            for (std::size_t i = 0; i < texts.size(); ++i) {
                EXPECT_EQ(results[static_cast<std::int64_t>(i)], alone(weights, texts[i], kLength))
                    << "text " << i << " of " << slots << " slots";
            }
            EXPECT_TRUE(batch.step().empty());
        }
    }
}

TEST(Batch, CancelledTextsGiveTheirPlaceAway) {
    const auto weights = some_weights();
    Model model(weights, {.max_length = 40, .slots = 2});
    Batch batch(model);
    const auto texts = some_texts(3, 9);
    const GenerationOptions endless{.max_tokens = 12};
    std::vector<std::int64_t> ids;
    for (const Text& text : texts) ids.push_back(batch.add(text.prompt, endless));
    EXPECT_EQ(batch.waiting(), 3);
    std::map<std::int64_t, Result> results;
    take(batch.step(), results);
    EXPECT_EQ(batch.active(), 2);
    EXPECT_TRUE(batch.cancel(ids[0]));
    EXPECT_FALSE(batch.cancel(ids[0]));
    while (batch.active() + batch.waiting() > 0) take(batch.step(), results);
    EXPECT_EQ(results[ids[0]].tokens.size(), 1u);
    for (const std::size_t i : {1u, 2u}) {
        EXPECT_EQ(results[ids[i]], alone(weights, {texts[i].prompt, endless}, 40));
    }
    const auto waiting = batch.add(texts[0].prompt, endless);
    EXPECT_TRUE(batch.cancel(waiting));
    EXPECT_FALSE(batch.cancel(-1));
    EXPECT_TRUE(batch.step().empty());
}

TEST(Batch, RefusesWhatDoesNotFit) {
    const auto weights = some_weights();
    EXPECT_THROW(Model(weights, {.slots = 0}), Error);
    EXPECT_THROW(Model(weights, {.slots = 1 << 20}), Error);
    Model model(weights, {.max_length = 10, .slots = 2});
    Batch batch(model);
    EXPECT_THROW(batch.add({}, {}), Error);
    EXPECT_THROW(batch.add(std::vector<std::int32_t>(11, 1), {}), Error);
    EXPECT_THROW(batch.add(std::vector<std::int32_t>(9, 1), {.max_tokens = 3}), Error);
    EXPECT_THROW(batch.add(std::vector<std::int32_t>{97}, {}), Error);
    EXPECT_THROW(batch.add(std::vector<std::int32_t>{-1}, {}), Error);
    EXPECT_THROW(batch.add(std::vector<std::int32_t>{1}, {.choice = {.sampling = {.temperature = -1}}}),
                 Error);
    EXPECT_THROW(batch.add(std::vector<std::int32_t>{1}, {.choice = {.logprobs = 1000}}), Error);
    EXPECT_THROW(batch.add(std::vector<std::int32_t>{1}, {.speculation = {.strategy = llm::Strategy::ngram}}),
                 Error);
    EXPECT_EQ(batch.waiting(), 0);
    EXPECT_THROW(model.prefill(std::vector<std::int32_t>{1}, 2), Error);
    EXPECT_THROW(model.prefill(std::vector<std::int32_t>{1}, -1), Error);
    EXPECT_THROW(model.truncate(0, 2), Error);
}

}  // namespace
