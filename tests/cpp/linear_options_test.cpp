// Products whose rows are normalised on the way, or that add to what is there.
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.hpp"
#include "ops/creation.hpp"
#include "ops/elementwise.hpp"
#include "ops/grouped_linear.hpp"
#include "ops/matmul.hpp"
#include "runtime/graph.hpp"
#include "values.hpp"

namespace {

using namespace gpk;
using values::download;
using values::random_array;
using values::relative_error;
using values::upload;

constexpr DType kDtypes[] = {DType::float32, DType::float16, DType::bfloat16};
constexpr double kEps = 1e-5;

// Of a result that is rounded once, and of rows that were rounded before it.
double bound(DType dtype) { return dtype == DType::float32 ? 2e-6 : dtype == DType::float16 ? 7e-4 : 5e-3; }

Array weight_of(std::int64_t n, std::int64_t k, DType dtype, unsigned seed) {
    auto numbers = values::random(n * k, dtype, seed);
    for (double& number : numbers) number /= std::sqrt(static_cast<double>(k));
    return upload(numbers, {n, k}, dtype);
}

// The rows normalised, in float64.
std::vector<double> normalized(const std::vector<double>& x, const std::vector<double>& norm) {
    std::vector<double> y = x;
    const std::size_t k = norm.size();
    for (std::size_t first = 0; first < y.size(); first += k) {
        double squares = 0;
        for (std::size_t l = 0; l < k; ++l) squares += x[first + l] * x[first + l];
        const double scale = 1 / std::sqrt(squares / static_cast<double>(k) + kEps);
        for (std::size_t l = 0; l < k; ++l) y[first + l] *= scale * norm[l];
    }
    return y;
}

std::vector<double> product(const std::vector<double>& x, const std::vector<double>& w, std::size_t k) {
    std::vector<double> y;
    for (std::size_t row = 0; row < x.size(); row += k) {
        for (std::size_t column = 0; column < w.size(); column += k) {
            double sum = 0;
            for (std::size_t l = 0; l < k; ++l) sum += x[row + l] * w[column + l];
            y.push_back(sum);
        }
    }
    return y;
}

std::vector<double> sum(std::vector<double> a, const std::vector<double>& b) {
    for (std::size_t i = 0; i < a.size(); ++i) a[i] += b[i % b.size()];
    return a;
}

// Rows that stay in registers (up to 2048, 4096, 6144), that do in shared memory, that come with the weights,
// and what no such kernel takes.
TEST(LinearOptions, NormsAndAddsInPlace) {
    struct Size {
        std::int64_t m, n, k;
    };
    constexpr Size kSizes[] = {{1, 40, 64},   {8, 33, 192},  {3, 48, 2048}, {8, 16, 2112},
                               {2, 50, 4160}, {8, 24, 6208}, {8, 40, 9536}, {5, 64, 18944},
                               {9, 40, 256},  {64, 40, 256}, {4, 20, 50}};
    for (const DType dtype : kDtypes) {
        for (const Size& size : kSizes) {
            const auto k = static_cast<std::size_t>(size.k);
            const Array x = random_array({size.m, size.k}, dtype, 1), w = weight_of(size.n, size.k, dtype, 2);
            const Array norm = random_array({size.k}, dtype, 3), bias = random_array({size.n}, dtype, 4);
            const Array hidden = random_array({size.m, size.n}, dtype, 5);
            const auto plain = product(download(x), download(w), k);
            const auto expected = product(normalized(download(x), download(norm)), download(w), k);
            const auto added = sum(sum(plain, download(bias)), download(hidden));
            SCOPED_TRACE(str(name(dtype), " ", size.m, " x ", size.n, " x ", size.k));

            const Array y =
                ops::linear(x, w, {.bias = &bias}, nullptr, std::nullopt, {.norm = &norm, .norm_eps = kEps});
            EXPECT_LE(relative_error(download(y), sum(expected, download(bias))), bound(dtype));
            const Array wide =
                ops::linear(x, w, {}, nullptr, DType::float32, {.norm = &norm, .norm_eps = kEps});
            EXPECT_LE(relative_error(download(wide), expected), bound(dtype));
            ops::linear(x, w, {.bias = &bias, .residual = &hidden}, &hidden, std::nullopt,
                        {.weight_settled = true});
            EXPECT_LE(relative_error(download(hidden), added), bound(dtype));
        }
    }
}

TEST(LinearOptions, GatedProductsNormTheirRows) {
    for (const DType dtype : kDtypes) {
        for (const std::int64_t m : {1, 8, 12}) {
            for (const std::int64_t k : {64, 2048, 3584, 6144}) {
                constexpr std::int64_t n = 24;
                const Array x = random_array({m, k}, dtype, 1), w = weight_of(2 * n, k, dtype, 2);
                const Array norm = random_array({k}, dtype, 3);
                const auto both = product(normalized(download(x), download(norm)), download(w),
                                          static_cast<std::size_t>(k));
                std::vector<double> expected;
                for (std::size_t i = 0; i < static_cast<std::size_t>(m * n); ++i) {
                    const std::size_t at = i / n * 2 * n + i % n;
                    expected.push_back(both[at] / (1 + std::exp(-both[at])) * both[at + n]);
                }
                const Array y = ops::gated_linear(x, w, GluOp::swiglu, nullptr,
                                                  {.norm = &norm, .norm_eps = kEps, .weight_settled = true});
                EXPECT_LE(relative_error(download(y), expected), 3 * bound(dtype))
                    << name(dtype) << " " << m << " " << k;
            }
        }
    }
}

// What a text gets does not depend on how many others there are, nor on how many guesses are with it.
TEST(LinearOptions, ARowHasTheSameBitsForUpToEightRows) {
    for (const std::int64_t k : {2048, 3584, 5632, 18944}) {
        const Array x = random_array({8, k}, DType::bfloat16, 1),
                    norm = random_array({k}, DType::bfloat16, 3);
        const Array w = weight_of(64, k, DType::bfloat16, 2);
        const ops::LinearOptions options{.norm = k <= 4096 ? &norm : nullptr, .norm_eps = kEps};
        const auto all = download(ops::linear(x, w, {}, nullptr, std::nullopt, options));
        for (const std::int64_t rows : {1, 2, 5}) {
            const auto some =
                download(ops::linear(x.slice(0, 0, 1, rows), w, {}, nullptr, std::nullopt, options));
            EXPECT_TRUE(std::equal(some.begin(), some.end(), all.begin())) << rows << " rows of " << k;
        }
    }
}

// In a graph the blocks of a large product take turns at its tiles: which makes which is another matter each
// time.
TEST(LinearOptions, LargeProductsInAGraphHaveTheSameBits) {
    constexpr std::int64_t n = 9003, k = 1024, kPart = 1000;
    const Array x = random_array({3, k}, DType::bfloat16, 1), part = weight_of(kPart, k, DType::bfloat16, 2);
    const Array w = Array::empty(test_device(), {n, k}, DType::bfloat16);
    for (std::int64_t first = 0; first < n; first += kPart) {
        const std::int64_t rows = std::min(kPart, n - first);
        ops::assign(w.slice(0, first, 1, rows),
                    ops::binary(BinaryOp::multiply, part.slice(0, 0, 1, rows), Scalar(1.0 + first / kPart)));
    }
    const Array gates = w.slice(0, 0, 1, 9000);
    for (const bool settled : {false, true}) {
        const ops::LinearOptions options{.weight_settled = settled};
        const auto expected = download(ops::linear(x, w, {}, nullptr, std::nullopt, options));
        const auto gated = download(ops::gated_linear(x, gates, GluOp::swiglu, nullptr, options));
        const auto stream = Stream::create(test_device());
        const StreamScope scope(stream);
        Array y, z;
        const auto graph = Graph::capture(stream, [&] {
            y = ops::linear(x, w, {}, nullptr, std::nullopt, options);
            z = ops::gated_linear(x, gates, GluOp::swiglu, nullptr, options);
            ops::linear(x, w, {}, &y, std::nullopt, options);
        });
        for (int i = 0; i < 3; ++i) {
            ops::assign(y, 0), ops::assign(z, 0);
            graph->launch(stream);
            EXPECT_EQ(download(y), expected) << i;
            EXPECT_EQ(download(z), gated) << i;
        }
    }
}

TEST(LinearOptions, TakesViewsAndEmptyRows) {
    const Array wide = random_array({4, 400}, DType::bfloat16, 1), x = wide.slice(1, 16, 1, 320);
    const Array w = weight_of(32, 320, DType::bfloat16, 2), norm = random_array({320}, DType::bfloat16, 3);
    const auto expected = product(normalized(download(x), download(norm)), download(w), 320);
    const ops::LinearOptions options{.norm = &norm, .norm_eps = kEps};
    EXPECT_LE(relative_error(download(ops::linear(x, w, {}, nullptr, std::nullopt, options)), expected),
              5e-3);
    const Array none = x.slice(0, 0, 1, 0);
    EXPECT_EQ(ops::linear(none, w, {}, nullptr, std::nullopt, options).shape(), (Dims{0, 32}));
    const Array row = x.select(0, 1);
    const auto first = expected.begin() + 32;
    EXPECT_LE(relative_error(download(ops::linear(row, w, {}, nullptr, std::nullopt, options)),
                             {first, first + 32}),
              5e-3);
}

TEST(LinearOptions, NamesWhatIsWrong) {
    const Array x = random_array({4, 64}, DType::bfloat16, 1), w = weight_of(32, 64, DType::bfloat16, 2);
    const Array short_norm = random_array({32}, DType::bfloat16, 3),
                other = random_array({64}, DType::float32, 3);
    const Array norm = random_array({64}, DType::bfloat16, 3);
    for (const Array* wrong : {&short_norm, &other}) {
        EXPECT_THROW(ops::linear(x, w, {}, nullptr, std::nullopt, {.norm = wrong}), Error);
        EXPECT_THROW(ops::gated_linear(x, w, GluOp::swiglu, nullptr, {.norm = wrong}), Error);
    }
    for (const double eps : {-1.0, std::nan("")}) {
        EXPECT_THROW(ops::linear(x, w, {}, nullptr, std::nullopt, {.norm = &norm, .norm_eps = eps}), Error);
        EXPECT_THROW(ops::gated_linear(x, w, GluOp::swiglu, nullptr, {.norm = &norm, .norm_eps = eps}),
                     Error);
    }
}

}  // namespace
