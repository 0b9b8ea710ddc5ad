#include "ops/matmul.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/error.hpp"
#include "ops/elementwise.hpp"
#include "ops/matmul_variants.hpp"
#include "values.hpp"

namespace {

using namespace gpk;
using values::download;
using values::random_array;
using values::relative_error;
using values::upload;

// The largest relative error in the Euclidean norm for random normals: the rounding of the result (half
// a unit in the last place, spread evenly) and of the sums in float32; for tf32 also the inputs'.
struct Bound {
    DType dtype;
    double exact, tf32;
};
constexpr Bound kBounds[] = {
    {DType::float64, 1e-14, 0}, {DType::float32, 2e-6, 1e-3}, {DType::float16, 5e-4, 0},
    {DType::bfloat16, 4e-3, 0}, {DType::bool_, 0, 0},         {DType::int8, 0, 0},
    {DType::int16, 0, 0},       {DType::int32, 0, 0},         {DType::int64, 0, 0},
    {DType::uint8, 0, 0},       {DType::uint16, 0, 0},        {DType::uint32, 0, 0},
    {DType::uint64, 0, 0},
};

// An integer as its type holds it.
double wrap(double value, DType dtype) {
    return values::with_type(dtype, [&](auto zero) {
        using T = decltype(zero);
        if constexpr (std::is_same_v<T, bool>) return value != 0 ? 1.0 : 0.0;
        if constexpr (std::is_integral_v<T>) {
            return static_cast<double>(static_cast<T>(static_cast<std::int64_t>(value)));
        } else {
            return value;
        }
    });
}

// a: (m, k) and b: (k, n), row-major values.
std::vector<double> product(const std::vector<double>& a, const std::vector<double>& b, std::int64_t m,
                            std::int64_t n, std::int64_t k, DType dtype) {
    std::vector<double> c(static_cast<std::size_t>(m * n), 0.0);
    for (std::int64_t i = 0; i < m; ++i) {
        for (std::int64_t l = 0; l < k; ++l) {
            const double factor = a[static_cast<std::size_t>(i * k + l)];
            const double* row = b.data() + l * n;
            double* sums = c.data() + i * n;
            for (std::int64_t j = 0; j < n; ++j) sums[j] += factor * row[j];
        }
    }
    for (double& value : c) value = wrap(value, dtype);
    return c;
}

// A matrix of this shape whose memory is transposed, padded to a pitch, or both.
Array matrix(std::int64_t rows, std::int64_t columns, DType dtype, bool is_transposed, std::int64_t pad,
             unsigned seed) {
    if (is_transposed) return matrix(columns, rows, dtype, false, pad, seed).transpose({1, 0});
    return random_array({rows, columns + pad}, dtype, seed).slice(1, 0, 1, columns);
}

struct Size {
    std::int64_t m, n, k;
};

class Variants : public testing::TestWithParam<int> {};

std::string variant_name(const testing::TestParamInfo<int>& parameter) {
    const ops::GemmVariant& variant = ops::gemm_variants()[static_cast<std::size_t>(parameter.param)];
    return variant.kernel().name() +
           std::string(variant.gemv == ops::GemvForm::columns_split ? "_split" : "");
}

// Kernels for one architecture run there and, as twins, on the simulated device.
bool runs_here(const ops::GemmVariant& variant) {
    return variant.wgmma == nullptr || test_device().info().sm == 0 || test_device().info().sm == 90;
}

// Every kernel on every layout and on odd sizes, whether the chooser would take it there or not.
TEST_P(Variants, AgreesWithFloat64) {
    const ops::GemmVariant& variant = ops::gemm_variants()[static_cast<std::size_t>(GetParam())];
    if (is_float8(variant.dtype)) GTEST_SKIP() << "in scaled_matmul_test";
    constexpr Size kSizes[] = {
        {1, 1, 1},       {1, 64, 64},    {3, 17, 63},  {1, 129, 1000}, {8, 127, 65},     {2, 65, 3},
        {4, 1000, 129},  {17, 63, 64},   {64, 65, 17}, {65, 64, 127},  {127, 129, 63},   {129, 127, 128},
        {128, 1000, 65}, {1, 1000, 129}, {1, 3, 17},   {7, 5, 8},      {200, 136, 1000}, {5, 40, 128},
        {13, 100, 192},  {16, 1000, 65}, {9, 24, 1088}};
    const DType result = variant.result.value_or(variant.dtype);
    double bound = 0;
    for (const Bound& entry : kBounds) {
        if (entry.dtype == result) bound = variant.tf32 ? entry.tf32 : entry.exact;
    }
    int ran = 0;
    for (const Size& size : kSizes) {
        for (const bool a_transposed : {false, true}) {
            for (const bool b_transposed : {false, true}) {
                // Before the operands are drawn: there are many of these kernels.
                const bool suits = (variant.a == ops::GemmLayout::along_k) != a_transposed &&
                                   (variant.b == ops::GemmLayout::along_k) == b_transposed;
                if (variant.wgmma != nullptr && !suits) continue;
                for (const bool padded : {false, true}) {
                    // Padded to whole 16-byte units, so that the kernels that want them get ragged extents.
                    const auto pad = [&](std::int64_t extent) {
                        return padded ? (16 - extent % 16) % 16 + 16 : 0;
                    };
                    const Array a = matrix(size.m, size.k, variant.dtype, a_transposed,
                                           pad(a_transposed ? size.m : size.k), 1);
                    const Array b = matrix(size.k, size.n, variant.dtype, b_transposed,
                                           pad(b_transposed ? size.k : size.n), 2);
                    const auto c = ops::matmul_with(variant, a, b);
                    if (!c) continue;
                    ++ran;
                    ASSERT_EQ(c->shape(), (Dims{size.m, size.n}));
                    const auto expected = product(download(a), download(b), size.m, size.n, size.k, result);
                    EXPECT_LE(relative_error(download(*c), expected), bound)
                        << size.m << " x " << size.n << " x " << size.k
                        << (a_transposed ? ", a transposed" : "") << (b_transposed ? ", b transposed" : "")
                        << (padded ? ", padded" : "");
                }
            }
        }
    }
    if (!runs_here(variant)) GTEST_SKIP() << "needs another GPU";
    EXPECT_GE(ran, 3);
}

// Batches: one operand broadcast, the other with a batch stride.
TEST_P(Variants, Batches) {
    const ops::GemmVariant& variant = ops::gemm_variants()[static_cast<std::size_t>(GetParam())];
    if (is_float8(variant.dtype)) GTEST_SKIP() << "in scaled_matmul_test";
    if (ops::is_bulk(variant.gemv)) GTEST_SKIP() << "makes one product";
    const std::int64_t m = variant.max_m == 1 ? 1 : variant.max_m == 0 ? 40 : variant.max_m, n = 48, k = 320;
    const bool a_transposed = variant.a == ops::GemmLayout::across,
               b_transposed = variant.b == ops::GemmLayout::along_k;
    const Array a = a_transposed ? random_array({2, 3, k, m}, variant.dtype, 1).transpose({0, 1, 3, 2})
                                 : random_array({2, 3, m, k}, variant.dtype, 1);
    const Array b = b_transposed ? random_array({3, n, k}, variant.dtype, 2).transpose({0, 2, 1})
                                 : random_array({3, k, n}, variant.dtype, 2);
    if (!runs_here(variant)) GTEST_SKIP() << "needs another GPU";
    const auto c = ops::matmul_with(variant, a, b);
    ASSERT_TRUE(c.has_value());
    ASSERT_EQ(c->shape(), (Dims{2, 3, m, n}));
    for (std::int64_t i = 0; i < 2; ++i) {
        for (std::int64_t j = 0; j < 3; ++j) {
            const auto expected = product(download(a.select(0, i).select(0, j)), download(b.select(0, j)), m,
                                          n, k, variant.result.value_or(variant.dtype));
            EXPECT_LE(relative_error(download(c->select(0, i).select(0, j)), expected), 4e-3)
                << i << ", " << j;
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Matmul, Variants, testing::Range(0, static_cast<int>(ops::gemm_variants().size())),
                         variant_name);

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

// What was fitted at small m once won every product with a large k, at 0.4 of its rate.
TEST(Matmul, TilesSuitTheProduct) {
    const auto rows = [](std::int64_t m, std::int64_t n, std::int64_t k) {
        GemmProblem p = {};
        p.a = reinterpret_cast<void*>(256), p.b = reinterpret_cast<void*>(512);
        p.c = reinterpret_cast<void*>(768);
        p.m = m, p.n = n, p.k = k, p.batches = 1;
        p.a_row = p.b_col = k, p.a_col = p.b_row = p.c_col = 1, p.c_row = n;
        const auto choice =
            ops::choose_gemm(p, {DType::bfloat16, DType::bfloat16, ops::MatmulPrecision::exact}, {132, 90});
        return choice.variant->wgmma == nullptr ? 0 : choice.variant->wgmma->rows;
    };
    if (ops::gemm_variants().empty() || rows(4096, 4096, 4096) == 0) GTEST_SKIP() << "built without SM 90";
    for (const std::int64_t k : {4096, 14336, 18944}) {
        EXPECT_EQ(rows(2048, 4096, k), 128) << k;
        EXPECT_EQ(rows(512, 3584, k), 128) << k;
        EXPECT_EQ(rows(64, 4096, k), 64) << k;
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
