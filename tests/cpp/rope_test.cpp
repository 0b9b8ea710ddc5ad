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

TEST(KvAppend, WritesRotatedKeysAndValuesAtThePosition) {
    for (const DType dtype : kModelFloats) {
        for (const std::int64_t d : {2, 12, 64}) {
            const std::int64_t tokens = 3, heads = 4, kv_heads = 2, capacity = 9,
                               width = (heads + 2 * kv_heads) * d;
            const int position = 5;
            const auto values = rounded(random_floats(tokens * width, 3), dtype), freq = frequencies(d / 2);
            const Array fused = upload(values, {tokens, heads + 2 * kv_heads, d}, dtype);
            const Array q = fused.slice(1, 0, 1, heads), k = fused.slice(1, heads, 1, kv_heads);
            const Array v = fused.slice(1, heads + kv_heads, 1, kv_heads);
            const std::vector<float> marks(static_cast<std::size_t>(kv_heads * capacity * d), 7.0f);
            const Array cache_k = upload(marks, {kv_heads, capacity, d}, dtype);
            const Array cache_v = upload(marks, {kv_heads, capacity, d}, dtype);
            const Array table = upload(freq, {d / 2});
            const ops::Rope rope{table};
            ops::kv_append(k, v, cache_k, cache_v, upload_ints({position}), &rope, &q);

            const auto turned = reference(values, static_cast<std::size_t>(heads + 2 * kv_heads),
                                          static_cast<std::size_t>(d), position, freq, 1);
            const auto row_of = [&](std::int64_t token, std::int64_t head) {
                return static_cast<std::size_t>((token * (heads + 2 * kv_heads) + head) * d);
            };
            std::vector<double> expected_k(marks.begin(), marks.end()), expected_v = expected_k;
            std::vector<double> expected_fused(values.begin(), values.end());
            for (std::int64_t token = 0; token < tokens; ++token) {
                for (std::int64_t i = 0; i < heads * d; ++i) {
                    const std::size_t at = row_of(token, 0) + static_cast<std::size_t>(i);
                    expected_fused[at] = turned[at];
                }
                for (std::int64_t head = 0; head < kv_heads; ++head) {
                    for (std::int64_t i = 0; i < d; ++i) {
                        const auto at =
                            static_cast<std::size_t>((head * capacity + position + token) * d + i);
                        expected_k[at] = turned[row_of(token, heads + head) + static_cast<std::size_t>(i)];
                        expected_v[at] =
                            values[row_of(token, heads + kv_heads + head) + static_cast<std::size_t>(i)];
                    }
                }
            }
            EXPECT_LE(worst_error(download(cache_k), expected_k), 2 * rounding(dtype));
            EXPECT_EQ(worst_error(download(cache_v), expected_v), 0);
            EXPECT_LE(worst_error(download(fused), expected_fused), 2 * rounding(dtype));
        }
    }
}

TEST(KvAppend, DropsTokensPastTheEndAndCopiesWithoutRope) {
    const Array k = upload({1, 2, 3, 4}, {2, 1, 2}), v = upload({5, 6, 7, 8}, {2, 1, 2});
    const Array keys = upload({0, 0, 0, 0}, {1, 2, 2}), values = upload({0, 0, 0, 0}, {1, 2, 2});
    ops::kv_append(k, v, keys, values, upload_ints({1}));
    EXPECT_EQ(download(keys), (std::vector<float>{0, 0, 1, 2}));
    EXPECT_EQ(download(values), (std::vector<float>{0, 0, 5, 6}));
    const Array readonly = keys.readonly();
    EXPECT_THROW(ops::kv_append(k, v, readonly, values, upload_ints({0})), Error);
    EXPECT_THROW(ops::kv_append(k, v, keys, upload({0, 0}, {1, 1, 2}), upload_ints({0})), Error);
}

}  // namespace
