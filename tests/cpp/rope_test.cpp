#include <gtest/gtest.h>

#include "base/error.hpp"
#include "model_support.hpp"
#include "ops/attention.hpp"
#include "ops/elementwise.hpp"

namespace {

using namespace gpk;

std::vector<float> frequencies(std::int64_t pairs) {
    std::vector<float> values;
    for (std::int64_t i = 0; i < pairs; ++i) {
        values.push_back(static_cast<float>(std::pow(10000.0, -double(i) / double(pairs))));
    }
    return values;
}

// x: [tokens, heads, d]. The angle is rounded to float32, as transformers rounds it.
std::vector<double> reference(const std::vector<float>& x, std::size_t heads, std::size_t d, int position,
                              const std::vector<float>& freq, double factor) {
    std::vector<double> y(x.begin(), x.end());
    const std::size_t pairs = freq.size();
    for (std::size_t row = 0; row < x.size() / d; ++row) {
        const auto at = static_cast<float>(position + static_cast<int>(row / heads));
        for (std::size_t i = 0; i < pairs; ++i) {
            const double angle = at * freq[i], a = x[row * d + i], b = x[row * d + i + pairs];
            y[row * d + i] = (a * std::cos(angle) - b * std::sin(angle)) * factor;
            y[row * d + i + pairs] = (b * std::cos(angle) + a * std::sin(angle)) * factor;
        }
    }
    return y;
}

TEST(Rope, MatchesFloat64) {
    for (const DType dtype : kModelFloats) {
        for (const std::int64_t d : {2, 12, 64, 128}) {
            for (const int position : {0, 5, 100'000}) {
                const auto x = rounded(random_floats(4 * 3 * d, 1), dtype), freq = frequencies(d / 2);
                const Array table = upload(freq, {d / 2});
                const Array y = ops::rope(upload(x, {4, 3, d}, dtype), upload_ints({position}), {table, 1.5});
                const auto expected = reference(x, 3, static_cast<std::size_t>(d), position, freq, 1.5);
                EXPECT_LE(worst_error(download(y), expected), 2 * rounding(dtype)) << d << " at " << position;
            }
        }
    }
}

TEST(Rope, RotatesPartOfAHeadInPlaceAndReadsStrides) {
    const std::vector<float> freq = {1.0f, 0.5f};
    const Array table = upload(freq, {2});
    const auto x = random_floats(3 * 4 * 8, 2);
    const Array whole = upload(x, {3, 4, 8});
    const Array part = whole.slice(1, 1, 1, 2);  // two of four heads: gaps between tokens
    std::vector<float> picked;
    for (std::size_t token = 0; token < 3; ++token) {
        picked.insert(picked.end(), x.begin() + long(token * 32 + 8), x.begin() + long(token * 32 + 24));
    }
    const auto expected = reference(picked, 2, 8, 7, freq, 1);
    EXPECT_LE(worst_error(download(ops::rope(part, upload_ints({7}), {table})), expected), 1e-6);
    ops::rope(part, upload_ints({7}), {table}, &part);
    const auto after = download(whole);
    for (std::size_t i = 0; i < x.size(); ++i) {
        const std::size_t token = i / 32, column = i % 32;
        if (column < 8 || column >= 24) {
            EXPECT_EQ(after[i], x[i]);
        } else {
            EXPECT_NEAR(after[i], expected[token * 16 + column - 8], 1e-5);
        }
    }
}

// A batch, whose tokens have the same positions: each its own, or one after another.
TEST(Rope, TurnsABatchByThePositionOfEachToken) {
    constexpr std::int64_t batch = 2, tokens = 3, heads = 2, d = 8;
    const auto freq = frequencies(d / 2);
    const Array table = upload(freq, {d / 2});
    const auto x = random_floats(batch * tokens * heads * d, 5);
    const Array whole = upload(x, {batch, tokens, heads, d});
    const std::vector<std::int32_t> positions = {11, 0, 70'000};
    const auto each = download(ops::rope(whole, upload_ints(positions), {table}));
    const auto running = download(ops::rope(whole, upload_ints({4}), {table}));
    for (std::size_t row = 0; row < static_cast<std::size_t>(batch * tokens); ++row) {
        const std::size_t length = heads * d;
        const std::vector<float> part(x.begin() + long(row * length), x.begin() + long((row + 1) * length));
        const auto at = [&](const auto& all) {
            return std::vector(all.begin() + long(row * length), all.begin() + long((row + 1) * length));
        };
        const auto token = row % tokens;
        EXPECT_LE(worst_error(at(each), reference(part, heads, d, positions[token], freq, 1)), 1e-6);
        EXPECT_LE(worst_error(at(running), reference(part, heads, d, 4 + int(token), freq, 1)), 1e-6);
    }
    // Tokens first, as some models lay them: the batch's stride is the smaller one.
    const Array turned = whole.transpose({1, 0, 2, 3});
    const auto other = download(ops::rope(turned, upload_ints({4}), {table}));
    const auto again =
        download(ops::contiguous(ops::rope(ops::contiguous(turned), upload_ints({4}), {table})));
    EXPECT_EQ(other, again);
}

TEST(Rope, RefusesWhatDoesNotFit) {
    const Array x = upload(random_floats(12, 1), {2, 1, 6}), table = upload({1, 1, 1}, {3});
    EXPECT_THROW(ops::rope(upload({1, 2, 3}, {1, 1, 3}), upload_ints({0}), {table}), Error);
    EXPECT_THROW(ops::rope(x, upload_ints({0, 1, 2}), {table}), Error);
    EXPECT_THROW(ops::rope(x.select(0, 0), upload_ints({0}), {table}), Error);
    EXPECT_THROW(ops::rope(x, upload({0}, {1}), {table}), Error);
    const Array long_table = upload({1, 1, 1, 1}, {4});
    EXPECT_THROW(ops::rope(x, upload_ints({0}), {long_table}), Error);
}

// RMSNorm of each head, where there are weights.
std::vector<float> normalized(std::vector<float> x, std::size_t d, const std::vector<float>& weights) {
    for (std::size_t head = 0; head < x.size() && !weights.empty(); head += d) {
        double squares = 0;
        for (std::size_t i = 0; i < d; ++i) squares += x[head + i] * x[head + i];
        const double scale = 1 / std::sqrt(squares / static_cast<double>(d) + 1e-5);
        for (std::size_t i = 0; i < d; ++i)
            x[head + i] = static_cast<float>(x[head + i] * scale * weights[i]);
    }
    return x;
}

struct AppendCase {
    std::int64_t batch, tokens, heads, kv_heads, d;
    bool norms;
};

TEST(KvAppend, WritesNormalizedAndRotatedKeysAndValuesAtThePositions) {
    const AppendCase cases[] = {{1, 3, 4, 2, 2, false},   {2, 3, 4, 2, 12, false}, {3, 1, 6, 2, 64, true},
                                {1, 5, 32, 8, 128, true}, {2, 2, 3, 1, 256, true}, {1, 300, 9, 3, 64, false}};
    for (const AppendCase& c : cases) {
        for (const DType dtype : kModelFloats) {
            const std::int64_t all_heads = c.heads + 2 * c.kv_heads, width = all_heads * c.d;
            const std::int64_t capacity = c.tokens + 6;
            const std::vector<std::int32_t> positions = {5, 0, 2};  // of each sequence; the first loses none
            const auto values = rounded(random_floats(c.batch * c.tokens * width, 3), dtype);
            const auto freq = frequencies(c.d / 2);
            std::vector<float> q_weights, k_weights;
            if (c.norms) {
                q_weights = rounded(random_floats(c.d, 5), dtype);
                k_weights = rounded(random_floats(c.d, 6), dtype);
            }
            const Array fused = upload(values, {c.batch, c.tokens, all_heads, c.d}, dtype);
            const Array q = fused.slice(2, 0, 1, c.heads), k = fused.slice(2, c.heads, 1, c.kv_heads);
            const Array v = fused.slice(2, c.heads + c.kv_heads, 1, c.kv_heads);
            const std::vector<float> marks(static_cast<std::size_t>(c.batch * c.kv_heads * capacity * c.d),
                                           7.0f);
            const Array keys = upload(marks, {c.batch, c.kv_heads, capacity, c.d}, dtype);
            const Array stored = upload(marks, {c.batch, c.kv_heads, capacity, c.d}, dtype);
            const Array table = upload(freq, {c.d / 2});
            const ops::Rope rope{table};
            const Array places = upload_ints({positions.begin(), positions.begin() + c.batch});
            const Array q_norm = c.norms ? upload(q_weights, {c.d}, dtype) : Array();
            const Array k_norm = c.norms ? upload(k_weights, {c.d}, dtype) : Array();
            ops::kv_append(k, v, keys, stored, places,
                           {.rope = &rope,
                            .q = &q,
                            .q_norm = c.norms ? &q_norm : nullptr,
                            .k_norm = c.norms ? &k_norm : nullptr,
                            .norm_eps = 1e-5});

            const auto d = static_cast<std::size_t>(c.d);
            std::vector<double> expected_k(marks.begin(), marks.end()), expected_v = expected_k;
            std::vector<double> expected_fused(values.begin(), values.end());
            for (std::int64_t row = 0; row < c.batch * c.tokens; ++row) {
                const std::int64_t sequence = row / c.tokens, token = row % c.tokens;
                const int position = positions[static_cast<std::size_t>(sequence)] + static_cast<int>(token);
                const auto heads_of = [&](std::int64_t first, std::int64_t count) {
                    const auto begin = values.begin() + row * width + first * c.d;
                    return std::vector<float>(begin, begin + count * c.d);
                };
                const auto turned = [&](const std::vector<float>& x, const std::vector<float>& weights) {
                    return reference(normalized(x, d, weights), x.size() / d, d, position, freq, 1);
                };
                const auto turned_q = turned(heads_of(0, c.heads), q_weights);
                const auto turned_k = turned(heads_of(c.heads, c.kv_heads), k_weights);
                const auto same_v = heads_of(c.heads + c.kv_heads, c.kv_heads);
                std::copy(turned_q.begin(), turned_q.end(), expected_fused.begin() + row * width);
                if (position >= capacity) continue;
                for (std::int64_t i = 0; i < c.kv_heads * c.d; ++i) {
                    const std::int64_t head = i / c.d;
                    const auto at = static_cast<std::size_t>(
                        ((sequence * c.kv_heads + head) * capacity + position) * c.d + i % c.d);
                    expected_k[at] = turned_k[static_cast<std::size_t>(i)];
                    expected_v[at] = same_v[static_cast<std::size_t>(i)];
                }
            }
            // Angles of hundreds of radians are themselves rounded to float32.
            const double bound = 2 * rounding(dtype) + (c.tokens > 100 ? 3e-5 : 0);
            EXPECT_LE(worst_error(download(keys), expected_k), bound) << c.d << name(dtype);
            EXPECT_EQ(worst_error(download(stored), expected_v), 0);
            EXPECT_LE(worst_error(download(fused), expected_fused), bound) << c.d << name(dtype);
        }
    }
}

// What a cache of the same type would hold, rounded once more; what is too large becomes the largest.
TEST(KvAppend, WritesFloat8) {
    constexpr std::int64_t kTokens = 5, kHeads = 2, kDim = 64;
    const Dims shape{1, kTokens, kHeads, kDim}, cache{1, kHeads, 8, kDim};
    const Array at = upload_ints({2}), table = upload(frequencies(kDim / 2), {kDim / 2});
    const ops::Rope rope{table};
    for (const DType dtype : kModelFloats) {
        auto k = rounded(random_floats(element_count(shape), 1, 4.0f), dtype), v = k;
        std::reverse(v.begin(), v.end());
        v[0] = 1000, v[1] = -1000, v[2] = NAN, v[3] = 1e-4f;
        const auto append = [&](DType stored) {
            const Array keys = Array::empty(test_device(), cache, stored),
                        values = Array::empty(test_device(), cache, stored);
            for (const Array* each : {&keys, &values}) ops::assign(*each, 0.0);
            ops::kv_append(upload(k, shape, dtype), upload(v, shape, dtype), keys, values, at,
                           {.rope = &rope});
            return std::pair(download(ops::astype(keys, DType::float32)),
                             download(ops::astype(values, DType::float32)));
        };
        const auto [keys, values] = append(DType::float8_e4m3);
        const auto [exact_keys, exact_values] = append(dtype);
        for (std::size_t i = 0; i < keys.size(); ++i) {
            // Half a step of 3 bits, and what the type of the exact ones is rounded by itself.
            const float bound = std::max(std::abs(exact_keys[i]) * (0.0625f + 0.01f), 0x1p-10f);
            ASSERT_LE(std::abs(keys[i] - exact_keys[i]), bound) << name(dtype) << " " << i;
            if (std::isnan(exact_values[i])) {
                ASSERT_TRUE(std::isnan(values[i]));
                continue;
            }
            const float largest = std::clamp(exact_values[i], -448.0f, 448.0f);
            ASSERT_EQ(values[i], static_cast<float>(float8_e4m3(largest))) << name(dtype) << " " << i;
        }
    }
}

TEST(KvAppend, DropsTokensPastTheEndAndCopiesWithoutRope) {
    const Array k = upload({1, 2, 3, 4}, {1, 2, 1, 2}), v = upload({5, 6, 7, 8}, {1, 2, 1, 2});
    const Array keys = upload({0, 0, 0, 0}, {1, 1, 2, 2}), values = upload({0, 0, 0, 0}, {1, 1, 2, 2});
    ops::kv_append(k, v, keys, values, upload_ints({1}));
    EXPECT_EQ(download(keys), (std::vector<float>{0, 0, 1, 2}));
    EXPECT_EQ(download(values), (std::vector<float>{0, 0, 5, 6}));
    ops::kv_append(k, v, keys, values, upload_ints({-1}));
    EXPECT_EQ(download(keys), (std::vector<float>{3, 4, 1, 2}));
    for (const int far : {2, INT32_MAX, INT32_MIN}) ops::kv_append(k, v, keys, values, upload_ints({far}));
    EXPECT_EQ(download(keys), (std::vector<float>{3, 4, 1, 2}));
}

TEST(KvAppend, RefusesWhatDoesNotFit) {
    const Array k = upload({1, 2, 3, 4}, {1, 2, 1, 2}), keys = upload({0, 0, 0, 0}, {1, 1, 2, 2});
    const Array positions = upload_ints({0}), norm = upload({1, 1}, {2});
    const auto refuses = [&](const Array& to_keys, const Array& to_values, const Array& at,
                             const ops::KvAppendOptions& options) {
        EXPECT_THROW(ops::kv_append(k, k, to_keys, to_values, at, options), Error);
    };
    refuses(keys.readonly(), keys, positions, {});
    refuses(keys, upload({0, 0}, {1, 1, 1, 2}), positions, {});
    refuses(Array::empty(test_device(), {1, 1, 2, 2}, DType::float8_e4m3), keys, positions, {});
    refuses(Array::empty(test_device(), {1, 1, 2, 2}, DType::float16), keys, positions, {});
    refuses(upload({0, 0, 0, 0}, {1, 2, 2}), keys, positions, {});
    refuses(keys, keys, upload_ints({0, 0}), {});
    refuses(keys, keys, positions, {.q_norm = &norm});
    refuses(keys, keys, positions, {.q = &k});
    const Array wide = upload({1, 1, 1}, {3});
    refuses(keys, keys, positions, {.k_norm = &wide});
    refuses(keys, keys, positions, {.k_norm = &norm, .norm_eps = -1});
    EXPECT_EQ(download(keys), (std::vector<float>{0, 0, 0, 0}));
}

}  // namespace
