#include "ops/quantize.hpp"

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "ops/matmul.hpp"
#include "values.hpp"

namespace {

using namespace gpk;
using ops::QuantizedWeight;
using values::download;
using values::random_array;
using values::relative_error;
using values::upload;

struct Case {
    QuantFormat format;
    ops::QuantizeOptions options;
    // Of the reconstruction of normals, relative to their norm: the root of s^2 / 12 with the scale s that
    // the largest of a row of 512 (a group) has, or what the small float's spacing gives; and a third more.
    double error;
    std::string name() const {
        return std::string(ops::name(format)) +
               (format == QuantFormat::int4 ? str(" ", *options.group) : "") +
               (options.zero_points ? " with zero points" : "") + (options.per_tensor ? " per tensor" : "");
    }
};
const Case kCases[] = {
    {QuantFormat::int8, {}, 0.011},
    {QuantFormat::int4, {.group = 128}, 0.15},
    {QuantFormat::int4, {.group = 64}, 0.14},
    {QuantFormat::int4, {.group = 32}, 0.125},
    {QuantFormat::int4, {.group = 128, .zero_points = true}, 0.14},
    {QuantFormat::int4, {.group = 64, .zero_points = true}, 0.13},
    {QuantFormat::int4, {.group = 32, .zero_points = true}, 0.115},
    {QuantFormat::fp8, {}, 0.035},
    {QuantFormat::fp8, {.per_tensor = true}, 0.035},
    {QuantFormat::nvfp4, {}, 0.12},
};

// x (m, k) times w (n, k) transposed, in float64.
std::vector<double> product(const std::vector<double>& x, const std::vector<double>& w, std::int64_t m,
                            std::int64_t n, std::int64_t k) {
    std::vector<double> c(static_cast<std::size_t>(m * n));
    for (std::int64_t i = 0; i < m; ++i) {
        for (std::int64_t j = 0; j < n; ++j) {
            double sum = 0;
            for (std::int64_t l = 0; l < k; ++l) {
                sum += x[static_cast<std::size_t>(i * k + l)] * w[static_cast<std::size_t>(j * k + l)];
            }
            c[static_cast<std::size_t>(i * n + j)] = sum;
        }
    }
    return c;
}

TEST(Quantize, LosesWhatTheFormatMust) {
    for (const Case& each : kCases) {
        for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16}) {
            const Array weight = random_array({50, 512}, dtype, 1);
            const QuantizedWeight w = ops::quantize(weight, each.format, each.options);
            const double error =
                relative_error(download(ops::dequantize(w, DType::float32)), download(weight));
            EXPECT_LE(error, each.error) << each.name() << ", " << name(dtype);
            EXPECT_GE(error, each.error / 2) << each.name() << ", " << name(dtype);
        }
    }
}

// No value is further from its own than half a step (of int4 with a rounded scale, hardly more).
TEST(Quantize, RoundsToTheNearest) {
    const std::int64_t n = 33, k = 300;
    const Array weight = random_array({n, k}, DType::float32, 2);
    const auto original = download(weight);
    for (const Case& each : kCases) {
        const QuantizedWeight w = ops::quantize(weight, each.format, each.options);
        const auto got = download(ops::dequantize(w, DType::float32));
        for (std::int64_t row = 0; row < n; ++row) {
            for (std::int64_t column = 0; column < k; ++column) {
                const std::int64_t length = each.format == QuantFormat::int4    ? *each.options.group
                                            : each.format == QuantFormat::nvfp4 ? 16
                                                                                : k;
                double low = 0, high = 0;
                const std::int64_t begin = column / length * length;
                for (std::int64_t l = begin; l < std::min(begin + length, k); ++l) {
                    low = std::min(low, original[static_cast<std::size_t>(row * k + l)]);
                    high = std::max(high, original[static_cast<std::size_t>(row * k + l)]);
                }
                const double value = original[static_cast<std::size_t>(row * k + column)];
                const double largest = std::max(-low, high);
                double bound = 0;
                switch (each.format) {
                    case QuantFormat::int8: bound = largest / 127 / 2; break;
                    case QuantFormat::int4:
                        // A rounded zero point moves the range by half a step, where the ends are cut.
                        bound = each.options.zero_points ? (high - low) / 15 : largest / 7 / 2;
                        bound = bound * 1.004 + largest / 256;
                        break;
                    case QuantFormat::fp8: bound = std::abs(value) / 16 + largest / 448 / 512 * 4; break;
                    // Half of the widest spacing (4 to 6), with a scale that e4m3 rounds by 1/16.
                    case QuantFormat::nvfp4: bound = largest / 6 * 1.0625 + largest / 16; break;
                }
                EXPECT_LE(std::abs(got[static_cast<std::size_t>(row * k + column)] - value), bound * 1.0001)
                    << each.name() << " " << row << ", " << column << ": " << value;
            }
        }
    }
}

TEST(Quantize, KeepsWhatItCanSay) {
    std::vector<double> values;
    for (int i = 0; i < 32; ++i) values.push_back(i % 15 - 7);
    const Array weight = upload(values, {1, 32}, DType::float32);
    EXPECT_EQ(
        download(ops::dequantize(ops::quantize(weight, QuantFormat::int4, {.group = 32}), DType::float32)),
        values);
    values.clear();
    for (const double magnitude : {0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0}) {
        values.push_back(magnitude * 448);
        values.push_back(-magnitude * 448);
    }
    const Array fours = upload(values, {1, 16}, DType::float32);
    EXPECT_EQ(download(ops::dequantize(ops::quantize(fours, QuantFormat::nvfp4), DType::float32)), values);
    const Array zeros = upload(std::vector<double>(40, 0.0), {2, 20}, DType::float32);
    for (const Case& each : kCases) {
        EXPECT_EQ(download(ops::dequantize(ops::quantize(zeros, each.format, each.options), DType::float32)),
                  std::vector<double>(40, 0.0))
            << each.name();
    }
}

TEST(Quantize, TiesGoToEven) {
    // Scale 1: of halves the even neighbour.
    std::vector<double> values = {7, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 3.5};
    values.resize(32, 0.0);
    const auto got = download(ops::dequantize(
        ops::quantize(upload(values, {1, 32}, DType::float32), QuantFormat::int4, {.group = 32}),
        DType::float32));
    EXPECT_EQ((std::vector<double>(got.begin(), got.begin() + 8)),
              (std::vector<double>{7, 0, 2, 2, 0, -2, -2, 4}));
}

// In products, too: of few rows by codes, and of many.
TEST(Quantize, WhatIsNotFiniteBecomesNaN) {
    constexpr std::int64_t n = 48, k = 192, row = 5, column = 70;
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    const std::pair<double, DType> bad_ones[] = {{std::nan(""), DType::bfloat16},
                                                 {kInfinity, DType::bfloat16},
                                                 {-kInfinity, DType::bfloat16},
                                                 {std::nan(""), DType::float32},
                                                 {kInfinity, DType::float32}};
    for (const Case& each : kCases) {
        for (const auto& [bad, dtype] : bad_ones) {
            SCOPED_TRACE(str(each.name(), ", ", bad, " of ", name(dtype)));
            auto values = values::random(n * k, dtype, 3);
            values[row * k + column] = bad;
            const QuantizedWeight w = ops::quantize(upload(values, {n, k}, dtype), each.format, each.options);
            const bool whole = each.format == QuantFormat::nvfp4 || each.options.per_tensor;
            const std::int64_t group = w.group != 0 ? w.group : k;
            const auto exact = download(ops::dequantize(w, DType::float32));
            for (std::int64_t i = 0; i < n * k; ++i) {
                const bool is_nan = whole || (i / k == row && i % k / group == column / group);
                ASSERT_EQ(std::isnan(exact[i]), is_nan) << i;
                ASSERT_EQ(std::isfinite(exact[i]), !is_nan) << i;
            }
            for (const std::int64_t m : {1, 3, 24, 300}) {
                const auto got = download(ops::linear(random_array({m, k}, DType::bfloat16, 6), w));
                for (std::int64_t i = 0; i < m * n; ++i) {
                    const bool is_nan = whole || i % n == row;
                    ASSERT_EQ(std::isnan(got[i]), is_nan) << m << " rows, " << i;
                    ASSERT_EQ(std::isfinite(got[i]), !is_nan) << m << " rows, " << i;
                }
            }
        }
    }
}

TEST(Quantize, SavesMemory) {
    const Array weight = random_array({256, 1024}, DType::bfloat16, 4);
    const double elements = 256 * 1024;
    const auto bits = [&](QuantFormat format, const ops::QuantizeOptions& options = {}) {
        return static_cast<double>(ops::quantize(weight, format, options).nbytes()) * 8 / elements;
    };
    EXPECT_NEAR(bits(QuantFormat::int8), 8 + 32.0 / 1024, 1e-9);
    EXPECT_NEAR(bits(QuantFormat::int4), 4 + 32.0 / 128, 1e-9);
    EXPECT_NEAR(bits(QuantFormat::int4, {.group = 32, .zero_points = true}), 4 + 64.0 / 32, 1e-9);
    EXPECT_NEAR(bits(QuantFormat::nvfp4), 4.5 + 32 / elements, 1e-9);
}

// Against float64 with the dequantised weight: what is left is the rounding of the result, and of sums in
// float32.
TEST(QuantizedLinear, AgreesWithTheDequantisedWeight) {
    struct Size {
        std::int64_t n, k;
    };
    for (const Case& each : kCases) {
        for (const Size& size :
             {Size{100, 512}, {33, 200}, {17, 9}, {48, 3584}, {20, 8232}, {16, 64}, {1, 1}}) {
            for (const DType dtype : {DType::bfloat16, DType::float16}) {
                const Array weight = random_array({size.n, size.k}, dtype, 5);
                const QuantizedWeight w = ops::quantize(weight, each.format, each.options);
                const auto exact = download(ops::dequantize(w, DType::float32));
                for (const std::int64_t m : {1, 3, 8, 9, 16}) {
                    const Array x = random_array({m, size.k}, dtype, 6);
                    const auto expected = product(download(x), exact, m, size.n, size.k);
                    EXPECT_LE(relative_error(download(ops::linear(x, w, nullptr, DType::float32)), expected),
                              3e-6)
                        << each.name() << " " << m << " x " << size.n << " x " << size.k << " "
                        << name(dtype);
                    if (m == 3) {
                        EXPECT_LE(relative_error(download(ops::linear(x, w)), expected),
                                  dtype == DType::float16 ? 5e-4 : 4e-3)
                            << each.name() << " " << name(dtype);
                    }
                }
            }
        }
    }
}

TEST(QuantizedLinear, ManyRowsAndFloat32) {
    for (const Case& each : kCases) {
        const QuantizedWeight w =
            ops::quantize(random_array({70, 160}, DType::float32, 7), each.format, each.options);
        const auto exact = download(ops::dequantize(w, DType::float32));
        for (const DType dtype : {DType::float32, DType::bfloat16}) {
            for (const std::int64_t m : {2, 20, 40}) {
                const Array x = random_array({m, 160}, dtype, 8);
                const Array bias = random_array({70}, dtype, 9);
                auto expected = product(download(x), exact, m, 70, 160);
                const auto offsets = download(bias);
                for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += offsets[i % 70];
                const Array y = ops::linear(x, w, &bias);
                EXPECT_EQ(y.dtype(), dtype);
                EXPECT_LE(relative_error(download(y), expected), dtype == DType::float32 ? 2e-6 : 8e-3)
                    << each.name() << " " << m << " " << name(dtype);
            }
        }
    }
}

// Sums beyond float16, of which none is rounded to it on its way.
TEST(QuantizedLinear, GivesTheSumsInFloat32) {
    const Array weight = upload(std::vector<double>(70 * 64, 100), {70, 64}, DType::float16);
    for (const Case& each : kCases) {
        const QuantizedWeight w = ops::quantize(weight, each.format, each.options);
        for (const std::int64_t m : {1, 17, 25, 60, 300}) {
            const Array x =
                upload(std::vector<double>(static_cast<std::size_t>(m * 64), 100), {m, 64}, DType::float16);
            const auto got = download(ops::linear(x, w, nullptr, DType::float32));
            for (const double sum : got) {
                ASSERT_NEAR(sum, 640000, 640000 * 3e-3) << each.name() << " " << m;
            }
        }
    }
}

TEST(QuantizedLinear, TakesViewsAndShapes) {
    const QuantizedWeight w = ops::quantize(random_array({48, 72}, DType::bfloat16, 1), QuantFormat::int8);
    const Array wide = random_array({2, 3, 80}, DType::bfloat16, 2);
    const Array view = wide.slice(2, 5, 1, 72);
    EXPECT_EQ(ops::linear(view, w).shape(), (Dims{2, 3, 48}));
    EXPECT_EQ(download(ops::linear(view, w)), download(ops::linear(ops::contiguous(view), w)));
    const Array row = wide.select(0, 0).select(0, 1).slice(0, 1, 1, 72);
    EXPECT_EQ(download(ops::linear(row, w)), download(ops::linear(ops::contiguous(row), w)));
    EXPECT_EQ(ops::linear(random_array({0, 72}, DType::bfloat16, 1), w).shape(), (Dims{0, 48}));
    // A weight that is a view itself.
    const Array turned = random_array({72, 48}, DType::bfloat16, 3).transpose({1, 0});
    EXPECT_EQ(
        download(ops::dequantize(ops::quantize(turned, QuantFormat::fp8), DType::float32)),
        download(ops::dequantize(ops::quantize(ops::contiguous(turned), QuantFormat::fp8), DType::float32)));
}

TEST(QuantizedLinear, IsTheSameEachTime) {
    const QuantizedWeight w = ops::quantize(random_array({640, 4096}, DType::bfloat16, 1), QuantFormat::int4);
    const Array x = random_array({2, 4096}, DType::bfloat16, 2);
    const auto first = download(ops::linear(x, w, nullptr, DType::float32));
    for (int i = 0; i < 3; ++i) EXPECT_EQ(download(ops::linear(x, w, nullptr, DType::float32)), first);
}

// Random codes with scales and offsets of a form, and what they stand for in float64.
struct Coded {
    QuantFormat format;
    std::int64_t group;
    bool offsets;
    std::string name() const { return str(ops::name(format), " ", group, offsets ? " with offsets" : ""); }
};
constexpr Coded kCoded[] = {
    {QuantFormat::int8, 0, false},  {QuantFormat::int8, 64, false}, {QuantFormat::int8, 64, true},
    {QuantFormat::int8, 32, false}, {QuantFormat::int8, 32, true},  {QuantFormat::int8, 16, false},
    {QuantFormat::int8, 16, true},  {QuantFormat::int4, 128, true}, {QuantFormat::int4, 128, false},
    {QuantFormat::int4, 64, true},  {QuantFormat::int4, 32, true},  {QuantFormat::int4, 32, false},
    {QuantFormat::fp8, 0, false},   {QuantFormat::fp8, 64, false},
};

QuantizedWeight pack_random(const Coded& coded, std::int64_t n, std::int64_t k, std::vector<double>& exact) {
    const std::int64_t group = coded.group == 0 ? k : coded.group, groups = (k + group - 1) / group;
    const auto scales = values::random(n * groups, DType::float32, 21);
    const auto offsets = values::random(n * groups, DType::float32, 22);
    std::vector<std::uint8_t> codes(static_cast<std::size_t>(n * k));
    std::uint32_t state = 7;
    exact.resize(codes.size());
    for (std::size_t i = 0; i < codes.size(); ++i) {
        state = state * 1664525 + 1013904223;
        auto code = static_cast<std::uint8_t>(state >> 24);
        double number = static_cast<std::int8_t>(code);
        if (coded.format == QuantFormat::int4) {
            code &= 15;
            number = code - (coded.offsets ? 0 : 8);
        } else if (coded.format == QuantFormat::fp8) {
            if ((code & 0x7f) == 0x7f) code ^= 1;  // no NaN
            float8_e4m3 value;
            value.bits = code;
            number = static_cast<float>(value);
        }
        codes[i] = code;
        const std::size_t at = i / static_cast<std::size_t>(k) * static_cast<std::size_t>(groups) +
                               i % static_cast<std::size_t>(k) / static_cast<std::size_t>(group);
        exact[i] = number * scales[at] + (coded.offsets ? offsets[at] : 0);
    }
    return ops::pack_codes(
        test_device(),
        {.format = coded.format,
         .n = n,
         .k = k,
         .group = coded.group,
         .offsets = coded.offsets,
         .dtype = DType::bfloat16,
         .read = [&](std::int64_t row, std::uint8_t* to, float* of, float* plus) {
             std::copy_n(codes.begin() + row * k, k, to);
             for (std::int64_t i = 0; i < groups; ++i) {
                 of[i] = static_cast<float>(scales[static_cast<std::size_t>(row * groups + i)]);
                 if (coded.offsets)
                     plus[i] = static_cast<float>(offsets[static_cast<std::size_t>(row * groups + i)]);
             }
         }});
}

TEST(PackCodes, EveryFormMultipliesAndComesBack) {
    for (const Coded& coded : kCoded) {
        for (const auto& [n, k] : {std::pair{33, 160}, {16, 64}, {70, 1000}, {7, 2432}}) {
            std::vector<double> exact;
            const QuantizedWeight w = pack_random(coded, n, k, exact);
            const std::string what = str(coded.name(), ", ", n, " x ", k);
            EXPECT_LE(relative_error(download(ops::dequantize(w, DType::float32)), exact), 1e-7) << what;
            for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16}) {
                for (const std::int64_t m : {1, 3, 9, 16}) {
                    const Array x = random_array({m, k}, dtype, 6);
                    EXPECT_LE(relative_error(download(ops::linear(x, w, nullptr, DType::float32)),
                                             product(download(x), exact, m, n, k)),
                              3e-6)
                        << what << ", " << m << " rows of " << name(dtype);
                }
            }
        }
    }
}

TEST(PackCodes, AnEmbeddingLooksUpRows) {
    for (const Coded& coded : kCoded) {
        std::vector<double> exact;
        const QuantizedWeight w = pack_random(coded, 20, 72, exact);
        const Array ids = upload({3, 19, 0, 20, -1, 3}, {2, 3}, DType::int32);
        std::vector<double> expected;
        for (const int row : {3, 19, 0, 20, 20, 3}) {
            for (int i = 0; i < 72; ++i)
                expected.push_back(row < 20 ? exact[static_cast<std::size_t>(row * 72 + i)] : 0);
        }
        const Array rows = ops::embedding(w, ids, DType::float32);
        EXPECT_EQ(rows.shape(), (Dims{2, 3, 72}));
        EXPECT_LE(relative_error(download(rows), expected), 1e-7) << coded.name();
        const auto half = download(ops::embedding(w, ids, DType::bfloat16));
        const Array room = Array::empty(test_device(), {ids.size() * w.k + 1}, DType::bfloat16);
        const Array odd = *room.slice(0, 1, 1, ids.size() * w.k).reshape_view({2, 3, w.k});
        EXPECT_EQ(download(ops::embedding(w, ids, DType::bfloat16, &odd)), half) << coded.name();
        EXPECT_LE(relative_error(half, expected), 4e-3) << coded.name();
    }
}

TEST(PackCodes, RefusesWhatNoKernelReads) {
    const auto matrix = [](QuantFormat format, std::int64_t group, std::int64_t k, bool offsets) {
        return ops::CodedMatrix{.format = format,
                                .n = 4,
                                .k = k,
                                .group = group,
                                .offsets = offsets,
                                .dtype = DType::float16,
                                .read = [](std::int64_t, std::uint8_t*, float*, float*) {}};
    };
    EXPECT_THROW(ops::pack_codes(test_device(), matrix(QuantFormat::int4, 16, 64, false)), Error);
    EXPECT_THROW(ops::pack_codes(test_device(), matrix(QuantFormat::int8, 0, 64, true)), Error);
    EXPECT_THROW(ops::pack_codes(test_device(), matrix(QuantFormat::nvfp4, 0, 64, false)), Error);
    EXPECT_THROW(ops::pack_codes(test_device(), matrix(QuantFormat::fp8, 64, 64, true)), Error);
    EXPECT_THROW(ops::pack_codes(test_device(), matrix(QuantFormat::int8, 32, 0, false)), Error);
}

// A product into columns of a wider array.
TEST(QuantizedLinear, WritesColumns) {
    const QuantizedWeight w = ops::quantize(random_array({40, 72}, DType::float32, 1), QuantFormat::int8);
    for (const std::int64_t m : {1, 5, 30}) {
        const Array x = random_array({m, 72}, DType::float32, 2);
        const Array wide = random_array({m, 100}, DType::float32, 3), part = wide.slice(1, 50, 1, 40);
        ops::linear(x, w, nullptr, std::nullopt, &part);
        EXPECT_EQ(download(part), download(ops::linear(x, w)));
        const Array turned = random_array({40, m}, DType::float32, 3).transpose({1, 0});
        ops::linear(x, w, nullptr, std::nullopt, &turned);
        EXPECT_EQ(download(turned), download(ops::linear(x, w)));
    }
}

TEST(Quantize, NamesWhatIsWrong) {
    const auto fails = [](ErrorKind kind, const char* part, const auto& call) {
        try {
            call();
            ADD_FAILURE() << "no error; expected one with " << part;
        } catch (const Error& failure) {
            EXPECT_EQ(failure.kind(), kind) << failure.what();
            EXPECT_NE(std::string(failure.what()).find(part), std::string::npos) << failure.what();
        }
    };
    const Array weight = random_array({8, 64}, DType::bfloat16, 1);
    fails(ErrorKind::value, "'int8', 'int4'", [] { ops::quant_format_from_name("int3"); });
    fails(ErrorKind::value, "group", [&] { ops::quantize(weight, QuantFormat::int4, {.group = 48}); });
    fails(ErrorKind::value, "group", [&] { ops::quantize(weight, QuantFormat::int8, {.group = 32}); });
    fails(ErrorKind::value, "zero_points",
          [&] { ops::quantize(weight, QuantFormat::int8, {.zero_points = true}); });
    fails(ErrorKind::value, "per_tensor",
          [&] { ops::quantize(weight, QuantFormat::int4, {.per_tensor = true}); });
    fails(ErrorKind::value, "2 dimensions", [&] { ops::quantize(weight.select(0, 0), QuantFormat::int8); });
    fails(ErrorKind::value, "2 dimensions",
          [&] { ops::quantize(random_array({0, 4}, DType::float32, 1), QuantFormat::int8); });
    fails(ErrorKind::type, "float64",
          [&] { ops::quantize(random_array({2, 2}, DType::float64, 1), QuantFormat::fp8); });
    const QuantizedWeight w = ops::quantize(weight, QuantFormat::int8);
    fails(ErrorKind::value, "a last dimension of 64",
          [&] { ops::linear(random_array({2, 63}, DType::bfloat16, 1), w); });
    fails(ErrorKind::type, "x", [&] { ops::linear(random_array({2, 64}, DType::int32, 1), w); });
    fails(ErrorKind::type, "dtype",
          [&] { ops::linear(random_array({2, 64}, DType::bfloat16, 1), w, nullptr, DType::float16); });
    const Array bias = random_array({7}, DType::bfloat16, 1);
    fails(ErrorKind::value, "bias",
          [&] { ops::linear(random_array({2, 64}, DType::bfloat16, 1), w, &bias); });
    fails(ErrorKind::type, "dtype", [&] { ops::dequantize(w, DType::int8); });
}

}  // namespace
