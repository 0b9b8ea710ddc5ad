#include <gtest/gtest.h>

#include <cstring>

#include <map>

#include "base/error.hpp"
#include "llm/sampler.hpp"
#include "memory/pinned.hpp"
#include "model_support.hpp"
#include "ops/next_token.hpp"

namespace {

using namespace gpk;
using llm::Sampler;

TEST(Sampler, UniformIsPhilox) {
    // Random123's known answer for philox4x32-10 with counter and key 0: 6627e8d5 e169c58d ...
    const std::uint64_t bits = (0x6627e8d5ull << 32 | 0xe169c58dull) >> 11;
    EXPECT_EQ(llm::uniform(0, 0), static_cast<double>(bits) * 0x1p-53);
    double sum = 0;
    for (std::uint64_t i = 0; i < 10'000; ++i) {
        const double u = llm::uniform(42, i);
        ASSERT_TRUE(u >= 0 && u < 1);
        sum += u;
    }
    EXPECT_NEAR(sum / 10'000, 0.5, 0.015);
    EXPECT_NE(llm::uniform(1, 0), llm::uniform(2, 0));
}

TEST(Sampler, GreedyTakesTheLowestIdAmongEquals) {
    Sampler sampler({});
    EXPECT_EQ(sampler.sample(std::vector<float>{1, 3, 3, 2}, 0), 1);
    EXPECT_EQ(sampler.sample(std::vector<float>{-INFINITY, -5}, 0), 1);
}

// How often each id comes in `count` draws.
std::map<int, int> draw(const llm::Sampling& sampling, const std::vector<float>& logits, int count) {
    Sampler sampler(sampling);
    std::map<int, int> counts;
    for (int i = 0; i < count; ++i) ++counts[sampler.sample(logits, static_cast<std::uint64_t>(i))];
    return counts;
}

TEST(Sampler, FollowsTheProbabilities) {
    const std::vector<float> logits = {std::log(0.5f), std::log(0.3f), std::log(0.15f), std::log(0.05f)};
    const double expected[] = {0.5, 0.3, 0.15, 0.05};
    auto counts = draw({.temperature = 1, .seed = 3}, logits, 20'000);
    for (int id = 0; id < 4; ++id) EXPECT_NEAR(counts[id] / 20'000.0, expected[id], 0.015) << id;
    // At temperature 1/2 the probabilities go with their squares.
    counts = draw({.temperature = 0.5, .seed = 3}, logits, 20'000);
    EXPECT_NEAR(counts[0] / 20'000.0, 0.25 / 0.365, 0.015);
}

TEST(Sampler, TopKKeepsTheKLikeliestWithTiesByLowestId) {
    const auto counts = draw({.temperature = 1, .top_k = 2, .seed = 1}, {0, 1, 1, 1, -3}, 2000);
    EXPECT_EQ(counts.size(), 2u);
    EXPECT_TRUE(counts.contains(1) && counts.contains(2));
    EXPECT_EQ(draw({.temperature = 1, .top_k = 1}, {0, 1, 1}, 50), (std::map<int, int>{{1, 50}}));
    EXPECT_EQ(draw({.temperature = 1, .top_k = 100, .seed = 1}, {0, 0}, 500).size(), 2u);
}

TEST(Sampler, TopPKeepsTheFewestThatReachP) {
    const std::vector<float> logits = {std::log(0.05f), std::log(0.5f), std::log(0.3f), std::log(0.15f)};
    const auto kept = [&](double p) {
        std::vector<int> ids;
        for (const auto& [id, count] : draw({.temperature = 1, .top_p = p, .seed = 9}, logits, 3000))
            ids.push_back(id);
        return ids;
    };
    EXPECT_EQ(kept(0.01), (std::vector<int>{1}));
    EXPECT_EQ(kept(0.49), (std::vector<int>{1}));
    EXPECT_EQ(kept(0.51), (std::vector<int>{1, 2}));
    EXPECT_EQ(kept(0.79), (std::vector<int>{1, 2}));
    EXPECT_EQ(kept(0.81), (std::vector<int>{1, 2, 3}));
    EXPECT_EQ(kept(0.96), (std::vector<int>{0, 1, 2, 3}));
    const auto counts = draw({.temperature = 1, .top_p = 0.51, .seed = 9}, logits, 20'000);
    EXPECT_NEAR(counts.at(1) / 20'000.0, 0.5 / 0.8, 0.015);
    // top_k first: of the two kept, the first alone has 0.625.
    EXPECT_EQ(draw({.temperature = 1, .top_k = 2, .top_p = 0.6, .seed = 9}, logits, 100),
              (std::map<int, int>{{1, 100}}));
}

TEST(Sampler, RepeatsWithTheSeedAndStep) {
    const auto logits = random_floats(1000, 1, 2.0f);
    const auto run = [&](std::uint64_t seed) {
        Sampler sampler({.temperature = 0.8, .top_p = 0.9, .seed = seed});
        std::vector<int> ids;
        for (std::uint64_t step = 0; step < 50; ++step) ids.push_back(sampler.sample(logits, step));
        return ids;
    };
    EXPECT_EQ(run(5), run(5));
    EXPECT_NE(run(5), run(6));
}

TEST(Sampler, RefusesWhatCannotBeSampled) {
    EXPECT_THROW(Sampler({.temperature = -1}), Error);
    EXPECT_THROW(Sampler({.temperature = NAN}), Error);
    EXPECT_THROW(Sampler({.top_k = -1}), Error);
    EXPECT_THROW(Sampler({.top_p = 0}), Error);
    EXPECT_THROW(Sampler({.top_p = 1.1}), Error);
    Sampler sampler({.temperature = 1});
    EXPECT_THROW(sampler.sample(std::vector<float>{1, NAN}, 0), Error);
    EXPECT_THROW(sampler.sample(std::vector<float>{1, INFINITY}, 0), Error);
    EXPECT_THROW(sampler.sample(std::vector<float>{-INFINITY}, 0), Error);
    EXPECT_THROW(sampler.sample({}, 0), Error);
}

TEST(Sampler, PenaltiesFollowTheirDefinitions) {
    // Tokens 0 and 1 in the prompt, 1 once and 2 twice in the text.
    const auto best = [](llm::Sampling sampling, std::vector<float> logits) {
        Sampler sampler(sampling);
        sampler.add_prompt(std::vector<std::int32_t>{0, 1, 0});
        for (const std::int32_t token : {1, 2, 2}) sampler.add(token);
        return sampler.sample(logits, 0);
    };
    EXPECT_EQ(best({}, {4, 3, 2, 1}), 0);
    EXPECT_EQ(best({.repetition = 2}, {4, 3, 2, 2.5f}), 3);      // 2, 1.5, 1, 2.5
    EXPECT_EQ(best({.repetition = 2}, {-1, -1, -1, -1.5f}), 3);  // -2, -2, -2, -1.5
    EXPECT_EQ(best({.repetition = 0.5}, {1, 1, 1, 1.9f}), 0);    // 2, 2, 2, 1.9
    EXPECT_EQ(best({.presence = 1}, {3, 3.9f, 3.9f, 2}), 0);     // 3, 2.9, 2.9, 2: the prompt does not count
    EXPECT_EQ(best({.frequency = 1}, {1, 3.5f, 4.4f, 2}), 1);    // 1, 2.5, 2.4, 2
    EXPECT_EQ(best({.presence = -5}, {4, 0, 1, 3}), 2);          // 4, 5, 6, 3
    EXPECT_EQ(best({.presence = 1, .frequency = 0.5}, {0, 2, 3, 0.9f}), 2);  // 0, 0.5, 1, 0.9
    Sampler outside({.repetition = 2});
    outside.add_prompt(std::vector<std::int32_t>{-1, 7});
    EXPECT_EQ(outside.sample(std::vector<float>{1, 2}, 0), 1);
    for (const llm::Sampling& bad :
         {llm::Sampling{.repetition = 0}, llm::Sampling{.repetition = NAN},
          llm::Sampling{.presence = INFINITY}, llm::Sampling{.frequency = NAN}, llm::Sampling{.min_p = -0.1},
          llm::Sampling{.min_p = 1.1}, llm::Sampling{.min_p = NAN}}) {
        EXPECT_THROW(Sampler{bad}, Error);
    }
}

TEST(Sampler, MinPKeepsWhatIsLikelyEnough) {
    const std::vector<float> logits = {0, -1, std::log(0.21f), std::log(0.19f), -9};
    std::vector<int> counts(logits.size());
    Sampler sampler({.temperature = 1, .min_p = 0.2, .seed = 5});
    for (std::uint64_t step = 0; step < 4000; ++step)
        ++counts[static_cast<std::size_t>(sampler.sample(logits, step))];
    const double total = 1 + std::exp(-1.0) + 0.21;
    EXPECT_NEAR(counts[0] / 4000.0, 1 / total, 0.03);
    EXPECT_NEAR(counts[1] / 4000.0, std::exp(-1.0) / total, 0.03);
    EXPECT_NEAR(counts[2] / 4000.0, 0.21 / total, 0.03);
    EXPECT_EQ(counts[3] + counts[4], 0);
    Sampler one({.temperature = 3, .min_p = 1});
    for (std::uint64_t step = 0; step < 20; ++step) EXPECT_EQ(one.sample(logits, step), 0);
}

TEST(NextToken, GoesThroughRowsAndLogsWhereTheyStand) {
    for (const std::int64_t vocab : {5, 8, 1030}) {
        auto logits = random_floats(4 * vocab, 3);
        std::vector<std::int32_t> best;
        for (std::int64_t row = 0; row < 4; ++row) {
            const auto begin = logits.begin() + row * vocab;
            best.push_back(static_cast<std::int32_t>(std::max_element(begin, begin + vocab) - begin));
        }
        const Array token = upload_ints({-9, -9, -9, -9}), position = upload_ints({2, -1, 0, 6});
        std::vector<std::int32_t> log(4 * 5, -7), tokens(4), positions(4);
        PinnedPool& pool = PinnedPool::of(test_device());
        const PinnedBlock block = pool.allocate(log.size() * sizeof(std::int32_t));
        std::memcpy(block.data, log.data(), block.bytes);
        ops::next_token(upload(logits, {4, vocab}), vocab, 1, token, position,
                        reinterpret_cast<std::int32_t*>(block.data), 5);
        token.copy_to_host(tokens.data());
        position.copy_to_host(positions.data());
        EXPECT_EQ(positions, (std::vector<std::int32_t>{3, -1, 1, 7}));
        EXPECT_EQ(tokens, (std::vector<std::int32_t>{best[0], -9, best[2], best[3]}));
        log[3] = best[0];          // row 0 at 3; row 1 takes no part
        log[2 * 5 + 1] = best[2];  // row 3 at 7: outside
        std::vector<std::int32_t> written(log.size());
        std::memcpy(written.data(), block.data, block.bytes);
        EXPECT_EQ(written, log);
        pool.release(block);
    }
}

TEST(NextToken, TakesTheLargestAndAdvancesThePosition) {
    const auto best = [](std::vector<float> logits, std::int64_t count) {
        const auto size = static_cast<std::int64_t>(logits.size());
        const Array token = upload_ints({-1}), position = upload_ints({40});
        ops::next_token(upload(logits, {1, size}), count, 3, token, position);
        std::int32_t id = 0, at = 0;
        token.copy_to_host(&id);
        position.copy_to_host(&at);
        EXPECT_EQ(at, 43);
        return id;
    };
    EXPECT_EQ(best({5}, 1), 0);
    EXPECT_EQ(best({1, 3, 3, 2, 9}, 4), 1);  // the fifth is padding
    EXPECT_EQ(best({-INFINITY, -INFINITY}, 2), 0);
    EXPECT_EQ(best({1, NAN, INFINITY, NAN}, 4), 1);
    for (const std::int64_t size : {1023, 4096, 49'152, 49'155}) {
        auto logits = random_floats(size, 7);
        const auto expected = std::max_element(logits.begin(), logits.end()) - logits.begin();
        EXPECT_EQ(best(logits, size), expected);
        logits.back() = 100;
        EXPECT_EQ(best(logits, size), size - 1);
        logits[5] = 100;
        EXPECT_EQ(best(logits, size), 5);
    }
}

}  // namespace
