#include <gtest/gtest.h>

#include "base/error.hpp"
#include "model_support.hpp"
#include "ops/silu_mul.hpp"

namespace {

using namespace gpk;

double silu(double x) { return x / (1 + std::exp(-x)); }

TEST(SiluMul, MatchesFloat64FusedAndApart) {
    for (const DType dtype : kModelFloats) {
        for (const std::int64_t n : {1, 13, 64, 1536}) {
            const std::int64_t rows = 3;
            const auto both = rounded(random_floats(rows * 2 * n, 1, 3.0f), dtype);
            std::vector<float> gate, up;
            std::vector<double> expected;
            for (std::size_t i = 0; i < both.size(); ++i) {
                (i / static_cast<std::size_t>(n) % 2 == 0 ? gate : up).push_back(both[i]);
            }
            for (std::size_t i = 0; i < gate.size(); ++i) expected.push_back(silu(gate[i]) * up[i]);
            const Array fused = ops::silu_mul(upload(both, {rows, 2 * n}, dtype));
            EXPECT_EQ(fused.shape(), (Dims{rows, n}));
            EXPECT_LE(worst_error(download(fused), expected), 2 * rounding(dtype)) << n;
            const Array apart = ops::silu_mul(upload(gate, {rows, n}, dtype), upload(up, {rows, n}, dtype));
            EXPECT_EQ(download(apart), download(fused));
        }
    }
}

TEST(SiluMul, StaysFiniteWhereTheExponentialDoesNot) {
    EXPECT_EQ(download(ops::silu_mul(upload({-1e4f, 1e4f, 0}, {3}), upload({2, 2, 2}, {3}))),
              (std::vector<float>{0, 2e4f, 0}));
}

TEST(SiluMul, TakesScalarsEmptyArraysStridesAndOut) {
    EXPECT_NEAR(download(ops::silu_mul(upload({1}, {}), upload({2}, {})))[0], 2 * silu(1), 1e-6);
    EXPECT_EQ(ops::silu_mul(upload({}, {0, 4})).shape(), (Dims{0, 2}));
    const Array gate = upload({1, 2, 3, 4}, {2, 2}).transpose({}), up = upload({1, 1, 1, 1}, {2, 2});
    const Array out = Array::empty(test_device(), {2, 2}, DType::float32);
    ops::silu_mul(gate, up, &out);
    EXPECT_LE(worst_error(download(out), {silu(1), silu(3), silu(2), silu(4)}), 1e-6);
}

TEST(SiluMul, RefusesWhatDoesNotFit) {
    EXPECT_THROW(ops::silu_mul(upload({1, 2, 3}, {3})), Error);
    EXPECT_THROW(ops::silu_mul(upload({1, 2}, {2}), upload({1}, {1})), Error);
    EXPECT_THROW(ops::silu_mul(upload_ints({1, 2})), Error);
}

}  // namespace
