#include "ops/grouped_linear.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <numeric>

#include "base/error.hpp"
#include "ops/creation.hpp"
#include "ops/elementwise.hpp"
#include "ops/grouped_variants.hpp"
#include "ops/quantize.hpp"
#include "values.hpp"

namespace {

using namespace gpk;
using values::download;
using values::random_array;
using values::relative_error;
using values::upload;

constexpr DType kDtypes[] = {DType::float32, DType::float16, DType::bfloat16};
constexpr GluOp kGates[] = {GluOp::swiglu, GluOp::geglu, GluOp::geglu_tanh};

// Of one rounding of the result and sums in float32; with gates that are rounded first, of three more.
double bound(DType dtype, bool rounds_between = false) {
    const double once = dtype == DType::float32 ? 1e-6 : dtype == DType::float16 ? 4e-4 : 3e-3;
    return rounds_between ? 3 * once : once;
}

double activated(GluOp op, double x) {
    switch (op) {
        case GluOp::swiglu: return x / (1 + std::exp(-x));
        case GluOp::geglu: return 0.5 * x * std::erfc(-x * std::sqrt(0.5));
        case GluOp::geglu_tanh:
            return x / (1 + std::exp(-2 * std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x)));
    }
    return x;
}

// A weight small enough that gates are of order one, where the activations bend.
Array weight_array(const Dims& shape, DType dtype, unsigned seed) {
    auto numbers = values::random(element_count(shape), dtype, seed);
    for (double& number : numbers) number /= std::sqrt(static_cast<double>(shape.back()));
    return upload(numbers, shape, dtype);
}

double dot(const std::vector<double>& a, std::size_t from, const std::vector<double>& b, std::size_t at,
           std::int64_t k) {
    return std::inner_product(a.begin() + static_cast<std::ptrdiff_t>(from),
                              a.begin() + static_cast<std::ptrdiff_t>(from) + k,
                              b.begin() + static_cast<std::ptrdiff_t>(at), 0.0);
}

// Rows that no expert has keep what `filled` says.
std::vector<double> expected_of(const Array& x, const Array& weight, const std::vector<double>& offsets,
                                std::optional<GluOp> gate, double filled = 0) {
    const auto a = download(x), w = download(weight);
    const std::int64_t rows = x.shape()[0], k = x.shape()[1], weight_rows = weight.shape()[1];
    const std::int64_t n = gate ? weight_rows / 2 : weight_rows;
    std::vector<double> c(static_cast<std::size_t>(rows * n), filled);
    for (std::int64_t e = 0; e < weight.shape()[0]; ++e) {
        const auto begin = static_cast<std::int64_t>(offsets[static_cast<std::size_t>(e)]);
        const auto end = static_cast<std::int64_t>(offsets[static_cast<std::size_t>(e) + 1]);
        for (std::int64_t row = begin; row < end; ++row) {
            for (std::int64_t j = 0; j < n; ++j) {
                const auto sum = [&](std::int64_t of) {
                    return dot(a, static_cast<std::size_t>(row * k), w,
                               static_cast<std::size_t>((e * weight_rows + of) * k), k);
                };
                c[static_cast<std::size_t>(row * n + j)] =
                    gate ? activated(*gate, sum(j)) * sum(n + j) : sum(j);
            }
        }
    }
    return c;
}

// Of the rows that experts have.
double error_of_rows(const Array& y, const std::vector<double>& expected,
                     const std::vector<double>& offsets) {
    const std::int64_t n = y.shape()[1];
    const auto got = download(y);
    const auto rows = [&](const std::vector<double>& of) {
        return std::vector<double>(of.begin() + static_cast<std::ptrdiff_t>(offsets.front()) * n,
                                   of.begin() + static_cast<std::ptrdiff_t>(offsets.back()) * n);
    };
    return relative_error(rows(got), rows(expected));
}

struct Case {
    std::int64_t rows, n, k;
    std::vector<double> offsets;
};
// Empty experts, one row, sizes on both sides of each tile and of its steps, many experts, rows left over.
const Case kCases[] = {
    {1, 8, 8, {0, 0, 1}},
    {333, 40, 72, {0, 0, 1, 130, 130, 333}},
    {280, 24, 136, {0, 17, 280}},
    {90, 200, 64, {5, 5, 20, 80}},
    {150, 16, 32, {0,  1,  2,  3,  4,  5,  6,   7,   8,   9,   10,  11,  12,  13,  14,  15,  16,  17,
                   18, 40, 60, 61, 90, 99, 100, 101, 102, 103, 104, 105, 106, 107, 140, 141, 142, 150}},
    {20, 7, 13, {0, 3, 20}},
};

TEST(GroupedLinear, MatchesFloat64) {
    for (const Case& each : kCases) {
        for (const DType dtype : kDtypes) {
            for (int gated = 0; gated < 2; ++gated) {
                const auto gate = gated != 0 ? std::optional(kGates[each.rows % 3]) : std::nullopt;
                const auto experts = static_cast<std::int64_t>(each.offsets.size()) - 1;
                const Array x = random_array({each.rows, each.k}, dtype, 1),
                            weight =
                                weight_array({experts, gated != 0 ? 2 * each.n : each.n, each.k}, dtype, 2),
                            offsets = upload(each.offsets, {experts + 1}, DType::int32);
                const Array out = ops::full(test_device(), {each.rows, each.n}, Scalar(7.0), dtype);
                ops::grouped_linear(x, weight, offsets, gate, &out);
                EXPECT_LE(error_of_rows(out, expected_of(x, weight, each.offsets, gate), each.offsets),
                          bound(dtype, gated != 0))
                    << each.rows << " rows, " << name(dtype) << (gated != 0 ? ", gated" : "");
            }
        }
    }
}

class GroupedVariants : public testing::TestWithParam<int> {};

// Every kernel, not only those that the chooser takes at such sizes.
TEST_P(GroupedVariants, MatchFloat64) {
    const ops::GroupedVariant& variant = ops::grouped_variants()[static_cast<std::size_t>(GetParam())];
    Device& device = test_device();
    const auto gate = variant.gated ? std::optional(GluOp::swiglu) : std::nullopt;
    int ran = 0;
    for (const Case& each : kCases) {
        const auto experts = static_cast<std::int64_t>(each.offsets.size()) - 1;
        // Rows with a pitch.
        const Array x = random_array({each.rows, each.k + 8}, variant.dtype, 3).slice(1, 0, 1, each.k),
                    weight = weight_array({experts, variant.gated ? 2 * each.n : each.n, each.k},
                                          variant.dtype, 4),
                    offsets = upload(each.offsets, {experts + 1}, DType::int32);
        const Array c = ops::full(device, {each.rows, each.n}, Scalar(7.0), variant.dtype);
        const GroupedProblem p{.a = x.as<const void>(),
                               .weight = weight.as<const void>(),
                               .c = c.as<void>(),
                               .offsets = offsets.as<const std::int32_t>(),
                               .rows = each.rows,
                               .n = each.n,
                               .k = each.k,
                               .a_row = each.k + 8,
                               .experts = static_cast<std::int32_t>(experts),
                               .gated = variant.gated ? 1 : 0,
                               .glu = GluOp::swiglu};
        if (!ops::can_run(variant, p, variant.dtype, device.info().sm)) continue;
        ++ran;
        ops::with_storages({&x, &weight, &offsets}, {&c},
                           [&](Stream& stream) { ops::launch_grouped(stream, variant, p, {}); });
        EXPECT_LE(relative_error(download(c), expected_of(x, weight, each.offsets, gate, 7)),
                  bound(variant.dtype))
            << each.rows << " rows of " << each.k;
    }
    if (ran == 0) GTEST_SKIP() << "does not run here";
}
INSTANTIATE_TEST_SUITE_P(
    GroupedLinear, GroupedVariants, testing::Range(0, static_cast<int>(ops::grouped_variants().size())),
    [](const testing::TestParamInfo<int>& parameter) {
        return std::string(
            ops::grouped_variants()[static_cast<std::size_t>(parameter.param)].kernel().name());
    });

// Offsets that fall, or lie outside, reach no other memory: what is right is right, and nothing fails.
TEST(GroupedLinear, SurvivesWrongOffsets) {
    for (const DType dtype : {DType::float32, DType::bfloat16}) {
        const Array x = random_array({32, 64}, dtype, 1), weight = weight_array({3, 16, 64}, dtype, 2);
        const std::vector<double> given{-5, 8, -2147483648.0, 2147483647.0};
        const Array y = ops::grouped_linear(x, weight, upload(given, {4}, DType::int32));
        const auto expected = expected_of(x.slice(0, 0, 1, 8), weight, {0, 8, 8, 8}, std::nullopt);
        // The third expert has all rows, and may have been written first or last.
        const auto third = expected_of(x, weight, {0, 0, 0, 32}, std::nullopt);
        const auto got = download(y);
        for (std::size_t i = 8 * 16; i < got.size(); ++i) EXPECT_NEAR(got[i], third[i], 0.05);
        for (std::size_t i = 0; i < 8 * 16; ++i)
            EXPECT_LE(std::min(std::abs(got[i] - third[i]), std::abs(got[i] - expected[i])), 0.05);
    }
}

TEST(GroupedLinear, TakesEmptyArraysAndViews) {
    const Array weight = weight_array({2, 16, 32}, DType::bfloat16, 1);
    const Array none = upload({0, 0, 0}, {3}, DType::int32), split = upload({0, 4, 9}, {3}, DType::int32);
    EXPECT_EQ(ops::grouped_linear(random_array({0, 32}, DType::bfloat16, 1), weight, none).shape(),
              (Dims{0, 16}));
    const Array wide = random_array({32, 9}, DType::bfloat16, 2);
    const Array out = ops::zeros(test_device(), {16, 9}, DType::bfloat16).transpose({1, 0});
    ops::grouped_linear(wide.transpose({1, 0}), weight, split, std::nullopt, &out);
    EXPECT_LE(
        relative_error(download(out), expected_of(wide.transpose({1, 0}), weight, {0, 4, 9}, std::nullopt)),
        bound(DType::bfloat16));
    const Array nothing = ops::grouped_linear(random_array({9, 0}, DType::float32, 1),
                                              random_array({2, 4, 0}, DType::float32, 1), split);
    EXPECT_EQ(download(nothing), std::vector<double>(36, 0.0));
}

TEST(GroupedLinear, NamesWhatIsWrong) {
    const Array x = random_array({4, 16}, DType::float32, 1),
                weight = random_array({2, 7, 16}, DType::float32, 2);
    const Array offsets = upload({0, 2, 4}, {3}, DType::int32);
    EXPECT_NO_THROW(ops::grouped_linear(x, weight, offsets));
    EXPECT_THROW(ops::grouped_linear(x, weight, offsets, GluOp::swiglu), Error);  // odd rows
    EXPECT_THROW(ops::grouped_linear(x, weight, offsets.slice(0, 0, 1, 2)), Error);
    EXPECT_THROW(ops::grouped_linear(x, weight, ops::astype(offsets, DType::int64)), Error);
    EXPECT_THROW(ops::grouped_linear(x, weight.select(0, 0), offsets), Error);
    EXPECT_THROW(ops::grouped_linear(x.slice(1, 0, 1, 8), weight, offsets), Error);
    EXPECT_THROW(ops::grouped_linear(ops::astype(x, DType::float16), weight, offsets), Error);
    EXPECT_THROW(ops::grouped_linear(ops::astype(x, DType::int32), weight, offsets), Error);
}

// Few rows, which one kernel makes, and many; sizes that no whole kernel takes.
TEST(GatedLinear, MatchesFloat64) {
    struct Size {
        Dims lead;
        std::int64_t n, k;
    };
    for (const Size& size : {Size{{1}, 40, 64},
                             {{8}, 24, 1088},
                             {{11}, 8, 128},
                             {{2, 8}, 200, 192},
                             {{17}, 72, 64},
                             {{3, 100}, 136, 72},
                             {{5}, 7, 13},
                             {{}, 16, 64}}) {
        for (const DType dtype : kDtypes) {
            for (const GluOp op : kGates) {
                Dims shape = size.lead;
                shape.push_back(size.k);
                const Array x = random_array(shape, dtype, 1),
                            weight = weight_array({2 * size.n, size.k}, dtype, 2);
                const Array y = ops::gated_linear(x, weight, op);
                shape[shape.size() - 1] = size.n;
                ASSERT_EQ(y.shape(), shape);
                const std::int64_t rows = x.size() / size.k;
                const auto expected = expected_of(*x.reshape_view({rows, size.k}),
                                                  *weight.reshape_view({1, 2 * size.n, size.k}),
                                                  {0, static_cast<double>(rows)}, op);
                EXPECT_LE(relative_error(download(y), expected), bound(dtype, true))
                    << rows << "x" << size.n << "x" << size.k << " " << name(dtype);
            }
        }
    }
}

TEST(GatedLinear, StaysFiniteWhereTheExponentialDoesNot) {
    for (const std::int64_t rows : {1, 40}) {
        std::vector<double> x(static_cast<std::size_t>(rows * 64), 0.0), weight(16 * 64, 0.0);
        for (std::int64_t row = 0; row < rows; ++row) x[static_cast<std::size_t>(row * 64)] = 1;
        for (std::size_t j = 0; j < 8; ++j) {
            weight[j * 64] = j % 2 == 0 ? -1e4 : 1e4;
            weight[(8 + j) * 64] = 2;
        }
        for (const GluOp op : kGates) {
            const auto y = download(ops::gated_linear(upload(x, {rows, 64}, DType::bfloat16),
                                                      upload(weight, {16, 64}, DType::bfloat16), op));
            for (std::size_t i = 0; i < y.size(); ++i) EXPECT_NEAR(y[i], i % 2 == 0 ? 0 : 2e4, 100);
        }
    }
}

TEST(GatedLinear, TakesEmptyArraysViewsAndOut) {
    const Array weight = weight_array({32, 64}, DType::float16, 1);
    EXPECT_EQ(ops::gated_linear(random_array({0, 64}, DType::float16, 1), weight, GluOp::swiglu).shape(),
              (Dims{0, 16}));
    EXPECT_EQ(download(ops::gated_linear(random_array({2, 0}, DType::float16, 1),
                                         random_array({4, 0}, DType::float16, 1), GluOp::geglu)),
              std::vector<double>(4, 0.0));
    const Array x = random_array({64, 5}, DType::float16, 2).transpose({1, 0});
    const Array out = ops::zeros(test_device(), {16, 5}, DType::float16).transpose({1, 0});
    ops::gated_linear(x, weight, GluOp::swiglu, &out);
    EXPECT_LE(relative_error(download(out),
                             expected_of(x, *weight.reshape_view({1, 32, 64}), {0, 5}, GluOp::swiglu)),
              bound(DType::float16, true));
    // The result over x.
    const Array square = weight_array({128, 64}, DType::float16, 3),
                over = random_array({3, 64}, DType::float16, 4);
    const auto expected = expected_of(over, *square.reshape_view({1, 128, 64}), {0, 3}, GluOp::swiglu);
    ops::gated_linear(over, square, GluOp::swiglu, &over);
    EXPECT_LE(relative_error(download(over), expected), bound(DType::float16, true));
}

TEST(GatedLinear, NamesWhatIsWrong) {
    const Array x = random_array({4, 16}, DType::float32, 1);
    EXPECT_THROW(ops::gated_linear(x, random_array({7, 16}, DType::float32, 2), GluOp::swiglu), Error);
    EXPECT_THROW(ops::gated_linear(x, random_array({8, 8}, DType::float32, 2), GluOp::swiglu), Error);
    EXPECT_THROW(ops::gated_linear(x, random_array({1, 8, 16}, DType::float32, 2), GluOp::swiglu), Error);
    EXPECT_THROW(ops::gated_linear(x, random_array({8, 16}, DType::float16, 2), GluOp::swiglu), Error);
    EXPECT_THROW(ops::gated_linear(upload({1}, {}, DType::float32), random_array({8, 16}, DType::float32, 2),
                                   GluOp::swiglu),
                 Error);
}

// Against the dequantised weights in float64: few rows an expert, none, and more than one or two tiles of
// them.
TEST(QuantizedExperts, AgreeWithTheDequantisedWeights) {
    for (const QuantFormat format :
         {QuantFormat::int8, QuantFormat::int4, QuantFormat::fp8, QuantFormat::nvfp4}) {
        const std::int64_t experts = 5, n = 40, k = 200;
        for (const DType dtype : kDtypes) {
            const ops::QuantizedExperts w(test_device(), format, experts, n, k, dtype);
            const Array source = weight_array({experts, n, k}, dtype, 3);
            const Array exact = Array::empty(test_device(), {experts, n, k}, DType::float32);
            for (std::int64_t e = 0; e < experts; ++e) {
                w.set(e, source.select(0, e));
                ops::assign(exact.select(0, e), ops::dequantize(w.expert(e), DType::float32));
                const auto alone = ops::quantize(ops::contiguous(source.select(0, e)), format);
                EXPECT_EQ(download(ops::dequantize(alone, DType::float32)), download(exact.select(0, e)));
            }
            for (const std::vector<double>& offsets : {std::vector<double>{0, 1, 1, 1, 1, 1},
                                                       {0, 2, 2, 11, 30, 31},
                                                       {0, 0, 40, 40, 40, 40},
                                                       {0, 10, 50, 50, 90, 120}}) {
                const auto rows = static_cast<std::int64_t>(offsets.back());
                const Array x = random_array({rows, k}, dtype, 4);
                const Array at = upload(offsets, {experts + 1}, DType::int32);
                const bool widened = rows > 8 * experts;  // to x's dtype
                EXPECT_LE(relative_error(download(ops::grouped_linear(x, w, at)),
                                         expected_of(x, exact, offsets, std::nullopt)),
                          widened ? 2 * bound(dtype) : bound(dtype))
                    << ops::name(format) << " " << name(dtype) << " " << rows;
                EXPECT_LE(relative_error(download(ops::grouped_linear(x, w, at, GluOp::swiglu)),
                                         expected_of(x, exact, offsets, GluOp::swiglu)),
                          2 * bound(dtype, true))
                    << ops::name(format) << " " << name(dtype) << " " << rows;
            }
        }
    }
}

TEST(QuantizedExperts, NameWhatIsWrong) {
    const ops::QuantizedExperts w(test_device(), QuantFormat::int8, 3, 7, 64, DType::float32);
    const Array x = random_array({2, 64}, DType::float32, 1);
    const Array at = upload({0, 1, 2, 2}, {4}, DType::int32);
    EXPECT_THROW(w.set(0, random_array({6, 64}, DType::float32, 1)), Error);
    EXPECT_THROW(ops::grouped_linear(random_array({2, 63}, DType::float32, 1), w, at), Error);
    EXPECT_THROW(ops::grouped_linear(x, w, upload({0, 1, 2}, {3}, DType::int32)), Error);
    EXPECT_THROW(ops::grouped_linear(x, w, at, GluOp::swiglu), Error);  // 7 rows are no gates and ups
    EXPECT_EQ(ops::grouped_linear(random_array({0, 64}, DType::float32, 1), w, at).shape(), (Dims{0, 7}));
}

}  // namespace
