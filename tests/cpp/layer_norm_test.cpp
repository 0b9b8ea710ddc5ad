#include <gtest/gtest.h>

#include "base/error.hpp"
#include "model_support.hpp"
#include "ops/norm.hpp"

namespace {

using namespace gpk;

std::vector<double> reference(const std::vector<float>& x, const std::vector<float>& weight,
                              const std::vector<float>& bias, double eps) {
    const std::size_t n = weight.size();
    std::vector<double> y(x.size());
    for (std::size_t row = 0; row < x.size() / n; ++row) {
        double mean = 0, squares = 0;
        for (std::size_t i = 0; i < n; ++i) mean += x[row * n + i] / double(n);
        for (std::size_t i = 0; i < n; ++i) squares += (x[row * n + i] - mean) * (x[row * n + i] - mean);
        const double scale = 1 / std::sqrt(squares / double(n) + eps);
        for (std::size_t i = 0; i < n; ++i) {
            y[row * n + i] = (x[row * n + i] - mean) * scale * weight[i] + bias[i];
        }
    }
    return y;
}

const Array kNone = {};

// Parts of warps, warps, blocks, clusters and loops; rows that go in vectors and rows that do not.
TEST(LayerNorm, MatchesFloat64InEveryDtypeAndWidth) {
    for (const DType dtype : kModelFloats) {
        for (const std::int64_t n :
             {1, 7, 8, 64, 101, 128, 576, 1000, 4096, 4097, 9000, 9001, 20'000, 300'000, 600'000}) {
            const std::int64_t rows = n < 10'000 ? 5 : 2;
            const auto x = rounded(random_floats(rows * n, 1), dtype);
            const auto weight = rounded(random_floats(n, 2), dtype),
                       bias = rounded(random_floats(n, 3), dtype);
            const Array y = ops::layer_norm(upload(x, {rows, n}, dtype), upload(weight, {n}, dtype),
                                            upload(bias, {n}, dtype), 1e-5);
            EXPECT_EQ(y.shape(), (Dims{rows, n}));
            EXPECT_LE(worst_error(download(y), reference(x, weight, bias, 1e-5)), 3 * rounding(dtype))
                << name(dtype) << " " << n;
        }
    }
}

TEST(LayerNorm, ManyRows) {
    for (const std::int64_t n : {5, 64, 250, 512, 1100}) {
        const std::int64_t rows = 3000;
        const auto x = random_floats(rows * n, 4), weight = random_floats(n, 5), bias = random_floats(n, 6);
        const Array y = ops::layer_norm(upload(x, {rows, n}), upload(weight, {n}), upload(bias, {n}), 1e-5);
        EXPECT_LE(worst_error(download(y), reference(x, weight, bias, 1e-5)), 3e-6) << n;
    }
}

// E(x^2) - E(x)^2 would leave nothing of the variance here.
TEST(LayerNorm, AMeanMuchLargerThanTheSpreadCostsNoDigits) {
    auto x = random_floats(2048, 7);
    for (float& value : x) value += 10'000;
    const std::vector<float> ones(2048, 1), zeros(2048, 0);
    const Array y = ops::layer_norm(upload(x, {1, 2048}), kNone, kNone, 0);
    EXPECT_LE(worst_error(download(y), reference(x, ones, zeros, 0)), 2e-3);  // half a unit of 10,000 in 1
}

TEST(LayerNorm, WeightAndBiasMayBeLeftOut) {
    const auto x = random_floats(3 * 40, 8), weight = random_floats(40, 9), bias = random_floats(40, 10);
    const std::vector<float> ones(40, 1), zeros(40, 0);
    const Array input = upload(x, {3, 40});
    EXPECT_LE(
        worst_error(download(ops::layer_norm(input, kNone, kNone, 1e-5)), reference(x, ones, zeros, 1e-5)),
        2e-6);
    EXPECT_LE(worst_error(download(ops::layer_norm(input, upload(weight, {40}), kNone, 1e-5)),
                          reference(x, weight, zeros, 1e-5)),
              2e-6);
    EXPECT_LE(worst_error(download(ops::layer_norm(input, kNone, upload(bias, {40}), 1e-5)),
                          reference(x, ones, bias, 1e-5)),
              2e-6);
}

TEST(LayerNorm, AddsTheResidualAndGivesTheSum) {
    for (const DType dtype : kModelFloats) {
        for (const std::int64_t n : {5, 64, 4096, 9001, 70'000, 600'000}) {
            const auto x = rounded(random_floats(3 * n, 3), dtype),
                       r = rounded(random_floats(3 * n, 4), dtype);
            const auto weight = rounded(random_floats(n, 5), dtype),
                       bias = rounded(random_floats(n, 6), dtype);
            std::vector<float> expected(x.size());
            for (std::size_t i = 0; i < x.size(); ++i) expected[i] = x[i] + r[i];
            expected = rounded(expected, dtype);
            const Array residual = upload(r, {3, n}, dtype), sum = Array::empty(test_device(), {3, n}, dtype);
            const Array y = ops::layer_norm(upload(x, {3, n}, dtype), upload(weight, {n}, dtype),
                                            upload(bias, {n}, dtype), 1e-6, &residual, nullptr, &sum);
            EXPECT_EQ(download(sum), expected);
            EXPECT_EQ(download(residual), r);
            EXPECT_LE(worst_error(download(y), reference(expected, weight, bias, 1e-6)), 3 * rounding(dtype));
        }
    }
}

TEST(LayerNorm, TakesStridesEmptyRowsAndNaN) {
    const auto x = random_floats(24, 6);
    const std::vector<float> ones(4, 1), zeros(4, 0);
    const Array turned = upload(x, {4, 6}).transpose({});
    std::vector<float> expected(24);
    for (std::size_t i = 0; i < 24; ++i) expected[i] = x[i % 4 * 6 + i / 4];
    EXPECT_LE(worst_error(download(ops::layer_norm(turned, kNone, kNone, 1e-6)),
                          reference(expected, ones, zeros, 1e-6)),
              2e-6);
    EXPECT_EQ(ops::layer_norm(upload({}, {0, 4}), kNone, kNone, 1e-6).size(), 0);
    EXPECT_EQ(ops::layer_norm(upload({}, {4, 0}), kNone, kNone, 1e-6).size(), 0);
    const auto y = download(ops::layer_norm(upload({1, NAN, 2, 3, 3, 3}, {2, 3}), kNone, kNone, 1e-6));
    EXPECT_TRUE(std::isnan(y[0]) && std::isnan(y[2]));
    EXPECT_EQ(y[4], 0);
}

TEST(LayerNorm, RefusesWhatDoesNotFit) {
    const Array x = upload(random_floats(8, 1), {2, 4}), fit = upload({1, 1, 1, 1}, {4});
    EXPECT_THROW(ops::layer_norm(x, upload({1, 1, 1}, {3}), kNone, 1e-6), Error);
    EXPECT_THROW(ops::layer_norm(x, fit, upload({1, 1, 1, 1}, {4}, DType::float16), 1e-6), Error);
    EXPECT_THROW(ops::layer_norm(x, fit, kNone, NAN), Error);
    EXPECT_THROW(ops::layer_norm(upload({1}, {}), kNone, kNone, 1e-6), Error);
    EXPECT_THROW(ops::layer_norm(upload_ints({1, 2}), kNone, kNone, 1e-6), Error);
    const Array residual = upload(random_floats(8, 1), {2, 4}), other = upload(random_floats(6, 1), {2, 3});
    EXPECT_THROW(ops::layer_norm(x, fit, kNone, 1e-6, &other), Error);
    EXPECT_THROW(ops::layer_norm(x, fit, kNone, 1e-6, &x), Error);
    EXPECT_THROW(ops::layer_norm(x, fit, kNone, 1e-6, &residual, nullptr, &x), Error);
}

}  // namespace
