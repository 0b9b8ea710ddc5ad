#include <gtest/gtest.h>

#include <cstring>

#include <map>

#include "base/error.hpp"
#include "llm/chooser.hpp"
#include "memory/pinned.hpp"
#include "model_support.hpp"
#include "ops/next_token.hpp"

namespace {

using namespace gpk;

TEST(Choice, RefusesWhatIsOutOfRange) {
    for (const llm::Sampling& bad :
         {llm::Sampling{.temperature = -1}, llm::Sampling{.temperature = NAN}, llm::Sampling{.top_k = -1},
          llm::Sampling{.top_p = 0}, llm::Sampling{.top_p = 1.1}, llm::Sampling{.repetition = 0},
          llm::Sampling{.repetition = 1e-300}, llm::Sampling{.repetition = NAN},
          llm::Sampling{.presence = INFINITY}, llm::Sampling{.frequency = NAN}, llm::Sampling{.min_p = -0.1},
          llm::Sampling{.min_p = 1.1}, llm::Sampling{.min_p = NAN}, llm::Sampling{.frequency = 1e300}}) {
        EXPECT_THROW((llm::Choice{.sampling = bad}.validate()), Error);
    }
    EXPECT_THROW((llm::Choice{.logprobs = -1}.validate()), Error);
    EXPECT_THROW((llm::Choice{.logprobs = llm::kMostLogprobs + 1}.validate()), Error);
    EXPECT_NO_THROW(
        (llm::Choice{.sampling = {.temperature = 1e300, .top_p = 1e-300}, .logprobs = 0}.validate()));
}

// A chooser over logits that stay as they are: what it takes one after the other, for each slot.
class Choosing {
   public:
    Choosing(const std::vector<float>& logits, std::int64_t slots)
        : vocab_(static_cast<std::int64_t>(logits.size()) / slots),
          logits_(upload(logits, {slots, vocab_})),
          chooser_(test_device(), slots, vocab_),
          ids_(upload_ints(std::vector<std::int32_t>(static_cast<std::size_t>(slots), 0))),
          positions_(upload_ints(std::vector<std::int32_t>(static_cast<std::size_t>(slots), 0))),
          log_(PinnedPool::of(test_device()).allocate(static_cast<std::size_t>(slots) * 4 * kPlaces)) {}
    ~Choosing() {
        chooser_.release({});
        PinnedPool::of(test_device()).release(log_);
    }
    llm::Chooser& chooser() { return chooser_; }
    std::vector<std::int32_t> next() {
        llm::Chooser::Mode mode;
        for (std::int64_t slot = 0; slot < ids_.shape()[0]; ++slot) chooser_.add_to(mode, slot);
        chooser_.choose(logits_, 0, 1, ids_, positions_,
                        {reinterpret_cast<std::int32_t*>(log_.data), kPlaces}, mode);
        std::vector<std::int32_t> ids(static_cast<std::size_t>(ids_.shape()[0]));
        ids_.copy_to_host(ids.data());
        return ids;
    }

   private:
    static constexpr std::int64_t kPlaces = 5000;
    std::int64_t vocab_;
    Array logits_;
    llm::Chooser chooser_;
    Array ids_, positions_;
    PinnedBlock log_;
};

TEST(Choice, EachSlotDrawsAsItsOptionsSay) {
    const float one = std::log(0.5f), two = std::log(0.3f), three = std::log(0.2f);
    std::vector<float> logits;
    for (int slot = 0; slot < 4; ++slot) logits.insert(logits.end(), {two, one, three});
    Choosing choosing(logits, 4);
    choosing.chooser().begin(1, {.sampling = {.temperature = 1, .seed = 7}}, {});
    choosing.chooser().begin(2, {.sampling = {.temperature = 1, .top_p = 0.6, .seed = 7}}, {});
    choosing.chooser().begin(3, {.sampling = {.temperature = 3, .top_k = 1, .seed = 7}}, {});
    constexpr int kDraws = 3000;
    std::map<int, int> drawn[4];
    for (int i = 0; i < kDraws; ++i) {
        const auto ids = choosing.next();
        for (std::size_t slot = 0; slot < 4; ++slot) ++drawn[slot][ids[slot]];
    }
    EXPECT_EQ(drawn[0], (std::map<int, int>{{1, kDraws}}));
    EXPECT_NEAR(drawn[1][1], 0.5 * kDraws, 140);
    EXPECT_NEAR(drawn[1][0], 0.3 * kDraws, 130);
    EXPECT_NEAR(drawn[2][1], 0.625 * kDraws, 140);
    EXPECT_EQ(drawn[2][2], 0);
    EXPECT_EQ(drawn[3], (std::map<int, int>{{1, kDraws}}));
}

TEST(Choice, PenaltiesCountWhatWasChosen) {
    // Slot 0: the prompt has token 0; each time that a token comes it loses 1, and once 0.5.
    Choosing choosing({4, 3, 2.6f, 0, 4, 3, 2.6f, 0}, 2);
    choosing.chooser().begin(0, {.sampling = {.repetition = 2, .presence = 0.5, .frequency = 1}},
                             std::vector<std::int32_t>{0, -5, 99});
    std::vector<std::int32_t> first, second;
    for (int i = 0; i < 5; ++i) {
        const auto ids = choosing.next();
        first.push_back(ids[0]);
        second.push_back(ids[1]);
    }
    // 2 3 2.6 0; then 1 is (3 / 2 - 1.5) = 0: 2 0 2.6; 2 is 1.3 - 1.5: 2 0 -0.2; 0 is 2 - 1.5: 0.5; 0 is
    // -0.5: 3 (0), of equals 1 first
    EXPECT_EQ(first, (std::vector<std::int32_t>{1, 2, 0, 0, 1}));
    EXPECT_EQ(second, (std::vector<std::int32_t>{0, 0, 0, 0, 0}));
    choosing.chooser().begin(0, {.sampling = {.frequency = 1}}, {});  // a new text
    EXPECT_EQ(choosing.next()[0], 0);
}

TEST(Choice, LogprobsAreLogSoftmax) {
    const std::int64_t vocab = 1500;
    auto logits = random_floats(2 * vocab, 5, 3.0f);
    Choosing choosing(logits, 2);
    choosing.chooser().begin(0, {.logprobs = 3}, {});
    choosing.chooser().begin(1, {.sampling = {.temperature = 2, .seed = 1}, .logprobs = 20}, {});
    for (std::int64_t step = 1; step <= 12; ++step) {
        const auto ids = choosing.next();
        for (std::int64_t slot = 0; slot < 2; ++slot) {
            const float* row = logits.data() + slot * vocab;
            double sum = 0;
            for (std::int64_t i = 0; i < vocab; ++i) sum += std::exp(double{row[i]});
            const auto of = [&](std::int32_t id) { return row[id] - std::log(sum); };
            const llm::TokenLogprobs found = choosing.chooser().logprobs(slot, step);
            EXPECT_NEAR(found.chosen, of(ids[static_cast<std::size_t>(slot)]), 3e-6);
            ASSERT_EQ(found.best.size(), slot == 0 ? 3u : 20u);
            for (std::size_t i = 0; i < found.best.size(); ++i) {
                EXPECT_NEAR(found.best[i].second, of(found.best[i].first), 3e-6);
                EXPECT_TRUE(i == 0 || found.best[i].second <= found.best[i - 1].second);
            }
            if (slot == 0) {
                EXPECT_EQ(found.best[0].first, ids[0]);
            }
        }
    }
}

TEST(Choice, WhatIsNoNumberIsNoToken) {
    for (const float bad : {NAN, INFINITY}) {
        Choosing choosing({1, bad, 3, 1, bad, 3}, 2);
        choosing.chooser().begin(1, {.sampling = {.temperature = 1}}, {});
        EXPECT_EQ(choosing.next(), (std::vector<std::int32_t>{-1, -1}));
    }
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
    EXPECT_EQ(best({-INFINITY, -5}, 2), 1);
    EXPECT_EQ(best({-INFINITY, -INFINITY}, 2), -1);
    EXPECT_EQ(best({1, NAN, INFINITY, NAN}, 4), -1);
    EXPECT_EQ(best({1, INFINITY}, 2), -1);
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
