#include "ops/matmul.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "matmul_values.hpp"
#include "ops/elementwise.hpp"

namespace {

using namespace gpk;
using namespace matmul_values;
using values::download;
using values::random_array;
using values::relative_error;
using values::upload;

TEST(Matmul, EveryDtype) {
    for (const Bound& bound : kBounds) {
        const Array a = random_array({33, 70}, bound.dtype, 1), b = random_array({70, 21}, bound.dtype, 2);
        const Array c = ops::matmul(a, b);
        ASSERT_EQ(c.dtype(), bound.dtype);
        const auto expected = product(download(a), download(b), 33, 21, 70, bound.dtype);
        EXPECT_LE(relative_error(download(c), expected), bound.exact) << name(bound.dtype);
    }
}

// What the chooser takes at sizes on both sides of its limits, transposed results included.
TEST(Matmul, ChosenKernelsAgree) {
    for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16}) {
        for (const Size& size :
             {Size{1, 576, 576}, {576, 1, 576}, {9, 576, 64}, {576, 8, 128}, {300, 300, 300}, {1, 1, 4096}}) {
            for (const bool transposed : {false, true}) {
                const Array a = matrix(size.m, size.k, dtype, false, 0, 3);
                const Array b = matrix(size.k, size.n, dtype, transposed, 0, 4);
                const auto expected = product(download(a), download(b), size.m, size.n, size.k, dtype);
                const double bound = dtype == DType::float32 ? 2e-6 : dtype == DType::float16 ? 5e-4 : 4e-3;
                EXPECT_LE(relative_error(download(ops::matmul(a, b)), expected), bound)
                    << name(dtype) << " " << size.m << " x " << size.n << " x " << size.k << " "
                    << transposed;
            }
        }
    }
}

TEST(Matmul, FollowsNumPyShapes) {
    const auto shape = [](const Dims& a, const Dims& b) {
        return ops::matmul(random_array(a, DType::float32, 1), random_array(b, DType::float32, 2)).shape();
    };
    EXPECT_EQ(shape({3}, {3}), (Dims{}));
    EXPECT_EQ(shape({3}, {3, 4}), (Dims{4}));
    EXPECT_EQ(shape({2, 3}, {3}), (Dims{2}));
    EXPECT_EQ(shape({5, 2, 3}, {3}), (Dims{5, 2}));
    EXPECT_EQ(shape({3}, {5, 3, 4}), (Dims{5, 4}));
    EXPECT_EQ(shape({6, 1, 2, 3}, {5, 3, 4}), (Dims{6, 5, 2, 4}));
    EXPECT_EQ(shape({0, 3}, {3, 4}), (Dims{0, 4}));
    EXPECT_EQ(shape({2, 3}, {3, 0}), (Dims{2, 0}));
    EXPECT_EQ(shape({0, 2, 3}, {3, 4}), (Dims{0, 2, 4}));
}

TEST(Matmul, NothingToSumGivesZeros) {
    for (const Bound& bound : kBounds) {
        for (const std::int64_t m : {1, 70}) {
            const Array c =
                ops::matmul(random_array({m, 0}, bound.dtype, 1), random_array({0, 65}, bound.dtype, 2));
            EXPECT_EQ(download(c), std::vector<double>(static_cast<std::size_t>(m * 65), 0.0))
                << name(bound.dtype);
        }
    }
}

TEST(Matmul, DtypesPromote) {
    const Array c =
        ops::matmul(upload({1, 2}, {1, 2}, DType::int8), upload({0.5, 0.25}, {2, 1}, DType::float32));
    EXPECT_EQ(c.dtype(), DType::float32);
    EXPECT_EQ(download(c), std::vector<double>{1.0});
}

TEST(Matmul, IntegersWrap) {
    const Array c = ops::matmul(upload({100, 100}, {1, 2}, DType::int8), upload({2, 1}, {2, 1}, DType::int8));
    EXPECT_EQ(download(c), std::vector<double>{44.0});  // 300 - 256
}

TEST(Matmul, InfinityAndNaNPassThrough) {
    const double infinity = std::numeric_limits<double>::infinity();
    for (const DType dtype : {DType::float16, DType::bfloat16, DType::float32, DType::float64}) {
        std::vector<double> weights(4 * 64, 0.5);
        weights[5] = infinity;
        weights[64 + 3] = std::nan("");
        weights[128 + 9] = -infinity;
        const Array c = ops::matmul(upload(std::vector<double>(64, 2.0), {1, 64}, dtype),
                                    upload(weights, {4, 64}, dtype).transpose({1, 0}));
        const auto got = download(c);
        EXPECT_EQ(got[0], infinity) << name(dtype);
        EXPECT_TRUE(std::isnan(got[1])) << name(dtype);
        EXPECT_EQ(got[2], -infinity) << name(dtype);
        EXPECT_EQ(got[3], 64.0) << name(dtype);
    }
}

// float16 subnormals are as exact as any other value.
TEST(Matmul, Float16Subnormals) {
    const double tiny = std::ldexp(1.0, -24);
    const Array weights = upload(std::vector<double>(64, tiny * 3), {1, 64}, DType::float16);
    const Array c = ops::matmul(upload(std::vector<double>(64, 1024.0), {1, 64}, DType::float16),
                                weights.transpose({1, 0}));
    EXPECT_EQ(download(c)[0], 64 * 1024 * tiny * 3);
}

TEST(Matmul, WritesIntoViews) {
    const Array a = random_array({5, 7}, DType::float32, 1), b = random_array({7, 6}, DType::float32, 2);
    const auto expected = product(download(a), download(b), 5, 6, 7, DType::float32);
    const Array whole = upload(std::vector<double>(12 * 5, -1.0), {12, 5}, DType::float32);
    const Array out = whole.slice(0, 0, 2, 6).transpose({1, 0});  // every other row, as columns
    ops::matmul(a, b, &out);
    EXPECT_LE(relative_error(download(out), expected), 2e-6);
    EXPECT_EQ(download(whole.slice(0, 1, 2, 6)), std::vector<double>(30, -1.0));
}

TEST(Matmul, OutMayBeAnInput) {
    const Array a = random_array({40, 40}, DType::float32, 1), b = random_array({40, 40}, DType::float32, 2);
    const auto expected = product(download(a), download(b), 40, 40, 40, DType::float32);
    ops::matmul(a, b, &b);
    EXPECT_LE(relative_error(download(b), expected), 2e-6);
}

// Reversed and broadcast operands.
TEST(Matmul, AnyStrides) {
    const Array a = random_array({30, 20}, DType::float32, 1).slice(0, 29, -1, 30).slice(1, 19, -2, 10);
    const Array b = random_array({1, 25}, DType::float32, 2).broadcast_to({10, 25});
    const auto expected = product(download(a), download(b), 30, 25, 10, DType::float32);
    EXPECT_LE(relative_error(download(ops::matmul(a, b)), expected), 2e-6);
}

TEST(Matmul, ManyBatches) {
    const Array a = random_array({70000, 2, 3}, DType::float32, 1),
                b = random_array({70000, 3, 2}, DType::float32, 2);
    const Array c = ops::matmul(a, b);
    for (const std::int64_t batch : {0, 65535, 69999}) {
        const auto expected =
            product(download(a.select(0, batch)), download(b.select(0, batch)), 2, 2, 3, DType::float32);
        EXPECT_LE(relative_error(download(c.select(0, batch)), expected), 2e-6) << batch;
    }
}

TEST(Matmul, NamesWhatIsWrong) {
    const auto fails = [](ErrorKind kind, const char* part, const auto& call) {
        try {
            call();
            ADD_FAILURE() << "no error; expected one with " << part;
        } catch (const Error& failure) {
            EXPECT_EQ(failure.kind(), kind) << failure.what();
            EXPECT_NE(std::string(failure.what()).find(part), std::string::npos) << failure.what();
        }
    };
    const Array a = random_array({2, 3}, DType::float32, 1), b = random_array({4, 5}, DType::float32, 2);
    fails(ErrorKind::value, "argument 'b'", [&] { ops::matmul(a, b); });
    fails(ErrorKind::value, "0-d", [&] { ops::matmul(random_array({}, DType::float32, 1), b); });
    fails(ErrorKind::value, "broadcast", [&] {
        ops::matmul(random_array({2, 4, 4}, DType::float32, 1), random_array({3, 4, 4}, DType::float32, 1));
    });
    fails(ErrorKind::type, "float8_e4m3", [&] {
        const Array x = random_array({2, 2}, DType::float8_e4m3, 1);
        ops::matmul(x, x);
    });
    fails(ErrorKind::value, "out", [&] {
        const Array wrong = random_array({2, 2}, DType::float32, 1);
        ops::matmul(a, random_array({3, 5}, DType::float32, 2), &wrong);
    });
}

TEST(Matmul, Tf32OnlyWhenAskedFor) {
    const Array a = random_array({256, 256}, DType::float32, 1),
                b = random_array({256, 256}, DType::float32, 2);
    const auto expected = product(download(a), download(b), 256, 256, 256, DType::float32);
    const ops::MatmulPrecision before = ops::matmul_precision();
    ops::set_matmul_precision(ops::MatmulPrecision::exact);
    EXPECT_LE(relative_error(download(ops::matmul(a, b)), expected), 2e-6);
    ops::set_matmul_precision(ops::MatmulPrecision::tf32);
    EXPECT_EQ(ops::matmul_precision(), ops::MatmulPrecision::tf32);
    const double error = relative_error(download(ops::matmul(a, b)), expected);
    ops::set_matmul_precision(before);
    EXPECT_LE(error, 1e-3);
    if (test_device().is_cuda()) {
        EXPECT_GT(error, 1e-5);  // else it was not used
    }
}

// Operands that kernels for along k alone get as copies: any layout, ragged k, batches, one broadcast.
TEST(Matmul, LaysOperandsAlongK) {
    struct Case {
        DType from, to;
        double bound;
    };
    const ops::MatmulPrecision before = ops::matmul_precision();
    ops::set_matmul_precision(ops::MatmulPrecision::tf32);
    for (const Case& each : {Case{DType::int8, DType::int32, 0}, {DType::float32, DType::float32, 4e-4}}) {
        for (const Size& size : {Size{140, 136, 100}, {130, 257, 97}, {1, 33, 70}}) {
            for (const bool a_transposed : {false, true}) {
                for (const bool b_transposed : {false, true}) {
                    const Array a = matrix(size.m, size.k, each.from, a_transposed, 0, 1),
                                b = matrix(size.k, size.n, each.from, b_transposed, 0, 2);
                    const Array c = ops::matmul(a, b, nullptr, ops::MatmulBackend::own, each.to);
                    const auto expected = product(download(a), download(b), size.m, size.n, size.k, each.to);
                    EXPECT_LE(relative_error(download(c), expected), each.bound)
                        << name(each.from) << " " << size.m << (a_transposed ? ", a" : "")
                        << (b_transposed ? ", b" : "");
                }
            }
        }
        const Array a = random_array({3, 136, 72}, each.from, 3), b = random_array({72, 140}, each.from, 4);
        const Array c = ops::matmul(a, b.broadcast_to({3, 72, 140}).slice(0, 2, -1, 3), nullptr,
                                    ops::MatmulBackend::own, each.to);
        for (std::int64_t i = 0; i < 3; ++i) {
            const auto expected = product(download(a.select(0, i)), download(b), 136, 140, 72, each.to);
            EXPECT_LE(relative_error(download(c.select(0, i)), expected), each.bound) << i;
        }
    }
    ops::set_matmul_precision(before);
}

// Float16 to float32 and int8 to int32 lose nothing; dtypes without a kernel of their own are converted.
TEST(Matmul, GivesAWiderDtype) {
    struct Case {
        DType from, to;
        double bound;
    };
    for (const Case& each : {Case{DType::bfloat16, DType::float32, 2e-6},
                             {DType::float16, DType::float32, 2e-6},
                             {DType::int8, DType::int32, 0},
                             {DType::uint8, DType::int64, 0},
                             {DType::float32, DType::float64, 1e-13}}) {
        for (const Size& size : {Size{40, 24, 16}, {300, 264, 520}, {1, 64, 200}}) {
            const Array a = random_array({size.m, size.k}, each.from, 1),
                        b = random_array({size.n, size.k}, each.from, 2);
            const Array c = ops::matmul(a, b.transpose({1, 0}), nullptr, ops::MatmulBackend::own, each.to);
            ASSERT_EQ(c.dtype(), each.to);
            const auto expected =
                product(download(a), download(b.transpose({1, 0})), size.m, size.n, size.k, each.to);
            EXPECT_LE(relative_error(download(c), expected), each.bound) << name(each.from) << " " << size.m;
        }
    }
    const Array a = random_array({4, 4}, DType::float32, 1);
    EXPECT_THROW(ops::matmul(a, a, nullptr, ops::MatmulBackend::own, DType::float16), Error);
    EXPECT_THROW(ops::matmul(a, a, nullptr, ops::MatmulBackend::own, DType::int32), Error);
}

double activated(GemmActivation activation, double x) {
    switch (activation) {
        case GemmActivation::none: return x;
        case GemmActivation::relu: return std::max(x, 0.0);
        case GemmActivation::gelu: return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
        case GemmActivation::gelu_tanh:
            return 0.5 * x *
                   (1 + std::tanh(std::sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
        case GemmActivation::silu: return x / (1 + std::exp(-x));
    }
    return x;
}

// Every epilogue, on sizes with and without whole tiles, residuals of several strides, and results in place.
TEST(Linear, Epilogues) {
    struct Bounds {
        DType dtype;
        double bound;
    };
    for (const Bounds& type :
         {Bounds{DType::float32, 3e-6}, {DType::float16, 2e-3}, {DType::bfloat16, 1.2e-2}}) {
        for (const Size& size : {Size{1, 48, 64}, {40, 72, 136}, {300, 264, 200}, {130, 51, 64}}) {
            const Array x = random_array({size.m, size.k}, type.dtype, 1);
            const Array weight = random_array({size.n, size.k}, type.dtype, 2);
            const Array bias = random_array({size.n}, type.dtype, 3);
            const Array rows = random_array({size.m, size.n}, type.dtype, 4);
            const Array columns = random_array({size.n, size.m}, type.dtype, 5).transpose({1, 0});
            const auto sums = product(download(x), download(weight.transpose({1, 0})), size.m, size.n, size.k,
                                      DType::float64);
            for (const auto activation : {GemmActivation::none, GemmActivation::relu, GemmActivation::gelu,
                                          GemmActivation::gelu_tanh, GemmActivation::silu}) {
                for (const Array* residual : {static_cast<const Array*>(nullptr), &rows, &columns, &bias}) {
                    const auto offsets = download(bias);
                    const auto added = residual ? download(residual->broadcast_to({size.m, size.n}))
                                                : std::vector<double>(sums.size(), 0.0);
                    std::vector<double> expected(sums.size());
                    for (std::size_t i = 0; i < sums.size(); ++i) {
                        const double biased = 0.125 * sums[i] + offsets[i % static_cast<std::size_t>(size.n)];
                        expected[i] = activated(activation, biased) + added[i];
                    }
                    const Array y = ops::linear(
                        x, weight,
                        {.bias = &bias, .activation = activation, .residual = residual, .scale = 0.125f});
                    EXPECT_LE(relative_error(download(y), expected), type.bound)
                        << name(type.dtype) << " " << size.m << " x " << size.n << " x " << size.k << ", "
                        << static_cast<int>(activation);
                }
            }
            // The result over the residual.
            const Array out = ops::astype(rows, type.dtype);
            ops::linear(x, weight, {.residual = &out}, &out);
            auto expected = sums;
            const auto added = download(rows);
            for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += added[i];
            EXPECT_LE(relative_error(download(out), expected), type.bound) << name(type.dtype) << " in place";
        }
    }
}

TEST(Linear, IsAProductWithTheTransposedWeightAndABias) {
    for (const DType dtype : {DType::float32, DType::bfloat16}) {
        const Array x = random_array({2, 5, 64}, dtype, 1), weight = random_array({48, 64}, dtype, 2);
        const Array bias = random_array({48}, dtype, 3);
        auto expected = product(download(x), download(weight.transpose({1, 0})), 10, 48, 64, dtype);
        EXPECT_LE(relative_error(download(ops::linear(x, weight)), expected), 4e-3);
        const auto offsets = download(bias);
        for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += offsets[i % 48];
        const Array y = ops::linear(x, weight, {.bias = &bias});
        EXPECT_EQ(y.shape(), (Dims{2, 5, 48}));
        EXPECT_LE(relative_error(download(y), expected), 8e-3);
    }
    const Array x = random_array({2, 64}, DType::float32, 1),
                weight = random_array({48, 64}, DType::float32, 2);
    EXPECT_THROW(ops::linear(x, x.select(0, 0)), Error);
    const Array short_bias = random_array({47}, DType::float32, 1);
    EXPECT_THROW(ops::linear(x, weight, {.bias = &short_bias}), Error);
    const Array short_residual = random_array({3, 48}, DType::float32, 1);
    EXPECT_THROW(ops::linear(x, weight, {.residual = &short_residual}), Error);
}

// What an engine's logits are: sums of 16-bit weights that no step rounds to 16 bits. Few rows have kernels
// of their own; m = 3 with k = 100 has no kernel for it and converts.
TEST(Linear, GivesFloat32OfHalves) {
    for (const DType dtype : {DType::bfloat16, DType::float16}) {
        for (const Size& size :
             {Size{1, 333, 256}, {8, 40, 1024}, {16, 96, 64}, {40, 96, 128}, {3, 17, 100}}) {
            const Array x = random_array({size.m, size.k}, dtype, 1),
                        weight = random_array({size.n, size.k}, dtype, 2),
                        bias = random_array({size.n}, DType::float32, 3);
            auto expected = product(download(x), download(weight.transpose({1, 0})), size.m, size.n, size.k,
                                    DType::float32);
            const Array y = ops::linear(x, weight, {}, nullptr, DType::float32);
            ASSERT_EQ(y.dtype(), DType::float32);
            EXPECT_LE(relative_error(download(y), expected), 2e-6) << name(dtype) << " m " << size.m;
            const auto offsets = download(bias);
            for (std::size_t i = 0; i < expected.size(); ++i)
                expected[i] += offsets[i % static_cast<std::size_t>(size.n)];
            const Array out = Array::empty(test_device(), {size.n, size.m}, DType::float32).transpose({1, 0});
            ops::linear(x, weight, {.bias = &bias}, &out, DType::float32);
            EXPECT_LE(relative_error(download(out), expected), 2e-6) << name(dtype) << " m " << size.m;
        }
    }
    const Array x = random_array({1, 64}, DType::float32, 1);
    EXPECT_THROW(ops::linear(x, x, {}, nullptr, DType::bfloat16), Error);
}

}  // namespace
