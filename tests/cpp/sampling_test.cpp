#include "ops/sampling.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>

#include "base/error.hpp"
#include "kernels/sampling/weights.hpp"
#include "values.hpp"

namespace {

using namespace gpk;
using values::download;
using values::upload;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::vector<double> normals(std::int64_t count, double scale, unsigned seed) {
    std::vector<double> out = values::random(count, DType::float32, seed);
    for (double& value : out) value = static_cast<float>(value * scale);
    return out;
}

// -- The numbers that everything rests on ---------------------------------------------------------------

TEST(SamplingWeights, AreExponentials) {
    for (double distance = 0; distance < 20; distance += 0.0137) {
        const float logit = static_cast<float>(-distance);
        const double expected =
            std::exp(static_cast<double>(logit)) * static_cast<double>(kernels::kWeightOne);
        const float rate = 1.44269504f;
        // 7e-8 of the polynomial, the rounding of the rate and the product, and one unit of the cut.
        const double bound = expected * (7e-8 + 1.3e-7 * (1 + distance)) + 1;
        EXPECT_NEAR(static_cast<double>(kernels::weight_of(logit, 0, rate)), expected, bound) << distance;
    }
    EXPECT_EQ(kernels::weight_of(5, 5, 1e30f), kernels::kWeightOne);
    EXPECT_EQ(kernels::weight_of(-std::numeric_limits<float>::infinity(), 5, 1), 0u);
    EXPECT_EQ(kernels::weight_of(4, 5, 1e30f), 0u);
}

TEST(SamplingWeights, KeysOrderAsNumbersDo) {
    const float ordered[] = {-INFINITY, -1e30f, -2, -1e-40f, 0, 1e-40f, 1, 3, 1e30f, INFINITY, NAN};
    for (std::size_t i = 0; i + 1 < std::size(ordered); ++i) {
        EXPECT_LT(kernels::order_key(ordered[i]), kernels::order_key(ordered[i + 1])) << ordered[i];
        EXPECT_EQ(kernels::key_value(kernels::order_key(ordered[i])), ordered[i]);
    }
    EXPECT_EQ(kernels::order_key(-0.0f), kernels::order_key(0.0f));
}

TEST(SamplingWeights, RandomBitsArePhilox) {
    // Random123's known answer for philox4x32-10 with counter and key 0: 6627e8d5 e169c58d ...
    EXPECT_EQ(kernels::random_bits(0, 0, 0), 0x6627e8d5e169c58dull);
    EXPECT_NE(kernels::random_bits(0, 0, 1), kernels::random_bits(0, 1, 0));
    EXPECT_EQ(kernels::multiply_high(~0ull, ~0ull), ~0ull - 1);
    EXPECT_EQ(kernels::multiply_high(1ull << 63, 10), 5u);
}

// -- sample ---------------------------------------------------------------------------------------------

// What a row's probabilities are after the cuts, by the definition, in float64.
std::vector<double> probabilities(const std::vector<double>& logits, const ops::SampleOptions& o) {
    std::vector<std::size_t> order(logits.size());
    std::iota(order.begin(), order.end(), 0u);
    std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return logits[a] > logits[b]; });
    if (o.top_k.value > 0 && static_cast<std::size_t>(o.top_k.value) < order.size())
        order.resize(static_cast<std::size_t>(o.top_k.value));
    std::vector<double> out(logits.size(), 0);
    const double highest = logits[order[0]];
    double total = 0, taken = 0;
    for (const auto i : order) total += out[i] = std::exp((logits[i] - highest) / o.temperature.value);
    std::size_t kept = 0;
    while (kept < order.size() &&
           (kept == 0 || (o.top_p.value < 1 && taken < o.top_p.value * total) || o.top_p.value == 1)) {
        taken += out[order[kept++]];
    }
    for (std::size_t i = kept; i < order.size(); ++i) out[order[i]] = 0;
    for (double& p : out) p = p >= o.min_p.value ? p : 0;
    total = std::accumulate(out.begin(), out.end(), 0.0);
    for (double& p : out) p /= total;
    return out;
}

struct Cut {
    double temperature;
    std::int64_t top_k;
    double top_p, min_p;
};
constexpr Cut kCuts[] = {{1, 0, 1, 0},    {0.7, 50, 1, 0},  {1.3, 0, 0.9, 0},   {0.8, 40, 0.95, 0.05},
                         {1, 0, 1, 0.1},  {1, 1, 1, 0},     {2.5, 900, 0.5, 0}, {0.01, 0, 0.999, 0},
                         {1, 0, 1e-9, 0}, {1e-30, 0, 1, 0}, {1e30, 0, 1, 0}};

ops::SampleOptions options(const Cut& cut, std::uint64_t step) {
    return {.temperature = cut.temperature,
            .top_k = cut.top_k,
            .top_p = cut.top_p,
            .min_p = cut.min_p,
            .seed = 42,
            .step = step};
}

// The draw by its definition: the first id whose cumulative probability exceeds the random number. Ids whose
// boundaries lie nearer than rounding count as well.
bool is_drawn(const std::vector<double>& p, std::uint64_t bits, std::int64_t id) {
    const double u = static_cast<double>(bits) * 0x1p-64;
    double before = 0;
    for (std::int64_t i = 0; i < id; ++i) before += p[static_cast<std::size_t>(i)];
    const double of = p[static_cast<std::size_t>(id)];
    return of > 0 && before - 2e-6 <= u && u <= before + of + 2e-6;
}

TEST(Sample, DrawsByTheDefinition) {
    for (const std::int64_t n : {1, 5, 100, 1000, 20000}) {
        for (const double scale : {3.0, 0.25}) {
            std::vector<double> logits = normals(3 * n, scale, static_cast<unsigned>(n));
            if (scale < 1) {  // many equals
                for (double& value : logits) value = std::round(4 * value) / 4;
            }
            const Array array = upload(logits, {3, n}, DType::float32);
            for (const Cut& cut : kCuts) {
                for (const std::uint64_t step : {std::uint64_t{0}, std::uint64_t{123456789012}}) {
                    const ops::SampleOptions o = options(cut, step);
                    const auto tokens = download(ops::sample(array, o));
                    for (std::int64_t row = 0; row < 3; ++row) {
                        const auto id = static_cast<std::int64_t>(tokens[static_cast<std::size_t>(row)]);
                        ASSERT_TRUE(id >= 0 && id < n) << id;
                        const std::vector<double> of_row(logits.begin() + row * n,
                                                         logits.begin() + (row + 1) * n);
                        const auto bits = kernels::random_bits(42, step, static_cast<std::uint64_t>(row));
                        EXPECT_TRUE(is_drawn(probabilities(of_row, o), bits, id))
                            << "n " << n << " temperature " << cut.temperature << " top_k " << cut.top_k
                            << " top_p " << cut.top_p << " min_p " << cut.min_p << " row " << row << " id "
                            << id;
                    }
                }
            }
        }
    }
}

// Sums of four uniform numbers, exact in float32.
std::vector<double> even_logits(std::int64_t count) {
    std::vector<double> out;
    for (std::int64_t i = 0; i < count; ++i) {
        std::uint64_t bits = kernels::random_bits(1, static_cast<std::uint64_t>(i), 2);
        double sum = -2;
        for (int part = 0; part < 4; ++part, bits >>= 16) sum += static_cast<double>(bits & 0xffff) / 65536;
        out.push_back(sum * 8);
    }
    return out;
}

// What every device gives, once seen and kept.
TEST(Sample, IsTheSameEverywhere) {
    const Array logits = upload(even_logits(152064), {152064}, DType::float32);
    std::vector<double> tokens;
    for (const Cut& cut : kCuts) tokens.push_back(download(ops::sample(logits, options(cut, 9)))[0]);
    EXPECT_EQ(tokens, (std::vector<double>{37979, 35176, 38518, 35475, 35475, 107104, 37979, 107104, 107104,
                                           107104, 40501}));
}

TEST(Sample, FollowsTheProbabilities) {
    const std::vector<double> p = {0.5, 0.3, 0.15, 0.05};
    std::vector<double> logits;
    for (int row = 0; row < 20000; ++row) {
        for (const double each : p) logits.push_back(std::log(each));
    }
    for (const DType dtype : {DType::float32, DType::float16, DType::bfloat16}) {
        std::map<int, int> counts;
        for (const double id : download(ops::sample(upload(logits, {20000, 4}, dtype), {.seed = 3}))) {
            ++counts[static_cast<int>(id)];
        }
        for (int id = 0; id < 4; ++id)
            EXPECT_NEAR(counts[id] / 20000.0, p[static_cast<std::size_t>(id)], 0.015);
    }
}

TEST(Sample, TiesGoToTheLowestIds) {
    const Array equal = upload(std::vector<double>(3000, 1.5), {3000}, DType::float32);
    for (std::uint64_t step = 0; step < 40; ++step) {
        EXPECT_LT(download(ops::sample(equal, {.top_k = 7, .step = step}))[0], 7);
        EXPECT_LT(download(ops::sample(equal, {.top_p = 0.01, .step = step}))[0], 30);
        EXPECT_LT(download(ops::sample(equal, {.top_k = 100, .top_p = 0.05, .step = step}))[0], 5);
    }
    EXPECT_EQ(download(ops::sample(equal, {.temperature = 0}))[0], 0);
}

TEST(Sample, MinusOneWhereThereIsNothingToDrawFrom) {
    const auto token = [](std::vector<double> row) {
        return download(ops::sample(upload(row, {1, 3}, DType::float32), {}))[0];
    };
    EXPECT_EQ(token({1, std::nan(""), 2}), -1);
    EXPECT_EQ(token({1, kInfinity, 2}), -1);
    EXPECT_EQ(token({-kInfinity, -kInfinity, -kInfinity}), -1);
    EXPECT_EQ(token({-kInfinity, 0, -kInfinity}), 1);
}

TEST(Sample, TakesViewsAndThePositionOnTheDevice) {
    const auto logits = normals(6 * 500, 3, 5);
    const Array wide = upload(logits, {6, 500}, DType::float32);
    const Array view = wide.slice(0, 1, 2, 3).slice(1, 3, 1, 400);
    const Array position = upload({17}, {1}, DType::int32);
    const auto got = download(ops::sample(view, {.seed = 5, .step = 3, .position = &position}));
    EXPECT_EQ(got, download(ops::sample(ops::contiguous(view), {.seed = 5, .step = 20})));
    const Array turned = ops::contiguous(view.transpose({1, 0})).transpose({1, 0});
    EXPECT_EQ(got, download(ops::sample(turned, {.seed = 5, .step = 20})));
    EXPECT_EQ(ops::sample(upload(logits, {2, 3, 500}, DType::float32), {}).shape(), (Dims{2, 3}));
    EXPECT_EQ(ops::sample(upload({}, {0, 5}, DType::float32), {}).shape(), (Dims{0}));
    EXPECT_EQ(ops::sample(wide.select(0, 0), {}).shape(), (Dims{}));
}

// A row with options of its own draws what it draws alone.
TEST(Sample, RowsHaveTheirOwnOptions) {
    constexpr std::int64_t kRows = 7, kN = 3000;
    const Array logits = upload(normals(kRows * kN, 3, 8), {kRows, kN}, DType::float32);
    const std::vector<double> temperatures = {1, 0.5, 0, 2, 1, 0.125, 1.5}, top_ks = {0, 40, 0, 900, 5, 0, 1},
                              top_ps = {1, 0.75, 1, 0.5, 1, 0.25, 1}, min_ps = {0, 0, 0, 0.125, 0.5, 0, 0},
                              seeds = {1, 2, 3, 1, 0, 77, 5}, positions = {0, 1, 2, 3, 100, 5, 6};
    const auto of_rows = [&](const std::vector<double>& values, DType dtype) {
        return upload(values, {kRows}, dtype);
    };
    const Array temperature = of_rows(temperatures, DType::float32), top_p = of_rows(top_ps, DType::float32),
                min_p = of_rows(min_ps, DType::float32), top_k = of_rows(top_ks, DType::int32),
                seed = of_rows(seeds, DType::uint64), position = of_rows(positions, DType::int32);
    const auto got = download(ops::sample(logits, {.temperature = {0, &temperature},
                                                   .top_k = {0, &top_k},
                                                   .top_p = {1, &top_p},
                                                   .min_p = {0, &min_p},
                                                   .seed = {0, &seed},
                                                   .step = 4,
                                                   .position = &position}));
    for (std::size_t row = 0; row < kRows; ++row) {
        const auto at = static_cast<std::int64_t>(row);
        const ops::SampleOptions alone{.temperature = temperatures[row],
                                       .top_k = static_cast<std::int64_t>(top_ks[row]),
                                       .top_p = top_ps[row],
                                       .min_p = min_ps[row],
                                       .seed = static_cast<std::uint64_t>(seeds[row]),
                                       .step = 4 + static_cast<std::uint64_t>(positions[row])};
        EXPECT_EQ(got[row], download(ops::sample(logits.slice(0, at, 1, 1), alone))[0]) << row;
    }
}

TEST(Sample, OptionsOfARowThatAreOutOfRangeGiveMinusOne) {
    const double nan = std::nan("");
    const Array logits = upload(normals(5 * 300, 1, 2), {5, 300}, DType::float32);
    const Array bad = upload({-1, nan, 0.5, 7, kInfinity}, {5}, DType::float32);
    const auto is_token = [](double id) { return id >= 0; };
    const auto given = [&](const ops::SampleOptions& o) {
        std::vector<bool> out;
        for (const double id : download(ops::sample(logits, o))) out.push_back(is_token(id));
        return out;
    };
    EXPECT_EQ(given({.temperature = {1, &bad}}), (std::vector<bool>{false, false, true, true, false}));
    EXPECT_EQ(given({.top_p = {1, &bad}}), (std::vector<bool>{false, false, true, false, false}));
    EXPECT_EQ(given({.min_p = {0, &bad}}), (std::vector<bool>{false, false, true, false, false}));
    const Array top_k = upload({-1, 0, 5, 1e9, 1}, {5}, DType::int32);
    EXPECT_EQ(given({.top_k = {0, &top_k}}), (std::vector<bool>{false, true, true, true, true}));
}

TEST(Sample, CountsWhatItDraws) {
    const Array logits = upload(normals(3 * 200, 2, 4), {3, 200}, DType::float32);
    const Array counts = upload(std::vector<double>(600, 0), {3, 200}, DType::int32);
    std::vector<double> expected(600, 0);
    for (std::uint64_t step = 0; step < 20; ++step) {
        const std::int64_t top_k = step % 2 == 0 ? 0 : 5;
        const double temperature = step % 5 == 4 ? 0 : 1;
        const auto tokens = download(ops::sample(
            logits, {.temperature = temperature, .top_k = top_k, .step = step, .counts = &counts}));
        for (std::size_t row = 0; row < 3; ++row)
            ++expected[row * 200 + static_cast<std::size_t>(tokens[row])];
    }
    EXPECT_EQ(download(counts), expected);
    const Array nothing = upload(std::vector<double>(200, std::nan("")), {1, 200}, DType::float32);
    const Array untouched = upload(std::vector<double>(200, 0), {1, 200}, DType::int32);
    EXPECT_EQ(download(ops::sample(nothing, {.counts = &untouched}))[0], -1);
    EXPECT_EQ(download(untouched), std::vector<double>(200, 0));
}

// A slot of a batch that has no text now, but will have its counts again.
TEST(Sample, CountsNothingBelowPositionZero) {
    const Array logits = upload(normals(3 * 200, 2, 4), {3, 200}, DType::float32);
    const Array counts = upload(std::vector<double>(600, 0), {3, 200}, DType::int32);
    const Array positions = upload({5, -1, 0}, {3}, DType::int32);
    for (const std::int64_t top_k : {0, 5}) {
        const auto tokens = download(ops::sample(
            logits, {.temperature = 0.0, .top_k = top_k, .position = &positions, .counts = &counts}));
        const auto counted = download(counts);
        for (std::size_t row = 0; row < 3; ++row) {
            const double times = row == 1 ? 0 : top_k == 0 ? 1 : 2;
            EXPECT_EQ(counted[row * 200 + static_cast<std::size_t>(tokens[row])], times) << row;
        }
    }
}

// -- penalize -------------------------------------------------------------------------------------------

TEST(Penalize, ByTheDefinition) {
    constexpr std::int64_t kRows = 3, kN = 1037;
    std::vector<double> counts, prompt;
    for (std::int64_t i = 0; i < kRows * kN; ++i) {
        counts.push_back(static_cast<double>(i % 5 == 0 ? i % 7 : 0));
        prompt.push_back(i % 3 == 0 ? 1 : 0);
    }
    const auto bias = normals(kRows * kN, 1, 6);
    const std::vector<double> repetitions = {1.25, 1, 0.5}, presences = {0.5, -0.25, 0},
                              frequencies = {0.125, 0, 1.5};
    const Array count_array = upload(counts, {kRows, kN}, DType::int32),
                prompt_array = upload(prompt, {kRows, kN}, DType::bool_),
                bias_array = upload(bias, {kRows, kN}, DType::float32),
                repetition = upload(repetitions, {kRows}, DType::float32),
                presence = upload(presences, {kRows}, DType::float32),
                frequency = upload(frequencies, {kRows}, DType::float32);
    const auto penalized = [&](double logit, std::size_t at, std::size_t row, bool of_prompt, double added) {
        logit += added;
        if (counts[at] > 0 || of_prompt)
            logit = logit > 0 ? logit / repetitions[row] : logit * repetitions[row];
        return counts[at] > 0 ? logit - frequencies[row] * counts[at] - presences[row] : logit;
    };
    for (const DType dtype : {DType::float32, DType::float16, DType::bfloat16}) {
        const Array wide = upload(normals(kRows * (kN + 3), 3, 7), {kRows, kN + 3}, dtype);
        for (const Array& logits : {ops::contiguous(wide.slice(1, 0, 1, kN)), wide.slice(1, 3, 1, kN)}) {
            const auto x = download(logits);
            const Array all = ops::penalize(logits, {.counts = &count_array,
                                                     .prompt = &prompt_array,
                                                     .bias = &bias_array,
                                                     .repetition = {1, &repetition},
                                                     .presence = {0, &presence},
                                                     .frequency = {0, &frequency}});
            EXPECT_EQ(all.dtype(), DType::float32);
            const auto got = download(all);
            const Array one = bias_array.select(0, 1);
            const auto less = download(ops::penalize(logits, {.counts = &count_array,
                                                              .bias = &one,
                                                              .repetition = {1, &repetition},
                                                              .presence = {0, &presence},
                                                              .frequency = {0, &frequency}}));
            for (std::size_t i = 0; i < x.size(); ++i) {
                const std::size_t row = i / kN;
                EXPECT_NEAR(got[i], penalized(x[i], i, row, prompt[i] != 0, bias[i]), 2e-6);
                EXPECT_NEAR(less[i], penalized(x[i], i, row, false, bias[kN + i % kN]), 2e-6);
            }
            EXPECT_EQ(download(ops::penalize(logits, {})), x);
        }
    }
    EXPECT_EQ(ops::penalize(upload({}, {0, 5}, DType::float32), {}).shape(), (Dims{0, 5}));
}

// What a model's step does: penalties make a row leave the token that it would repeat.
TEST(Penalize, TurnsARowFromWhatItHas) {
    const Array logits = upload({2, 1.5, 1, 0.5}, {1, 4}, DType::float32);
    const Array counts = upload({0, 0, 0, 0}, {1, 4}, DType::int32);
    std::vector<double> tokens;
    for (int step = 0; step < 6; ++step) {
        const Array penalized = ops::penalize(logits, {.counts = &counts, .frequency = 0.75});
        tokens.push_back(download(ops::sample(penalized, {.temperature = 0, .counts = &counts}))[0]);
    }
    EXPECT_EQ(tokens, (std::vector<double>{0, 1, 0, 2, 1, 0}));
}

TEST(Sample, RefusesWhatMakesNoSense) {
    const Array logits = upload({1, 2}, {2}, DType::float32);
    const auto fails = [](ErrorKind kind, const char* part, const auto& call) {
        try {
            call();
            ADD_FAILURE() << "no error; expected one with " << part;
        } catch (const Error& failure) {
            EXPECT_EQ(failure.kind(), kind) << failure.what();
            EXPECT_NE(std::string(failure.what()).find(part), std::string::npos) << failure.what();
        }
    };
    for (const double bad : {-1.0, kInfinity, std::nan("")}) {
        fails(ErrorKind::value, "temperature", [&] { ops::sample(logits, {.temperature = bad}); });
        fails(ErrorKind::value, "min_p", [&] { ops::sample(logits, {.min_p = bad}); });
    }
    fails(ErrorKind::value, "top_k", [&] { ops::sample(logits, {.top_k = -1}); });
    for (const double bad : {0.0, 1.5, std::nan("")}) {
        fails(ErrorKind::value, "top_p", [&] { ops::sample(logits, {.top_p = bad}); });
    }
    fails(ErrorKind::value, "logits", [&] { ops::sample(upload({}, {2, 0}, DType::float32), {}); });
    fails(ErrorKind::value, "logits", [&] { ops::sample(upload({1}, {}, DType::float32), {}); });
    fails(ErrorKind::type, "logits", [&] { ops::sample(upload({1}, {1}, DType::float64), {}); });
    const Array wrong = upload({1, 2}, {2}, DType::int32);
    fails(ErrorKind::value, "position", [&] { ops::sample(logits, {.position = &wrong}); });
    const Array two = upload({1, 2}, {2}, DType::float32), both = upload({1, 2}, {2}, DType::int32);
    fails(ErrorKind::value, "temperature", [&] { ops::sample(logits, {.temperature = {1, &two}}); });
    const Array row = upload({1, 2}, {1, 2}, DType::float32), one = upload({1}, {1}, DType::float32);
    fails(ErrorKind::type, "top_k", [&] { ops::sample(row, {.top_k = {0, &one}}); });
    fails(ErrorKind::type, "counts", [&] { ops::sample(row, {.counts = &row}); });
    fails(ErrorKind::value, "counts", [&] { ops::sample(row, {.counts = &both}); });
    for (const double bad : {0.0, -1.0, kInfinity, std::nan("")}) {
        fails(ErrorKind::value, "repetition", [&] { ops::penalize(logits, {.repetition = bad}); });
    }
    fails(ErrorKind::value, "presence", [&] { ops::penalize(logits, {.presence = std::nan("")}); });
    fails(ErrorKind::value, "frequency", [&] { ops::penalize(logits, {.frequency = kInfinity}); });
    fails(ErrorKind::type, "prompt", [&] { ops::penalize(logits, {.prompt = &both}); });
    fails(ErrorKind::value, "bias", [&] { ops::penalize(logits, {.bias = &one}); });
    fails(ErrorKind::value, "'k'", [&] { ops::top_k(logits, 0); });
    fails(ErrorKind::value, "'k'", [&] { ops::top_k(logits, 3); });
    fails(ErrorKind::value, "'k'",
          [&] { ops::top_k(upload(normals(3000, 1, 1), {3000}, DType::float32), 2049); });
    fails(ErrorKind::type, "x", [&] { ops::top_k(wrong, 1); });
}

// -- top_k ----------------------------------------------------------------------------------------------

TEST(TopK, AgreesWithASort) {
    for (const DType dtype : {DType::float32, DType::float16, DType::bfloat16}) {
        for (const std::int64_t n : {1, 7, 1000, 40000}) {
            std::vector<double> x = normals(2 * n, 3, static_cast<unsigned>(n));
            if (n > 100) {
                x[50] = std::nan(""), x[60] = kInfinity, x[70] = -kInfinity;
                for (std::int64_t i = 500; i < 900; ++i) x[static_cast<std::size_t>(n + i)] = 2;
            }
            const Array array = upload(x, {2, n}, dtype);
            x = download(array);  // as the dtype has them
            for (const std::int64_t k : {std::int64_t{1}, std::int64_t{50}, std::int64_t{2048}}) {
                if (k > n) continue;
                const auto [values, indices] = ops::top_k(array, k);
                ASSERT_EQ(values.shape(), (Dims{2, k}));
                const auto got_values = download(values), got = download(indices);
                for (std::int64_t row = 0; row < 2; ++row) {
                    const double* of_row = x.data() + row * n;
                    std::vector<std::int64_t> order(static_cast<std::size_t>(n));
                    std::iota(order.begin(), order.end(), 0);
                    std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) {
                        return std::isnan(of_row[a]) ? !std::isnan(of_row[b]) : of_row[a] > of_row[b];
                    });
                    for (std::int64_t i = 0; i < k; ++i) {
                        const auto at = static_cast<std::size_t>(row * k + i);
                        ASSERT_EQ(got[at], static_cast<double>(order[static_cast<std::size_t>(i)]))
                            << name(dtype) << " n " << n << " k " << k << " place " << i;
                        const double expected = of_row[order[static_cast<std::size_t>(i)]];
                        ASSERT_TRUE(got_values[at] == expected || std::isnan(expected));
                    }
                }
            }
        }
    }
}

// Rows that few_largest cannot narrow down: equals, and the largest all in one place.
TEST(TopK, OfRowsWithoutSpread) {
    for (const std::int64_t n : {std::int64_t{5000}, std::int64_t{200'000}}) {
        std::vector<double> x(static_cast<std::size_t>(3 * n), 1);
        for (std::int64_t i = 0; i < n; ++i) {
            x[static_cast<std::size_t>(n + i)] = static_cast<double>(-i);
            x[static_cast<std::size_t>(2 * n + i)] = static_cast<double>(i / 4096 % 2);
        }
        const auto got = download(ops::top_k(upload(x, {3, n}, DType::float32), 100).second);
        for (std::size_t i = 0; i < 100; ++i) {
            EXPECT_EQ(got[i], static_cast<double>(i));
            EXPECT_EQ(got[100 + i], static_cast<double>(i));
            EXPECT_EQ(got[200 + i], static_cast<double>(i + (n > 4096 ? 4096 : 0)));
        }
    }
}

TEST(TopK, TakesViewsAndNothing) {
    const Array x = upload(normals(40, 1, 1), {4, 10}, DType::float32);
    const Array turned = ops::contiguous(x.transpose({1, 0})).transpose({1, 0});
    EXPECT_EQ(download(ops::top_k(turned, 3).second), download(ops::top_k(x, 3).second));
    EXPECT_EQ(ops::top_k(upload({}, {0, 5}, DType::float32), 2).first.shape(), (Dims{0, 2}));
    EXPECT_EQ(ops::top_k(x.select(0, 0), 2).first.shape(), (Dims{2}));
}

}  // namespace
