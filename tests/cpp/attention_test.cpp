#include <gtest/gtest.h>

#include "base/error.hpp"
#include "model_support.hpp"
#include "ops/attention.hpp"
#include "ops/elementwise.hpp"
#include "runtime/graph.hpp"

namespace {

using namespace gpk;

struct Sizes {
    std::int64_t tokens, heads, kv_heads, d, capacity;
    int position;
};

std::vector<double> reference(const std::vector<float>& q, const std::vector<float>& k,
                              const std::vector<float>& v, const Sizes& s, double scale) {
    std::vector<double> out(q.size());
    const auto d = static_cast<std::size_t>(s.d);
    for (std::int64_t token = 0; token < s.tokens; ++token) {
        const std::int64_t length = std::min<std::int64_t>(s.position + token + 1, s.capacity);
        for (std::int64_t head = 0; head < s.heads; ++head) {
            const float* query = q.data() + (token * s.heads + head) * s.d;
            const std::int64_t kv_head = head / (s.heads / s.kv_heads);
            std::vector<double> scores;
            for (std::int64_t key = 0; key < length; ++key) {
                const float* row = k.data() + (kv_head * s.capacity + key) * s.d;
                double dot = 0;
                for (std::size_t i = 0; i < d; ++i) dot += double(query[i]) * row[i];
                scores.push_back(dot * scale);
            }
            const double highest = *std::max_element(scores.begin(), scores.end());
            double sum = 0;
            for (double& score : scores) sum += score = std::exp(score - highest);
            double* y = out.data() + (token * s.heads + head) * s.d;
            for (std::int64_t key = 0; key < length; ++key) {
                const float* row = v.data() + (kv_head * s.capacity + key) * s.d;
                for (std::size_t i = 0; i < d; ++i)
                    y[i] += scores[static_cast<std::size_t>(key)] / sum * row[i];
            }
        }
    }
    return out;
}

// Of one sequence: q [tokens, heads, d] over a cache [kv_heads, capacity, d].
Array over_cache(const Array& q, const Array& keys, const Array& values, const Array& position, double scale,
                 const Array* out = nullptr) {
    const Array target = out != nullptr ? out->expand_dims(0) : Array();
    const Array y = ops::attention_cached(q.expand_dims(0), keys.expand_dims(0), values.expand_dims(0),
                                          position, {}, {.scale = scale}, out != nullptr ? &target : nullptr);
    return y.select(0, 0);
}

void check(const Sizes& s, DType dtype) {
    const auto q = rounded(random_floats(s.tokens * s.heads * s.d, 1), dtype);
    auto k = rounded(random_floats(s.kv_heads * s.capacity * s.d, 2), dtype);
    auto v = rounded(random_floats(s.kv_heads * s.capacity * s.d, 3), dtype);
    const double scale = 1 / std::sqrt(double(s.d));
    const auto expected = reference(q, k, v, s, scale);
    // Rows past the length must not be looked at.
    for (std::int64_t head = 0; head < s.kv_heads; ++head) {
        for (std::int64_t key = s.position + s.tokens; key < s.capacity; ++key) {
            for (std::int64_t i = 0; i < s.d; ++i) {
                k[static_cast<std::size_t>((head * s.capacity + key) * s.d + i)] = NAN;
                v[static_cast<std::size_t>((head * s.capacity + key) * s.d + i)] = NAN;
            }
        }
    }
    const Dims cache{s.kv_heads, s.capacity, s.d};
    const Array y = over_cache(upload(q, {s.tokens, s.heads, s.d}, dtype), upload(k, cache, dtype),
                               upload(v, cache, dtype), upload_ints({s.position}), scale);
    EXPECT_EQ(y.shape(), (Dims{s.tokens, s.heads, s.d}));
    EXPECT_LE(worst_error(download(y), expected), 4 * rounding(dtype))
        << name(dtype) << " tokens " << s.tokens << " heads " << s.heads << "/" << s.kv_heads << " d " << s.d
        << " capacity " << s.capacity << " position " << s.position;
}

TEST(Attention, DecodeMatchesFloat64) {
    for (const DType dtype : kModelFloats) {
        for (const std::int64_t d : {2, 12, 16, 64, 80, 128, 256}) {
            check({1, 4, 4, d, 40, 0}, dtype);
            check({1, 9, 3, d, 300, 211}, dtype);   // groups of three
            check({1, 14, 2, d, 130, 129}, dtype);  // groups of seven: two tiles, the cache full
        }
        check({1, 8, 2, 64, 3000, 2777}, dtype);  // many splits
        check({3, 6, 2, 64, 500, 300}, dtype);    // a few tokens at once
    }
}

TEST(Attention, PrefillMatchesFloat64) {
    for (const DType dtype : kModelFloats) {
        for (const std::int64_t d : {2, 12, 16, 64, 80, 128, 256}) {
            check({9, 4, 4, d, 40, 0}, dtype);
            check({33, 6, 2, d, 70, 20}, dtype);
            check({70, 3, 1, d, 70, 0}, dtype);
        }
        check({200, 2, 1, 64, 1000, 600}, dtype);
    }
}

TEST(Attention, TokensPastTheEndSeeTheWholeCache) { check({12, 2, 1, 16, 20, 15}, DType::float32); }

TEST(Attention, ReadsSlicesOfAFusedArrayAndOfTheCache) {
    const Sizes s{2, 4, 2, 16, 8, 3};
    const auto fused = random_floats(2 * 8 * 16, 1), cache = random_floats(2 * 2 * 8 * 16, 2);
    std::vector<float> q;
    for (std::size_t i = 0; i < fused.size(); ++i) {
        if (i / 16 % 8 < 4) q.push_back(fused[i]);
    }
    const std::vector<float> k(cache.begin(), cache.begin() + 256), v(cache.begin() + 256, cache.end());
    const Array both = upload(cache, {2, 2, 8, 16});
    const Array y = over_cache(upload(fused, {2, 8, 16}).slice(1, 0, 1, 4), both.select(0, 0),
                               both.select(0, 1), upload_ints({3}), 0.25);
    EXPECT_LE(worst_error(download(y), reference(q, k, v, s, 0.25)), 4e-6);
}

TEST(Attention, LargeScoresDoNotOverflow) {
    const Array q = upload({100, 100}, {1, 1, 2}), k = upload({100, 100, -100, -100}, {1, 2, 2});
    const Array v = upload({1, 2, 3, 4}, {1, 2, 2});
    EXPECT_EQ(download(over_cache(q, k, v, upload_ints({1}), 1.0)), (std::vector<float>{1, 2}));
}

TEST(Attention, ACapturedCallFollowsThePosition) {
    const auto q = random_floats(6 * 64, 1), k = random_floats(2 * 700 * 64, 2),
               v = random_floats(2 * 700 * 64, 3);
    const Array query = upload(q, {1, 6, 64}), keys = upload(k, {2, 700, 64}),
                values = upload(v, {2, 700, 64});
    const Array position = upload_ints({0}), out = Array::empty(test_device(), {1, 6, 64}, DType::float32);
    const auto run = [&] { over_cache(query, keys, values, position, 0.125, &out); };
    run();
    const auto stream = current_stream(test_device());
    const auto graph = Graph::capture(stream, run);
    for (const int at : {0, 63, 64, 300, 699, 1}) {
        position.copy_from_host(&at);
        graph->launch(stream);
        const Sizes here{1, 6, 2, 64, 700, at};
        EXPECT_LE(worst_error(download(out), reference(q, k, v, here, 0.125)), 4e-6) << at;
    }
}

// The calls of a graph share the memory through which their blocks join what they found, and leave it as it
// was: one fill serves all, at each launch, however many blocks a call has.
TEST(Attention, CallsOfAGraphShareTheirPartialResults) {
    constexpr int kPositions[] = {650, 40, 699, 300};
    constexpr std::size_t kCalls = std::size(kPositions);
    for (const DType dtype : kModelFloats) {
        const auto q = rounded(random_floats(6 * 64, 1), dtype),
                   k = rounded(random_floats(2 * 700 * 64, 2), dtype),
                   v = rounded(random_floats(2 * 700 * 64, 3), dtype);
        const Array query = upload(q, {1, 6, 64}, dtype), keys = upload(k, {2, 700, 64}, dtype),
                    values = upload(v, {2, 700, 64}, dtype);
        std::vector<Array> outs, positions;
        for (const int position : kPositions) {
            outs.push_back(Array::empty(test_device(), {1, 6, 64}, dtype));
            positions.push_back(upload_ints({position}));
        }
        over_cache(query, keys, values, positions[0], 0.125, &outs[0]);
        const auto stream = current_stream(test_device());
        const auto graph = Graph::capture(stream, [&] {
            for (std::size_t i = 0; i < kCalls; ++i) {
                over_cache(query, keys, values, positions[i], 0.125, &outs[i]);
            }
        });
        EXPECT_LE(graph->node_count(), kCalls + 1u);
        for (int round = 0; round < 3; ++round) {
            for (const Array& out : outs) ops::assign(out, query);
            graph->launch(stream);
            for (std::size_t i = 0; i < kCalls; ++i) {
                const auto expected = reference(q, k, v, {1, 6, 2, 64, 700, kPositions[i]}, 0.125);
                EXPECT_LE(worst_error(download(outs[i]), expected), 4 * rounding(dtype))
                    << name(dtype) << " " << kPositions[i] << " " << round;
            }
        }
    }
}

TEST(Attention, HandlesNoTokensAndRefusesTheRest) {
    const Array keys = upload(random_floats(2 * 4 * 6, 1), {2, 4, 6});
    const Array position = upload_ints({0});
    EXPECT_EQ(over_cache(upload({}, {0, 2, 6}), keys, keys, position, 1).shape(), (Dims{0, 2, 6}));
    EXPECT_THROW(over_cache(upload(random_floats(18, 1), {1, 3, 6}), keys, keys, position, 1),
                 Error);  // 3 of 2
    EXPECT_THROW(over_cache(upload(random_floats(8, 1), {1, 2, 4}), keys, keys, position, 1),
                 Error);  // d
    EXPECT_THROW(over_cache(upload(random_floats(12, 1), {1, 2, 6}, DType::float16), keys, keys, position, 1),
                 Error);
    const Array wide = upload(random_floats(300, 1), {1, 1, 300}),
                wide_keys = upload(random_floats(300, 1), {1, 1, 300});
    EXPECT_THROW(over_cache(wide, wide_keys, wide_keys, position, 1), Error);
}

// Batches of sequences of different lengths, in one piece and in pages.
struct CachedCase {
    std::int64_t batch, tokens, heads, kv_heads, d, capacity;
    std::vector<std::int32_t> positions;
    std::int64_t page_tokens = 16;
};

void check_cached(const CachedCase& c, DType dtype, DType stored, bool paged) {
    const std::int64_t page_tokens = c.page_tokens;
    const std::int64_t rows = c.batch * c.kv_heads * c.capacity * c.d;
    const bool narrow = stored == DType::float8_e4m3;
    const auto store = [&](std::vector<float> x) {
        if (!narrow) return rounded(std::move(x), dtype);
        for (float& value : x) value = float(float8_e4m3(value));
        return x;
    };
    const auto q = rounded(random_floats(c.batch * c.tokens * c.heads * c.d, 1), dtype);
    auto k = store(random_floats(rows, 2)), v = store(random_floats(rows, 3));
    for (std::int64_t i = 0; i < rows; ++i) {  // what no token sees may be anything
        const std::int64_t key = i / c.d % c.capacity, b = i / c.d / c.capacity / c.kv_heads;
        if (key >= c.positions[static_cast<std::size_t>(b)] + c.tokens) {
            k[static_cast<std::size_t>(i)] = v[static_cast<std::size_t>(i)] = NAN;
        }
    }
    const double key_scale = narrow ? 0.5 : 1, value_scale = narrow ? 2 : 1;
    const double scale = 1 / std::sqrt(double(c.d));

    // Sequence b's page i is page (b + batch * i) of the pool.
    const std::int64_t pages = c.capacity / page_tokens;
    std::vector<std::int32_t> table;
    for (std::int64_t b = 0; b < c.batch; ++b) {
        for (std::int64_t i = 0; i < pages; ++i) table.push_back(static_cast<std::int32_t>(b + c.batch * i));
    }
    const auto upload_cache = [&](const std::vector<float>& x) {
        Dims shape{c.batch, c.kv_heads, c.capacity, c.d};
        std::vector<float> ordered = x;
        if (paged) {
            shape = {c.batch * pages, c.kv_heads, page_tokens, c.d};
            std::size_t to = 0;
            for (std::int64_t page = 0; page < c.batch * pages; ++page) {
                for (std::int64_t head = 0; head < c.kv_heads; ++head) {
                    const std::int64_t from =
                        (page % c.batch * c.kv_heads + head) * c.capacity + page / c.batch * page_tokens;
                    std::copy_n(x.begin() + from * c.d, page_tokens * c.d,
                                ordered.begin() + static_cast<std::ptrdiff_t>(to));
                    to += static_cast<std::size_t>(page_tokens * c.d);
                }
            }
        }
        if (!narrow) return upload(ordered, shape, dtype);
        std::vector<std::uint8_t> bits;
        for (const float value : ordered) bits.push_back(float8_e4m3(value).bits);
        const Array array = Array::empty(test_device(), shape, stored);
        array.copy_from_host(bits.data());
        return array;
    };
    const Array pages_array = upload_ints(table);
    const Array numbers = *pages_array.reshape_view({c.batch, pages});
    const ops::CacheOptions cache{
        .pages = paged ? &numbers : nullptr, .key_scale = key_scale, .value_scale = value_scale};
    const auto got =
        download(ops::attention_cached(upload(q, {c.batch, c.tokens, c.heads, c.d}, dtype), upload_cache(k),
                                       upload_cache(v), upload_ints(c.positions), cache, {}));
    const auto of_query = static_cast<std::ptrdiff_t>(c.tokens * c.heads * c.d),
               of_cache = static_cast<std::ptrdiff_t>(c.kv_heads * c.capacity * c.d);
    for (std::int64_t b = 0; b < c.batch; ++b) {
        const auto part = [&](const std::vector<float>& x, std::ptrdiff_t size) {
            return std::vector<float>(x.begin() + b * size, x.begin() + (b + 1) * size);
        };
        const Sizes s{c.tokens, c.heads,    c.kv_heads,
                      c.d,      c.capacity, c.positions[static_cast<std::size_t>(b)]};
        auto expected =
            reference(part(q, of_query), part(k, of_cache), part(v, of_cache), s, scale * key_scale);
        for (double& value : expected) value *= value_scale;
        EXPECT_LE(worst_error(part(got, of_query), expected), 4 * rounding(dtype))
            << name(dtype) << " over " << name(stored) << " paged " << paged << " d " << c.d << " sequence "
            << b;
    }
}

TEST(AttentionCached, MatchesFloat64) {
    for (const bool paged : {false, true}) {
        for (const DType dtype : kModelFloats) {
            for (const std::int64_t d : {16, 64, 128, 256}) {
                const CachedCase c{3, 2, 8, 2, d, 400, {7, 398, 211}};
                check_cached(c, dtype, dtype, paged);
                check_cached(c, dtype, DType::float8_e4m3, paged);
            }
            for (const DType stored : {dtype, DType::float8_e4m3}) {
                check_cached({2, 1, 7, 1, 12, 160, {0, 150}}, dtype, stored, paged);
            }
            check_cached({1, 30, 4, 2, 64, 96, {50}}, dtype, dtype, paged);
        }
    }
}

// A prompt, or a part of one, over what is cached before it.
TEST(AttentionCached, PromptsMatchFloat64) {
    for (const DType dtype : kModelFloats) {
        for (const std::int64_t d : {12, 64, 96, 128, 256}) {
            check_cached({2, 70, 4, 2, d, 416, {0, 333}}, dtype, dtype, false);
            check_cached({2, 70, 4, 2, d, 416, {17, 346}}, dtype, dtype, true);
        }
        // Pages that steps of keys share, that hold several steps, and that no tensor map suits.
        for (const std::int64_t page : {8, 32, 48, 208, 13}) {
            check_cached({2, 40, 4, 1, 128, 416, {5, 300}, page}, dtype, dtype, true);
        }
        for (const bool paged : {false, true}) {
            check_cached({2, 12, 4, 2, 64, 96, {3, 60}}, dtype, DType::float8_e4m3, paged);
            check_cached({2, 70, 4, 2, 128, 416, {17, 346}}, dtype, DType::float8_e4m3, paged);
        }
    }
}

TEST(AttentionCached, PromptsTakeOptions) {
    const std::int64_t heads = 4, tokens = 50, capacity = 160, d = 64;
    const int position = 90;
    for (const DType dtype : kModelFloats) {
        const auto q = rounded(random_floats(tokens * heads * d, 1), dtype),
                   k = rounded(random_floats(capacity * d, 2), dtype),
                   v = rounded(random_floats(capacity * d, 3), dtype);
        const auto slopes = random_floats(heads, 4, 0.1f);
        const Array slope = upload(slopes, {heads});
        std::vector<std::int32_t> table;
        std::vector<float> paged_k(k.size()), paged_v(v.size());
        for (std::int32_t i = 0; i < 10; ++i) {  // backwards
            table.push_back(9 - i);
            std::copy_n(k.begin() + i * 16 * d, 16 * d, paged_k.begin() + (9 - i) * 16 * d);
            std::copy_n(v.begin() + i * 16 * d, 16 * d, paged_v.begin() + (9 - i) * 16 * d);
        }
        const Array pages = *upload_ints(table).reshape_view({1, 10});
        const Array y = ops::attention_cached(
            upload(q, {1, tokens, heads, d}, dtype), upload(paged_k, {10, 1, 16, d}, dtype),
            upload(paged_v, {10, 1, 16, d}, dtype), upload_ints({position}), {.pages = &pages},
            {.scale = 0.2, .left = 40, .soft_cap = 5, .alibi_slopes = &slope});
        std::vector<double> expected;
        for (std::int64_t row = 0; row < tokens * heads; ++row) {
            const std::int64_t place = position + row / heads, head = row % heads;
            std::vector<double> weights;
            double sum = 0;
            for (std::int64_t key = place - 40; key <= place; ++key) {
                double dot = 0;
                for (std::int64_t i = 0; i < d; ++i) {
                    dot += double(q[static_cast<std::size_t>(row * d + i)]) *
                           k[static_cast<std::size_t>(key * d + i)];
                }
                weights.push_back(
                    std::exp(5 * std::tanh(dot * 0.2 / 5) -
                             double(slopes[static_cast<std::size_t>(head)]) * double(place - key)));
                sum += weights.back();
            }
            for (std::int64_t i = 0; i < d; ++i) {
                double value = 0;
                for (std::size_t j = 0; j < weights.size(); ++j) {
                    value += weights[j] *
                             v[(static_cast<std::size_t>(place) - 40 + j) * d + static_cast<std::size_t>(i)];
                }
                expected.push_back(value / sum);
            }
        }
        EXPECT_LE(worst_error(download(y), expected), 4 * rounding(dtype)) << name(dtype);
    }
}

// Tables and positions are on the device and not trusted: nothing outside the arrays is touched.
TEST(AttentionCached, WrongNumbersAreKeptInside) {
    const Array q = upload(random_floats(2 * 4 * 64, 1), {2, 1, 4, 64}, DType::bfloat16);
    const Array cache = upload(random_floats(3 * 2 * 16 * 64, 2), {3, 2, 16, 64}, DType::bfloat16);
    const Array pages = *upload_ints({-7, 1, INT32_MAX, INT32_MIN}).reshape_view({2, 2});
    const Array prompt = upload(random_floats(2 * 20 * 4 * 64, 1), {2, 20, 4, 64}, DType::bfloat16);
    for (const std::int32_t position : {INT32_MIN, -1, 31, 32, INT32_MAX}) {
        for (const Array& tokens : {q, prompt}) {
            const auto y = download(ops::attention_cached(
                tokens, cache, cache, upload_ints({position, position}), {.pages = &pages}, {}));
            for (const float value : y) EXPECT_TRUE(std::isfinite(value)) << position;
        }
    }
}

TEST(AttentionCached, RefusesTheRest) {
    const auto of = [](const Dims& shape, DType dtype = DType::float32) {
        return Array::empty(test_device(), shape, dtype);
    };
    const Array q = of({2, 1, 4, 16}), k = of({2, 2, 32, 16}), at = of({2}, DType::int32);
    EXPECT_EQ(ops::attention_cached(of({2, 0, 4, 16}), k, k, at, {}, {}).shape(), (Dims{2, 0, 4, 16}));
    EXPECT_THROW(ops::attention_cached(of({2, 4, 16}), k, k, at, {}, {}), Error);
    EXPECT_THROW(ops::attention_cached(q, of({3, 2, 32, 16}), of({3, 2, 32, 16}), at, {}, {}), Error);
    EXPECT_THROW(ops::attention_cached(q, of({2, 3, 32, 16}), of({2, 3, 32, 16}), at, {}, {}), Error);
    EXPECT_THROW(ops::attention_cached(q, of({2, 2, 0, 16}), of({2, 2, 0, 16}), at, {}, {}), Error);
    EXPECT_THROW(ops::attention_cached(q, k, of({2, 2, 31, 16}), at, {}, {}), Error);
    EXPECT_THROW(ops::attention_cached(q, k, k, of({3}, DType::int32), {}, {}), Error);
    EXPECT_THROW(ops::attention_cached(q, k, k, of({2}), {}, {}), Error);
    EXPECT_THROW(ops::attention_cached(q, k, k, at, {}, {.soft_cap = -1}), Error);
    const Array narrow = of({2, 2, 32, 16}, DType::float8_e4m3),
                other = of({2, 2, 32, 16}, DType::float8_e5m2);
    EXPECT_THROW(ops::attention_cached(q, narrow, k, at, {}, {}), Error);
    EXPECT_THROW(ops::attention_cached(q, other, other, at, {}, {}), Error);
    const Array pages = of({1, 2}, DType::int32);
    EXPECT_THROW(ops::attention_cached(q, k, k, at, {.pages = &pages}, {}), Error);
}

}  // namespace
