#include <gtest/gtest.h>

#include "base/error.hpp"
#include "model_support.hpp"
#include "ops/norm.hpp"

namespace {

using namespace gpk;

std::vector<double> reference(const std::vector<float>& x, const std::vector<float>& weight, double eps) {
    const std::size_t n = weight.size();
    std::vector<double> y(x.size());
    for (std::size_t row = 0; row < x.size() / n; ++row) {
        double squares = 0;
        for (std::size_t i = 0; i < n; ++i) squares += double(x[row * n + i]) * x[row * n + i];
        const double scale = 1 / std::sqrt(squares / double(n) + eps);
        for (std::size_t i = 0; i < n; ++i) y[row * n + i] = x[row * n + i] * scale * weight[i];
    }
    return y;
}

TEST(RmsNorm, MatchesFloat64InEveryDtypeAndWidth) {
    for (const DType dtype : kModelFloats) {
        // Parts of warps, warps, blocks, clusters and loops; rows that go in vectors and rows that do not.
        for (const std::int64_t n :
             {1, 7, 64, 101, 128, 576, 4096, 4097, 9000, 9001, 20'000, 300'000, 600'000}) {
            const std::int64_t rows = n < 10'000 ? 5 : 2;
            const auto x = rounded(random_floats(rows * n, 1), dtype);
            const auto weight = rounded(random_floats(n, 2), dtype);
            const Array y = ops::rms_norm(upload(x, {rows, n}, dtype), upload(weight, {n}, dtype), 1e-5);
            EXPECT_EQ(y.shape(), (Dims{rows, n}));
            EXPECT_LE(worst_error(download(y), reference(x, weight, 1e-5)), 2 * rounding(dtype)) << n;
        }
    }
}

TEST(RmsNorm, ManyRowsAndNoWeight) {
    for (const std::int64_t n : {5, 64, 250, 512, 1100}) {
        const std::int64_t rows = 3000;
        const auto x = random_floats(rows * n, 4);
        const std::vector<float> ones(static_cast<std::size_t>(n), 1);
        const Array y = ops::rms_norm(upload(x, {rows, n}), {}, 1e-5);
        EXPECT_LE(worst_error(download(y), reference(x, ones, 1e-5)), 2e-6) << n;
    }
}

TEST(RmsNorm, EpsStandsInsideTheRoot) {
    const Array y = ops::rms_norm(upload({3e-3f, 4e-3f}, {1, 2}), upload({1, 1}, {2}), 1e-3);
    const double scale = 1 / std::sqrt(12.5e-6 + 1e-3);
    EXPECT_LE(worst_error(download(y), {3e-3 * scale, 4e-3 * scale}), 1e-6);
    EXPECT_EQ(download(ops::rms_norm(upload({0, 0}, {1, 2}), upload({1, 1}, {2}), 1e-6)),
              (std::vector<float>{0, 0}));
}

TEST(RmsNorm, AddsTheResidualAndWritesItBack) {
    for (const DType dtype : kModelFloats) {
        for (const std::int64_t n : {5, 64, 9000, 9001, 70'000, 600'000}) {
            const auto x = rounded(random_floats(3 * n, 3), dtype),
                       r = rounded(random_floats(3 * n, 4), dtype);
            const auto weight = rounded(random_floats(n, 5), dtype);
            std::vector<float> sum(x.size());
            for (std::size_t i = 0; i < x.size(); ++i) sum[i] = x[i] + r[i];
            sum = rounded(sum, dtype);
            const Array residual = upload(r, {3, n}, dtype), input = upload(x, {3, n}, dtype);
            const Array y = ops::rms_norm(input, upload(weight, {n}, dtype), 1e-6, &residual, &input);
            EXPECT_EQ(download(residual), sum);
            EXPECT_EQ(y.data(), input.data());
            EXPECT_LE(worst_error(download(y), reference(sum, weight, 1e-6)), 2 * rounding(dtype));
        }
    }
}

TEST(RmsNorm, TakesAnyRankAndStrides) {
    const auto x = random_floats(24, 6), weight = random_floats(4, 7);
    const Array y = ops::rms_norm(upload(x, {2, 3, 4}), upload(weight, {4}), 1e-6);
    EXPECT_EQ(y.shape(), (Dims{2, 3, 4}));
    EXPECT_LE(worst_error(download(y), reference(x, weight, 1e-6)), 1e-6);

    const Array turned = upload(x, {4, 6}).transpose({});  // [6, 4], columns of the stored rows
    std::vector<float> expected(24);
    for (std::size_t i = 0; i < 24; ++i) expected[i] = x[i % 4 * 6 + i / 4];
    EXPECT_LE(worst_error(download(ops::rms_norm(turned, upload(weight, {4}), 1e-6)),
                          reference(expected, weight, 1e-6)),
              1e-6);
    EXPECT_EQ(ops::rms_norm(upload({}, {0, 4}), upload(weight, {4}), 1e-6).size(), 0);
}

TEST(RmsNorm, RefusesWhatDoesNotFit) {
    const Array x = upload(random_floats(8, 1), {2, 4});
    EXPECT_THROW(ops::rms_norm(x, upload({1, 1, 1}, {3}), 1e-6), Error);
    EXPECT_THROW(ops::rms_norm(x, upload({1, 1, 1, 1}, {4}, DType::float16), 1e-6), Error);
    EXPECT_THROW(ops::rms_norm(x, upload({1, 1, 1, 1}, {4}), -1), Error);
    EXPECT_THROW(ops::rms_norm(upload_ints({1, 2, 3, 4}), upload({1, 1, 1, 1}, {4}), 1e-6), Error);
    const Array residual = upload(random_floats(8, 1), {2, 4}).readonly();
    EXPECT_THROW(ops::rms_norm(x, upload({1, 1, 1, 1}, {4}), 1e-6, &residual), Error);
}

}  // namespace
