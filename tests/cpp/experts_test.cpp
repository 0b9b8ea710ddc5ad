#include "ops/experts.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/error.hpp"
#include "ops/grouped_linear.hpp"
#include "ops/manipulation.hpp"
#include "ops/matmul.hpp"
#include "values.hpp"

namespace {

using namespace gpk;
using values::download;
using values::random_array;
using values::relative_error;
using values::upload;

constexpr DType kDtypes[] = {DType::float32, DType::float16, DType::bfloat16};

TEST(Route, KeepsTheLargestWithTheirShares) {
    for (const DType dtype : kDtypes) {
        for (const std::int64_t experts : {1, 8, 31, 128, 160, 512, 1024}) {
            const std::int64_t tokens = 37, k = std::min<std::int64_t>(experts, 8);
            const Array logits = random_array({tokens, experts + 3}, dtype, 1).slice(1, 0, 1, experts);
            const auto x = download(logits);
            for (const bool normalize : {true, false}) {
                const ops::Routes routes = ops::route(logits, k, normalize);
                const auto weights = download(routes.weights), chosen = download(routes.experts);
                std::vector<double> expected, order;
                for (std::int64_t token = 0; token < tokens; ++token) {
                    const double* row = x.data() + token * experts;
                    std::vector<int> by(static_cast<std::size_t>(experts));
                    std::iota(by.begin(), by.end(), 0);
                    std::stable_sort(by.begin(), by.end(), [&](int a, int b) { return row[a] > row[b]; });
                    double sum = 0;
                    for (std::int64_t i = 0; i < (normalize ? k : experts); ++i)
                        sum += std::exp(row[by[static_cast<std::size_t>(i)]]);
                    for (std::int64_t i = 0; i < k; ++i) {
                        order.push_back(by[static_cast<std::size_t>(i)]);
                        expected.push_back(std::exp(row[by[static_cast<std::size_t>(i)]]) / sum);
                    }
                }
                EXPECT_EQ(chosen, order) << experts;
                EXPECT_LE(relative_error(weights, expected), 1e-6) << experts;
            }
        }
    }
}

TEST(Route, OrdersTiesInfinitiesAndNaN) {
    const double inf = std::numeric_limits<double>::infinity();
    const Array logits = upload({1, 2, 2, 1, -inf, -inf, -inf, 3, 0, NAN, 5, 0}, {3, 4}, DType::float32);
    EXPECT_EQ(download(ops::route(logits, 3).experts), (std::vector<double>{1, 2, 0, 3, 0, 1, 1, 2, 0}));
    EXPECT_EQ(download(ops::route(logits, 2).weights.slice(0, 1, 1, 1)), (std::vector<double>{1, 0}));
}

TEST(Route, NamesWhatIsWrong) {
    const Array logits = random_array({4, 8}, DType::float32, 1);
    EXPECT_EQ(ops::route(logits.slice(0, 0, 1, 0), 2).weights.shape(), (Dims{0, 2}));
    EXPECT_THROW(ops::route(logits, 0), Error);
    EXPECT_THROW(ops::route(logits, 9), Error);
    EXPECT_THROW(ops::route(logits, INT64_MIN), Error);
    EXPECT_THROW(ops::route(logits.select(0, 0), 1), Error);
    EXPECT_THROW(ops::route(ops::astype(logits, DType::int32), 1), Error);
    EXPECT_THROW(ops::route(random_array({1, 1025}, DType::float32, 1), 1), Error);
}

TEST(SortByExpert, IsStableAndCountsAll) {
    struct Size {
        std::int64_t tokens, k, experts;
    };
    for (const Size& size :
         {Size{1, 8, 128}, {5, 2, 8}, {700, 4, 60}, {3000, 8, 128}, {257, 1, 1}, {100, 6, 1024}}) {
        std::mt19937 engine(7);
        std::vector<double> experts(static_cast<std::size_t>(size.tokens * size.k));
        // Some lie outside.
        for (double& expert : experts)
            expert = static_cast<double>(engine() % static_cast<unsigned>(size.experts + 2)) - 1;
        const ops::ExpertOrder order =
            ops::sort_by_expert(upload(experts, {size.tokens, size.k}, DType::int32), size.experts);
        std::vector<double> tokens, places(experts.size(), -1), offsets;
        for (std::int64_t expert = 0; expert < size.experts; ++expert) {
            offsets.push_back(static_cast<double>(tokens.size()));
            for (std::size_t i = 0; i < experts.size(); ++i) {
                if (experts[i] != static_cast<double>(expert)) continue;
                places[i] = static_cast<double>(tokens.size());
                tokens.push_back(static_cast<double>(static_cast<std::int64_t>(i) / size.k));
            }
        }
        offsets.push_back(static_cast<double>(tokens.size()));
        tokens.resize(experts.size(), -1);
        EXPECT_EQ(download(order.offsets), offsets);
        EXPECT_EQ(download(order.tokens), tokens);
        EXPECT_EQ(download(order.places), places);
    }
}

TEST(SortByExpert, NamesWhatIsWrong) {
    const Array experts = upload({0, 1, 2, 3}, {2, 2}, DType::int32);
    const ops::ExpertOrder none = ops::sort_by_expert(experts.slice(0, 0, 1, 0), 3);
    EXPECT_EQ(download(none.offsets), std::vector<double>(4, 0));
    EXPECT_EQ(none.places.shape(), (Dims{0, 2}));
    EXPECT_THROW(ops::sort_by_expert(experts, 0), Error);
    EXPECT_THROW(ops::sort_by_expert(experts, 1025), Error);
    EXPECT_THROW(ops::sort_by_expert(experts.select(0, 0), 4), Error);
    EXPECT_THROW(ops::sort_by_expert(ops::astype(experts, DType::int64), 4), Error);
}

TEST(CombineExperts, AddsWhatTheExpertsMade) {
    for (const DType dtype : kDtypes) {
        for (const std::int64_t n : {1, 13, 64, 1032}) {
            const std::int64_t rows = 30, tokens = 9, k = 4;
            std::vector<double> places(static_cast<std::size_t>(tokens * k));
            for (std::size_t i = 0; i < places.size(); ++i)
                places[i] = static_cast<double>(i * 7 % 33) - 1;  // -1 and 30 to 31 are outside
            const Array y = random_array({rows, n}, dtype, 1),
                        weights = random_array({tokens, k}, DType::float32, 2),
                        residual = random_array({tokens, n}, dtype, 3);
            const auto of = download(y), w = download(weights);
            auto expected = std::vector<double>(static_cast<std::size_t>(tokens * n), 0.0);
            for (std::size_t i = 0; i < places.size(); ++i) {
                if (places[i] < 0 || places[i] >= rows) continue;
                for (std::int64_t j = 0; j < n; ++j)
                    expected[i / 4 * static_cast<std::size_t>(n) + static_cast<std::size_t>(j)] +=
                        w[i] * of[static_cast<std::size_t>(static_cast<std::int64_t>(places[i]) * n + j)];
            }
            const double bound = dtype == DType::float32 ? 1e-6 : 4e-3;
            const Array at = upload(places, {tokens, k}, DType::int32);
            EXPECT_LE(relative_error(download(ops::combine_experts(y, at, weights)), expected), bound) << n;
            const auto add = download(residual);
            for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += add[i];
            ops::combine_experts(y, at, weights, &residual, &residual);
            EXPECT_LE(relative_error(download(residual), expected), bound) << n;
        }
    }
}

TEST(CombineExperts, NamesWhatIsWrong) {
    const Array y = random_array({6, 4}, DType::float32, 1),
                places = upload({0, 1, 2, 3}, {2, 2}, DType::int32),
                weights = random_array({2, 2}, DType::float32, 2);
    EXPECT_EQ(ops::combine_experts(y.slice(1, 0, 1, 0), places, weights).shape(), (Dims{2, 0}));
    EXPECT_THROW(ops::combine_experts(y.select(0, 0), places, weights), Error);
    EXPECT_THROW(ops::combine_experts(y, weights, weights), Error);
    EXPECT_THROW(ops::combine_experts(y, places, places), Error);
    EXPECT_THROW(ops::combine_experts(y, places, weights.slice(0, 0, 1, 1)), Error);
    EXPECT_THROW(ops::combine_experts(y, places, weights, &y), Error);
}

// All steps of a layer: what it gives is what each token's experts would give by themselves.
TEST(Experts, LayerIsTheSumOfItsExperts) {
    const std::int64_t tokens = 33, experts = 6, k = 2, width = 64, inner = 40;
    for (const DType dtype : {DType::float32, DType::bfloat16}) {
        const Array x = random_array({tokens, width}, dtype, 1),
                    gate = random_array({tokens, experts}, dtype, 2);
        auto small = [&](const Dims& shape, unsigned seed) {
            auto numbers = values::random(element_count(shape), dtype, seed);
            for (double& number : numbers) number /= 8;
            return upload(numbers, shape, dtype);
        };
        const Array up = small({experts, 2 * inner, width}, 3), down = small({experts, width, inner}, 4);
        const ops::Routes routes = ops::route(gate, k);
        const ops::ExpertOrder order = ops::sort_by_expert(routes.experts, experts);
        const Array sorted = ops::take(x, order.tokens, 0);
        const Array made = ops::grouped_linear(ops::grouped_linear(sorted, up, order.offsets, GluOp::swiglu),
                                               down, order.offsets);
        const auto got = download(ops::combine_experts(made, order.places, routes.weights));
        std::vector<double> expected(got.size(), 0.0);
        const auto chosen = download(routes.experts), weights = download(routes.weights);
        for (std::int64_t i = 0; i < tokens * k; ++i) {
            const auto expert = static_cast<std::int64_t>(chosen[static_cast<std::size_t>(i)]);
            const Array row = x.slice(0, i / k, 1, 1);
            const auto y = download(ops::linear(ops::gated_linear(row, up.select(0, expert), GluOp::swiglu),
                                                down.select(0, expert)));
            for (std::int64_t j = 0; j < width; ++j)
                expected[static_cast<std::size_t>(i / k * width + j)] +=
                    weights[static_cast<std::size_t>(i)] * y[static_cast<std::size_t>(j)];
        }
        EXPECT_LE(relative_error(got, expected), dtype == DType::float32 ? 2e-6 : 1e-2);
    }
}

}  // namespace
