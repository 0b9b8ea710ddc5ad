#include <gtest/gtest.h>

#include "base/error.hpp"
#include "model_support.hpp"
#include "ops/glu.hpp"

namespace {

using namespace gpk;

double silu(double x) { return x / (1 + std::exp(-x)); }

double gelu(double x) { return 0.5 * x * std::erfc(-x * std::sqrt(0.5)); }
double gelu_tanh(double x) {
    return x / (1 + std::exp(-2 * std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x)));
}
constexpr struct {
    GluOp op;
    double (*function)(double);
} kOps[] = {{GluOp::swiglu, silu}, {GluOp::geglu, gelu}, {GluOp::geglu_tanh, gelu_tanh}};

TEST(Glu, MatchesFloat64FusedAndApart) {
    for (const auto& [op, function] : kOps) {
        for (const DType dtype : kModelFloats) {
            for (const std::int64_t n : {1, 13, 64, 1536}) {
                const std::int64_t rows = 3;
                const auto both = rounded(random_floats(rows * 2 * n, 1, 3.0f), dtype);
                std::vector<float> gate, up;
                std::vector<double> expected;
                for (std::size_t i = 0; i < both.size(); ++i) {
                    (i / static_cast<std::size_t>(n) % 2 == 0 ? gate : up).push_back(both[i]);
                }
                for (std::size_t i = 0; i < gate.size(); ++i) expected.push_back(function(gate[i]) * up[i]);
                const Array fused = ops::glu(op, upload(both, {rows, 2 * n}, dtype));
                EXPECT_EQ(fused.shape(), (Dims{rows, n}));
                EXPECT_LE(worst_error(download(fused), expected), 2 * rounding(dtype)) << n;
                const Array apart =
                    ops::glu(op, upload(gate, {rows, n}, dtype), upload(up, {rows, n}, dtype));
                EXPECT_EQ(download(apart), download(fused));
            }
        }
    }
}

TEST(Glu, StaysFiniteWhereTheExponentialDoesNot) {
    EXPECT_EQ(download(ops::glu(GluOp::swiglu, upload({-1e4f, 1e4f, 0}, {3}), upload({2, 2, 2}, {3}))),
              (std::vector<float>{0, 2e4f, 0}));
}

TEST(Glu, TakesScalarsEmptyArraysStridesAndOut) {
    EXPECT_NEAR(download(ops::glu(GluOp::swiglu, upload({1}, {}), upload({2}, {})))[0], 2 * silu(1), 1e-6);
    EXPECT_EQ(ops::glu(GluOp::swiglu, upload({}, {0, 4})).shape(), (Dims{0, 2}));
    const Array gate = upload({1, 2, 3, 4}, {2, 2}).transpose({}), up = upload({1, 1, 1, 1}, {2, 2});
    const Array out = Array::empty(test_device(), {2, 2}, DType::float32);
    ops::glu(GluOp::swiglu, gate, up, &out);
    EXPECT_LE(worst_error(download(out), {silu(1), silu(3), silu(2), silu(4)}), 1e-6);
}

TEST(Glu, RefusesWhatDoesNotFit) {
    EXPECT_THROW(ops::glu(GluOp::swiglu, upload({1, 2, 3}, {3})), Error);
    EXPECT_THROW(ops::glu(GluOp::swiglu, upload({1, 2}, {2}), upload({1}, {1})), Error);
    EXPECT_THROW(ops::glu(GluOp::swiglu, upload_ints({1, 2})), Error);
}

}  // namespace
