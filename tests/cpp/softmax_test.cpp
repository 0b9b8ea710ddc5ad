#include <gtest/gtest.h>

#include "base/error.hpp"
#include "model_support.hpp"
#include "ops/norm.hpp"

namespace {

using namespace gpk;

// Along the middle axis of [outer, n, inner].
std::vector<double> reference(const std::vector<float>& x, std::size_t n, std::size_t inner) {
    std::vector<double> y(x.size());
    for (std::size_t o = 0; o < x.size() / (n * inner); ++o) {
        for (std::size_t i = 0; i < inner; ++i) {
            const std::size_t base = o * n * inner + i;
            double highest = -INFINITY, sum = 0;
            for (std::size_t k = 0; k < n; ++k) highest = std::max<double>(highest, x[base + k * inner]);
            for (std::size_t k = 0; k < n; ++k) sum += std::exp(x[base + k * inner] - highest);
            for (std::size_t k = 0; k < n; ++k)
                y[base + k * inner] = std::exp(x[base + k * inner] - highest) / sum;
        }
    }
    return y;
}

TEST(Softmax, MatchesFloat64AlongEveryAxis) {
    const std::int64_t shape[] = {3, 37, 5};
    for (const DType dtype : kModelFloats) {
        const auto x = rounded(random_floats(3 * 37 * 5, 1, 4.0f), dtype);
        const std::size_t inner[] = {37 * 5, 5, 1};
        for (int axis = 0; axis < 3; ++axis) {
            const auto expected = reference(x, static_cast<std::size_t>(shape[axis]), inner[axis]);
            for (const int named : {axis, axis - 3}) {
                const Array y = ops::softmax(upload(x, {3, 37, 5}, dtype), named);
                EXPECT_EQ(y.shape(), (Dims{3, 37, 5}));
                EXPECT_LE(worst_error(download(y), expected), rounding(dtype)) << axis;
            }
        }
    }
}

TEST(Softmax, StaysFiniteForLargeInputsAndLongRows) {
    const auto y = download(ops::softmax(upload({1e30f, -1e30f, 1e30f}, {3}), 0));
    EXPECT_EQ(y, (std::vector<float>{0.5f, 0, 0.5f}));
    const auto long_row = random_floats(100'003, 2, 10.0f);
    EXPECT_LE(
        worst_error(download(ops::softmax(upload(long_row, {100'003}), 0)), reference(long_row, 100'003, 1)),
        1e-6);
}

// Parts of warps, warps, blocks, clusters and loops; rows that go in vectors and rows that do not. Of 16-bit
// types the error is relative too: their exponential is the processor's, and it must not show in the rounded
// result.
TEST(Softmax, RowsOfEveryLength) {
    for (const DType dtype : kModelFloats) {
        for (const std::int64_t n :
             {1, 8, 31, 64, 128, 255, 512, 1023, 2048, 4096, 9000, 33'000, 152'064, 300'001}) {
            const std::int64_t rows = n < 10'000 ? 3 : 2;
            const auto x = rounded(random_floats(rows * n, 3, 3.0f), dtype);
            const auto y = download(ops::softmax(upload(x, {rows, n}, dtype), 1));
            const auto expected = reference(x, static_cast<std::size_t>(n), 1);
            double worst = 0;
            for (std::size_t i = 0; i < y.size(); ++i) {
                if (expected[i] < 1e-4) continue;  // float16 has few digits left there
                worst = std::max(worst, std::abs(y[i] - expected[i]) / expected[i]);
            }
            EXPECT_LE(worst, dtype == DType::float32 ? 3e-6 : 1.02 * rounding(dtype)) << name(dtype) << n;
            EXPECT_LE(worst_error(y, expected), rounding(dtype)) << name(dtype) << n;
        }
    }
}

TEST(Softmax, ManyShortRows) {
    for (const std::int64_t n : {3, 16, 100, 256}) {
        const auto x = random_floats(3000 * n, 4);
        EXPECT_LE(worst_error(download(ops::softmax(upload(x, {3000, n}), 1)),
                              reference(x, static_cast<std::size_t>(n), 1)),
                  1e-6)
            << n;
    }
}

// More columns than fill any device: they are not turned into rows.
TEST(Softmax, ManyColumns) {
    for (const DType dtype : kModelFloats) {
        for (const auto& [n, inner] : {std::pair{5, 40}, {70, 37}, {1, 64}}) {
            const std::int64_t outer = 1100;
            auto x = rounded(random_floats(outer * n * inner, 5, 4.0f), dtype);
            if (n > 1) x[static_cast<std::size_t>(inner)] = -INFINITY;  // column 0, place 1
            const auto y = download(ops::softmax(upload(x, {outer, n, inner}, dtype), 1));
            const auto expected = reference(x, static_cast<std::size_t>(n), static_cast<std::size_t>(inner));
            EXPECT_LE(worst_error(y, expected), rounding(dtype)) << name(dtype) << n;
            x[3] = NAN;
            const auto with_nan = download(ops::softmax(upload(x, {outer, n, inner}, dtype), 1));
            for (std::size_t i = 0; i < y.size(); ++i) {
                const bool of_nan =
                    i < static_cast<std::size_t>(n * inner) && i % static_cast<std::size_t>(inner) == 3;
                ASSERT_EQ(std::isnan(with_nan[i]), of_nan) << i;
            }
        }
    }
}

TEST(Softmax, TreatsInfinitiesAndNaNsAsNumPyDoes) {
    const float inf = INFINITY;
    EXPECT_EQ(download(ops::softmax(upload({0, -inf, 0}, {3}), 0)), (std::vector<float>{0.5f, 0, 0.5f}));
    for (const auto& row : {std::vector<float>{-inf, -inf, -inf}, {0, NAN, 1}, {NAN, 0, 0}, {inf, 0, 0}}) {
        const auto y = download(ops::softmax(upload(row, {3}), 0));
        EXPECT_TRUE(std::any_of(y.begin(), y.end(), [](float v) { return std::isnan(v); }));
    }
}

TEST(Softmax, HandlesEmptyAndRefusesTheRest) {
    EXPECT_EQ(ops::softmax(upload({}, {0, 3}), 1).shape(), (Dims{0, 3}));
    EXPECT_EQ(ops::softmax(upload({}, {3, 0}), 1).shape(), (Dims{3, 0}));
    EXPECT_THROW(ops::softmax(upload({1}, {1}), 1), Error);
    EXPECT_THROW(ops::softmax(upload({1}, {}), 0), Error);
    EXPECT_THROW(ops::softmax(upload_ints({1, 2}), 0), Error);
}

}  // namespace
