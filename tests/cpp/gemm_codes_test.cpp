// gemm_codes, on the simulated device too, which else multiplies otherwise.
#include "ops/gemm_codes.hpp"

#include <gtest/gtest.h>

#include "values.hpp"

namespace {

using namespace gpk;
using ops::QuantizedWeight;
using values::download;
using values::random_array;
using values::relative_error;

struct Case {
    QuantFormat format;
    ops::QuantizeOptions options;
};
const Case kCases[] = {
    {QuantFormat::int8, {}},
    {QuantFormat::int4, {.group = 128}},
    {QuantFormat::int4, {.group = 64}},
    {QuantFormat::int4, {.group = 32}},
    {QuantFormat::int4, {.group = 64, .zero_points = true}},
    {QuantFormat::int4, {.group = 32, .zero_points = true}},
    {QuantFormat::fp8, {}},
    {QuantFormat::fp8, {.per_tensor = true}},
    {QuantFormat::nvfp4, {}},
};

// A weight of codes and scales as files have them, each row's from a formula.
QuantizedWeight coded(QuantFormat format, std::int64_t n, std::int64_t k, std::int64_t group, bool offsets,
                      DType dtype) {
    return ops::pack_codes(test_device(),
                           {.format = format,
                            .n = n,
                            .k = k,
                            .group = group,
                            .offsets = offsets,
                            .dtype = dtype,
                            .read = [=](std::int64_t row, std::uint8_t* codes, float* scales, float* shifts) {
                                for (std::int64_t i = 0; i < k; ++i) {
                                    const auto code =
                                        static_cast<std::uint8_t>((row * 31 + i * 17 + i / 7) % 251);
                                    codes[i] = format == QuantFormat::int4  ? code % 16
                                               : format == QuantFormat::fp8 ? code % 120
                                                                            : code;
                                }
                                for (std::int64_t i = 0; i < (k + group - 1) / group; ++i) {
                                    scales[i] = 0.01f * static_cast<float>(1 + (row + 3 * i) % 5);
                                    if (offsets) shifts[i] = -0.02f * static_cast<float>((row + i) % 7);
                                }
                            }});
}

std::vector<double> product(const Array& x, const Array& w) {
    const std::int64_t m = x.shape()[0], n = w.shape()[0], k = w.shape()[1];
    const auto a = download(x), b = download(w);
    std::vector<double> c;
    for (std::int64_t i = 0; i < m; ++i) {
        for (std::int64_t j = 0; j < n; ++j) {
            double sum = 0;
            for (std::int64_t l = 0; l < k; ++l) {
                sum += a[static_cast<std::size_t>(i * k + l)] * b[static_cast<std::size_t>(j * k + l)];
            }
            c.push_back(sum);
        }
    }
    return c;
}

// On a GPU the weight of groups is rounded to x's type, as dequantize rounds it; that of others is exact.
double bound(DType dtype, DType result) {
    const double weight = dtype == DType::float16 ? 4e-4 : 3e-3;
    return result == DType::float32 ? weight : 1.5 * weight;
}

void check(const QuantizedWeight& w, std::int64_t m, DType dtype, int shares, const std::string& what) {
    const Array x = random_array({m, w.k}, dtype, 6);
    const auto expected = product(x, ops::dequantize(w, DType::float32));
    for (const DType result : {DType::float32, dtype}) {
        const Array out = Array::empty(x.device(), {m, w.n}, result);
        ops::gemm_codes(x, w, out, shares);
        const bool exact = w.group == 0 && result == DType::float32;
        EXPECT_LE(relative_error(download(out), expected), exact ? 3e-6 : bound(dtype, result))
            << what << " " << m << " x " << w.n << " x " << w.k << " shares " << shares << " " << name(dtype)
            << " to " << name(result);
    }
}

struct Size {
    std::int64_t m, n, k;
    int shares;
};
const Size kSizes[] = {{17, 16, 64, 0},    {64, 128, 128, 1},  {1, 1, 1, 0},
                       {65, 130, 200, 1},  {64, 300, 1000, 2}, {33, 250, 1928, 3},
                       {100, 48, 2048, 8}, {130, 128, 960, 7}, {20, 33, 5000, 5}};

TEST(GemmCodes, AgreesWithTheDequantisedWeight) {
    for (const Case& each : kCases) {
        for (const DType dtype : {DType::bfloat16, DType::float16}) {
            for (const Size& size : kSizes) {
                const QuantizedWeight w =
                    ops::quantize(random_array({size.n, size.k}, dtype, 5), each.format, each.options);
                check(w, size.m, dtype, size.shares, std::string(ops::name(each.format)));
            }
        }
    }
}

TEST(GemmCodes, TakesTheGroupsOfFiles) {
    struct Form {
        QuantFormat format;
        std::int64_t group;
        bool offsets;
    };
    for (const Form& form : {Form{QuantFormat::int8, 16, false},
                             {QuantFormat::int8, 16, true},
                             {QuantFormat::int8, 32, false},
                             {QuantFormat::int8, 64, true},
                             {QuantFormat::int4, 32, true},
                             {QuantFormat::int4, 128, true},
                             {QuantFormat::fp8, 64, false}}) {
        for (const DType dtype : {DType::bfloat16, DType::float16}) {
            for (const std::int64_t k : {512, 832}) {
                check(coded(form.format, 70, k, form.group, form.offsets, dtype), 40, dtype, 3,
                      str(ops::name(form.format), " groups of ", form.group));
            }
        }
    }
}

TEST(GemmCodes, IsTheSameEachTimeAndTakesPartsOfRows) {
    const QuantizedWeight w = ops::quantize(random_array({500, 4096}, DType::bfloat16, 1), QuantFormat::int4);
    const Array wide = random_array({70, 4100}, DType::bfloat16, 2), x = wide.slice(1, 3, 1, 4096);
    const Array all = Array::empty(x.device(), {70, 503}, DType::bfloat16), out = all.slice(1, 1, 1, 500);
    ops::gemm_codes(ops::contiguous(x), w, out);
    const auto first = download(out);
    for (int i = 0; i < 5; ++i) {
        ops::gemm_codes(x, w, out);
        EXPECT_EQ(download(out), first) << i;
    }
}

}  // namespace
