// Attention of many queries: every option against float64, in layouts that kernels read in place or not.
#include <gtest/gtest.h>

#include "attention_reference.hpp"
#include "base/error.hpp"
#include "kernels/attention/flash_attention.hpp"
#include "ops/attention.hpp"
#include "ops/elementwise.hpp"
#include "runtime/graph.hpp"

namespace {

using namespace gpk;

using Case = AttentionCase;
using Inputs = AttentionInputs;

ops::AttentionOptions options_of(const Case& c) {
    return {.causal = c.causal, .scale = c.scale, .left = c.left, .right = c.right, .soft_cap = c.soft_cap};
}

// Weights and the result are each rounded once.
double bound(DType dtype) { return 4 * rounding(dtype); }

void check(const Case& c, DType dtype) {
    const Inputs in = inputs_of(c, dtype);
    ops::AttentionOptions options = options_of(c);
    const Array slopes = upload(in.slopes, {c.heads});
    if (c.slopes) options.alibi_slopes = &slopes;
    const Array y = ops::attention(upload(in.q, {c.batch, c.heads, c.tokens, c.d}, dtype),
                                   upload(in.k, {c.batch, c.kv_heads, c.keys, c.d}, dtype),
                                   upload(in.v, {c.batch, c.kv_heads, c.keys, c.d}, dtype), options);
    EXPECT_EQ(y.shape(), (Dims{c.batch, c.heads, c.tokens, c.d}));
    EXPECT_LE(worst_error(download(y), reference(c, in)), bound(dtype)) << describe(c, dtype);
}

TEST(FlashAttention, MatchesFloat64) {
    for (const DType dtype : kModelFloats) {
        for (const std::int64_t d : {1, 6, 16, 64, 80, 96, 128, 256}) {
            check({.heads = 2, .kv_heads = 1, .tokens = 70, .keys = 200, .d = d}, dtype);
            check({.batch = 2, .tokens = 150, .keys = 150, .d = d, .causal = true}, dtype);
        }
        check({.batch = 2, .heads = 6, .kv_heads = 2, .tokens = 130, .keys = 257, .causal = true}, dtype);
        check({.tokens = 1, .keys = 1}, dtype);
        check({.tokens = 385, .keys = 64}, dtype);
        check({.heads = 3, .kv_heads = 3, .tokens = 300, .keys = 40, .causal = true},
              dtype);  // rows of zeros
    }
}

// Few queries, over many blocks.
TEST(FlashAttention, FewTokens) {
    for (const DType dtype : kModelFloats) {
        for (const std::int64_t d : {1, 6, 64, 80, 128, 256}) {
            check({.batch = 2, .heads = 6, .kv_heads = 2, .tokens = 3, .keys = 700, .d = d, .causal = true},
                  dtype);
            check({.heads = 3, .kv_heads = 3, .keys = 90, .d = d}, dtype);
        }
        check({.batch = 3, .heads = 20, .kv_heads = 2, .tokens = 8, .keys = 300, .causal = true, .left = 90},
              dtype);
        check({.tokens = 8, .keys = 3, .causal = true}, dtype);  // rows of zeros
        check({.heads = 4, .kv_heads = 2, .tokens = 5, .keys = 99, .soft_cap = 2, .slopes = true}, dtype);
        check({.heads = 2, .tokens = 4, .keys = 40, .left = 3, .right = 2, .scale = -0.3}, dtype);
    }
}

// More tiles than a GPU has multiprocessors: blocks take several.
TEST(FlashAttention, ManyTiles) {
    check({.batch = 5, .heads = 16, .kv_heads = 4, .tokens = 260, .keys = 260, .d = 16, .causal = true},
          DType::bfloat16);
    check({.batch = 5, .heads = 16, .kv_heads = 4, .tokens = 260, .keys = 200, .d = 16}, DType::bfloat16);
}

TEST(FlashAttention, Windows) {
    for (const DType dtype : kModelFloats) {
        check({.tokens = 300, .keys = 300, .causal = true, .left = 20}, dtype);
        check({.heads = 2, .tokens = 300, .keys = 320, .d = 128, .left = 130, .right = 5}, dtype);
        check({.tokens = 200, .keys = 200, .left = 0, .right = 0}, dtype);
        check({.tokens = 150, .keys = 50, .left = 3, .right = 7}, dtype);  // rows that see nothing
    }
}

TEST(FlashAttention, SoftCapSlopesAndScales) {
    for (const DType dtype : kModelFloats) {
        check({.heads = 2, .tokens = 140, .keys = 200, .causal = true, .soft_cap = 1.5}, dtype);
        check({.heads = 3, .kv_heads = 3, .tokens = 140, .keys = 200, .causal = true, .slopes = true}, dtype);
        check({.heads = 2, .tokens = 90, .keys = 100, .d = 128, .soft_cap = 30, .slopes = true}, dtype);
        check({.tokens = 90, .keys = 100, .scale = -0.2}, dtype);
        check({.tokens = 90, .keys = 100, .scale = 0.0}, dtype);
        check({.tokens = 90, .keys = 100, .scale = 0.5}, dtype);
    }
}

TEST(FlashAttention, Masks) {
    const Case c{.batch = 2, .heads = 4, .kv_heads = 2, .tokens = 70, .keys = 150, .d = 64};
    for (const DType dtype : kModelFloats) {
        const Inputs in = inputs_of(c, dtype);
        const Array q = upload(in.q, {c.batch, c.heads, c.tokens, c.d}, dtype),
                    k = upload(in.k, {c.batch, c.kv_heads, c.keys, c.d}, dtype),
                    v = upload(in.v, {c.batch, c.kv_heads, c.keys, c.d}, dtype);
        const auto run = [&](const Array& mask) {
            ops::AttentionOptions options;
            options.mask = &mask;
            return download(ops::attention(q, k, v, options));
        };
        // Added: of its own dtype and of float32; for all heads, for each, and one number a query.
        const auto added = rounded(random_floats(c.batch * c.tokens * c.keys, 5), dtype);
        const auto expected =
            reference(c, in, [&](std::int64_t b, std::int64_t, std::int64_t t, std::int64_t key) {
                return added[static_cast<std::size_t>((b * c.tokens + t) * c.keys + key)];
            });
        for (const DType of : {dtype, DType::float32}) {
            const Array mask = upload(added, {c.batch, 1, c.tokens, c.keys}, of);
            EXPECT_LE(worst_error(run(mask), expected), bound(dtype)) << name(dtype) << name(of);
        }
        const auto by_head = random_floats(c.heads * c.keys, 6);
        EXPECT_LE(worst_error(run(upload(by_head, {c.heads, 1, c.keys})),
                              reference(c, in,
                                        [&](std::int64_t, std::int64_t h, std::int64_t, std::int64_t key) {
                                            return by_head[static_cast<std::size_t>(h * c.keys + key)];
                                        })),
                  bound(dtype));
        EXPECT_LE(worst_error(run(upload(random_floats(c.tokens, 7), {c.tokens, 1})), reference(c, in)),
                  bound(dtype));
        // Seen or not; queries of every fifth row see nothing.
        std::vector<std::uint8_t> seen;
        for (std::int64_t i = 0; i < c.tokens * c.keys; ++i)
            seen.push_back(i % 3 != 0 && i / c.keys % 5 != 0);
        const Array boolean = Array::empty(test_device(), {c.tokens, c.keys}, DType::bool_);
        boolean.copy_from_host(seen.data());
        EXPECT_LE(worst_error(run(boolean),
                              reference(c, in,
                                        [&](std::int64_t, std::int64_t, std::int64_t t, std::int64_t key) {
                                            return seen[static_cast<std::size_t>(t * c.keys + key)] != 0
                                                       ? 0.0
                                                       : -INFINITY;
                                        })),
                  bound(dtype));
    }
}

TEST(FlashAttention, ReadsAndWritesViews) {
    const Case c{.batch = 2, .heads = 4, .kv_heads = 2, .tokens = 70, .keys = 150, .d = 64, .causal = true};
    for (const DType dtype : kModelFloats) {
        const Inputs in = inputs_of(c, dtype);
        const auto expected = reference(c, in);
        const Array q = upload(in.q, {c.batch, c.heads, c.tokens, c.d}, dtype),
                    k = upload(in.k, {c.batch, c.kv_heads, c.keys, c.d}, dtype),
                    v = upload(in.v, {c.batch, c.kv_heads, c.keys, c.d}, dtype);
        // The same elements: tokens before heads; padded rows, by 8 elements and by 1; the last axis not
        // dense.
        const auto tokens_first = [&](const Array& x) {
            return ops::contiguous(x.transpose({0, 2, 1, 3})).transpose({0, 2, 1, 3});
        };
        const auto padded = [&](const Array& x, std::int64_t by, std::int64_t from) {
            Dims shape = x.shape();
            shape[3] += by;
            const Array view = Array::empty(test_device(), shape, dtype).slice(3, from, 1, x.shape()[3]);
            ops::assign(view, x);
            return view;
        };
        const auto sparse = [&](const Array& x) {
            return ops::contiguous(x.transpose({0, 1, 3, 2})).transpose({0, 1, 3, 2});
        };
        const auto run = [&](const Array& a, const Array& b, const Array& d, const Array* out = nullptr) {
            return download(ops::contiguous(ops::attention(a, b, d, options_of(c), out)));
        };
        EXPECT_LE(worst_error(run(tokens_first(q), tokens_first(k), tokens_first(v)), expected),
                  bound(dtype));
        EXPECT_LE(worst_error(run(padded(q, 8, 0), padded(k, 8, 8), v), expected), bound(dtype));
        EXPECT_LE(worst_error(run(padded(q, 1, 1), padded(k, 1, 0), padded(v, 3, 2)), expected),
                  bound(dtype));
        EXPECT_LE(worst_error(run(sparse(q), sparse(k), sparse(v)), expected), bound(dtype));
        for (const Array& out : {tokens_first(q), padded(q, 1, 1), sparse(q)}) {
            EXPECT_LE(worst_error(run(q, k, v, &out), expected), bound(dtype));
        }
        // One batch's keys for all.
        Case shared = c;
        shared.batch = 1;
        Inputs first = in;
        first.q.resize(in.q.size() / 2);
        const auto of_first = reference(shared, first);
        const Dims both{c.batch, c.kv_heads, c.keys, c.d};
        const auto y = run(q, k.slice(0, 0, 1, 1).broadcast_to(both), v.slice(0, 0, 1, 1).broadcast_to(both));
        EXPECT_LE(
            worst_error({y.begin(), y.begin() + static_cast<std::ptrdiff_t>(of_first.size())}, of_first),
            bound(dtype));
    }
}

TEST(FlashAttention, PackedSequences) {
    const std::vector<std::int32_t> q_starts{0, 3, 3, 203, 204}, k_starts{2, 9, 10, 210, 400};
    for (const DType dtype : kModelFloats) {
        for (const std::int64_t d : {12, 64, 128}) {
            for (const bool causal : {false, true}) {
                const std::int64_t heads = 4, kv_heads = 2;
                auto k = rounded(random_floats(410 * kv_heads * d, 2), dtype),
                     v = rounded(random_floats(410 * kv_heads * d, 3), dtype);
                const auto q = rounded(random_floats(204 * heads * d, 1), dtype);
                const auto slopes = random_floats(heads, 4, 0.1f);
                const Array slope = upload(slopes, {heads});
                ops::AttentionOptions options{.causal = causal, .left = 150};
                options.alibi_slopes = &slope;
                const Array y = ops::attention_packed(
                    upload(q, {204, heads, d}, dtype), upload(k, {410, kv_heads, d}, dtype),
                    upload(v, {410, kv_heads, d}, dtype), upload_ints(q_starts), upload_ints(k_starts), 200,
                    options);
                const auto got = download(y);
                for (std::size_t s = 0; s + 1 < q_starts.size(); ++s) {
                    Case c{.heads = heads, .kv_heads = kv_heads, .d = d, .causal = causal, .left = 150};
                    c.slopes = true;
                    c.tokens = q_starts[s + 1] - q_starts[s];
                    c.keys = k_starts[s + 1] - k_starts[s];
                    const auto part = [&](const std::vector<float>& x, std::int64_t begin, std::int64_t rows,
                                          std::int64_t width) {  // heads first
                        std::vector<float> out;
                        for (std::int64_t h = 0; h < width; ++h) {
                            for (std::int64_t row = begin; row < begin + rows; ++row) {
                                const auto at = x.begin() + (row * width + h) * d;
                                out.insert(out.end(), at, at + d);
                            }
                        }
                        return out;
                    };
                    const Inputs in{part(q, q_starts[s], c.tokens, heads),
                                    part(k, k_starts[s], c.keys, kv_heads),
                                    part(v, k_starts[s], c.keys, kv_heads), slopes};
                    EXPECT_LE(worst_error(part(got, q_starts[s], c.tokens, heads), reference(c, in)),
                              bound(dtype))
                        << describe(c, dtype);
                }
            }
        }
    }
}

// What another sequence has beyond this one's end, NaN included, does not matter.
TEST(FlashAttention, PackedSequencesAreApart) {
    for (const DType dtype : kModelFloats) {
        auto k = random_floats(100 * 64, 2), v = random_floats(100 * 64, 3);
        for (std::size_t i = 50 * 64; i < k.size(); ++i) k[i] = v[i] = NAN;
        const Array q = upload(random_floats(40 * 64, 1), {40, 1, 64}, dtype);
        const auto y =
            download(ops::attention_packed(q, upload(k, {100, 1, 64}, dtype), upload(v, {100, 1, 64}, dtype),
                                           upload_ints({0, 40}), upload_ints({0, 50}), 40, {}));
        for (const float value : y) EXPECT_TRUE(std::isfinite(value));
    }
}

// Starts are on the device and not trusted: nothing outside the arrays is touched.
TEST(FlashAttention, WrongStartsAreKeptInside) {
    const Array q = upload(random_floats(40 * 2 * 64, 1), {40, 2, 64}, DType::bfloat16);
    for (const std::vector<std::int32_t>& starts : std::vector<std::vector<std::int32_t>>{
             {-5, 1000}, {INT32_MIN, INT32_MAX}, {30, 10}, {INT32_MAX, INT32_MIN}}) {
        const Array at = upload_ints(starts);
        EXPECT_EQ(ops::attention_packed(q, q, q, at, at, 40, {.causal = true}).shape(), (Dims{40, 2, 64}));
    }
    test_device().synchronize();
}

TEST(FlashAttention, Captures) {
    const Case c{
        .batch = 5, .heads = 16, .kv_heads = 16, .tokens = 260, .keys = 260, .d = 16, .causal = true};
    const Inputs in = inputs_of(c, DType::bfloat16);
    const Dims shape{c.batch, c.heads, c.tokens, c.d};
    const Array q = upload(in.q, shape, DType::bfloat16), k = upload(in.k, shape, DType::bfloat16),
                v = upload(in.v, shape, DType::bfloat16);
    const Array out = Array::empty(test_device(), shape, DType::bfloat16);
    const auto run = [&] { ops::attention(q, k, v, options_of(c), &out); };
    run();
    const auto expected = download(out);
    const auto stream = current_stream(test_device());
    const auto graph = Graph::capture(stream, run);
    for (int i = 0; i < 3; ++i) {
        ops::assign(out, -1);
        graph->launch(stream);
        EXPECT_EQ(download(out), expected);
    }
}

TEST(FlashAttention, HandlesNothing) {
    const auto empty = [](std::int64_t batch, std::int64_t heads, std::int64_t tokens) {
        return Array::empty(test_device(), {batch, heads, tokens, 64}, DType::bfloat16);
    };
    EXPECT_EQ(ops::attention(empty(0, 2, 3), empty(0, 2, 3), empty(0, 2, 3), {}).shape(),
              (Dims{0, 2, 3, 64}));
    EXPECT_EQ(ops::attention(empty(1, 2, 0), empty(1, 2, 3), empty(1, 2, 3), {}).shape(),
              (Dims{1, 2, 0, 64}));
    EXPECT_EQ(ops::attention(empty(1, 0, 4), empty(1, 0, 3), empty(1, 0, 3), {}).shape(),
              (Dims{1, 0, 4, 64}));
    // No keys: zeros.
    EXPECT_EQ(download(ops::attention(empty(1, 1, 2), empty(1, 1, 0), empty(1, 1, 0), {})),
              std::vector<float>(128, 0.0f));
}

TEST(FlashAttention, RefusesTheRest) {
    const auto of = [](const Dims& shape, DType dtype = DType::float32) {
        return Array::empty(test_device(), shape, dtype);
    };
    const Array q = of({2, 4, 8, 16}), k = of({2, 2, 9, 16});
    const auto refuses = [&](ErrorKind kind, const Array& a, const Array& b, const Array& c,
                             const ops::AttentionOptions& options = {}, const Array* out = nullptr) {
        try {
            ops::attention(a, b, c, options, out);
            ADD_FAILURE() << "taken";
        } catch (const Error& e) {
            EXPECT_EQ(e.kind(), kind) << e.what();
        }
    };
    refuses(ErrorKind::value, of({4, 8, 16}), k, k);
    refuses(ErrorKind::value, q, of({2, 3, 9, 16}), of({2, 3, 9, 16}));  // 3 of 4 heads
    refuses(ErrorKind::value, q, of({1, 2, 9, 16}), of({1, 2, 9, 16}));
    refuses(ErrorKind::value, q, of({2, 2, 9, 12}), of({2, 2, 9, 12}));
    refuses(ErrorKind::value, q, k, of({2, 2, 8, 16}));
    refuses(ErrorKind::value, of({1, 1, 2, 257}), of({1, 1, 2, 257}), of({1, 1, 2, 257}));
    refuses(ErrorKind::type, q, of({2, 2, 9, 16}, DType::float16), k);
    refuses(ErrorKind::type, of({1, 1, 1, 8}, DType::int32), k, k);
    refuses(ErrorKind::value, q, k, k, {.soft_cap = -1});
    refuses(ErrorKind::value, q, k, k, {.soft_cap = NAN});
    const Array wrong = of({3}), mask = of({8, 8}), integers = of({8, 9}, DType::int32),
                out = of({2, 4, 8, 8});
    ops::AttentionOptions options;
    options.alibi_slopes = &wrong;
    refuses(ErrorKind::value, q, k, k, options);
    options = {};
    options.mask = &mask;
    refuses(ErrorKind::value, q, k, k, options);
    options.mask = &integers;
    refuses(ErrorKind::type, q, k, k, options);
    refuses(ErrorKind::value, q, k, k, {}, &out);
    refuses(ErrorKind::value, q, k, k, {}, &k);
}

}  // namespace
