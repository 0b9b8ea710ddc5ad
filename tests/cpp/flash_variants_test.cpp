// Each kernel in the table of flash_attention, whatever the op would choose here; float8; and the values that
// its kernels read.
#include <gtest/gtest.h>

#include "attention_reference.hpp"
#include "base/error.hpp"
#include "kernels/attention/flash_values.hpp"
#include "ops/attention.hpp"
#include "ops/elementwise.hpp"
#include "ops/flash_attention.hpp"
#include "ops/launch.hpp"
#include "ops/sm90.hpp"

namespace {

using namespace gpk;
using kernels::FlashAttentionParams;
using kernels::FlashVariant;

FlashAttentionParams params_of(const AttentionCase& c) {
    return {.batch = static_cast<std::int32_t>(c.batch),
            .heads = static_cast<std::int32_t>(c.heads),
            .kv_heads = static_cast<std::int32_t>(c.kv_heads),
            .d = static_cast<std::int32_t>(c.d),
            .tokens = static_cast<std::int32_t>(c.tokens),
            .keys = static_cast<std::int32_t>(c.keys),
            .left = c.left < 0 ? kernels::kUnbounded : static_cast<std::int32_t>(c.left),
            .right = c.causal      ? 0
                     : c.right < 0 ? kernels::kUnbounded
                                   : static_cast<std::int32_t>(c.right),
            .scale = static_cast<float>(1 / std::sqrt(static_cast<double>(c.d))),
            .soft_cap = static_cast<float>(c.soft_cap)};
}

bool runs_here(const FlashVariant& row) {
    return !row.tensor_maps || ops::runs_sm90(*row.kernel, test_device().info().sm);
}

void check(const FlashVariant& row, AttentionCase c, DType dtype) {
    const AttentionInputs in = inputs_of(c, dtype);
    const Array q = upload(in.q, {c.batch, c.heads, c.tokens, c.d}, dtype),
                k = upload(in.k, {c.batch, c.kv_heads, c.keys, c.d}, dtype),
                v = upload(in.v, {c.batch, c.kv_heads, c.keys, c.d}, dtype),
                slopes = upload(in.slopes, {c.heads}), out = Array::empty(test_device(), q.shape(), dtype);
    write_floats(out, std::vector<float>(static_cast<std::size_t>(out.size()), NAN));
    FlashAttentionParams params = params_of(c);
    if (c.slopes) params.slopes = slopes.as<const float>();
    ops::launch_flash(
        {.q = q, .k = k, .v = v, .out = out, .params = params, .cost = {}, .reads = {&q, &k, &v, &slopes}},
        &row);
    EXPECT_LE(worst_error(download(out), reference(c, in)), 4 * rounding(dtype))
        << row.kernel->def().name << " d " << c.d;
}

TEST(FlashVariants, MatchFloat64) {
    for (const DType dtype : kModelFloats) {
        for (const bool options : {false, true}) {
            for (const FlashVariant& row : kernels::flash_attention(dtype, options)) {
                if (!runs_here(row)) continue;
                const AttentionCase plain{
                    .batch = 2, .heads = 4, .kv_heads = 2, .tokens = 70, .keys = 161, .d = row.max_d};
                AttentionCase c = plain;
                c.causal = true;
                check(row, c, dtype);
                c = plain;
                c.d -= 8;
                c.left = 30;
                c.right = 5;
                if (options) {
                    c.soft_cap = 2;
                    c.slopes = true;
                }
                check(row, c, dtype);
                if (options) continue;
                check(row, {.tokens = 200, .keys = 40, .d = row.max_d, .causal = true}, dtype);
                check(row, {.tokens = 1, .keys = 1, .d = row.max_d}, dtype);
            }
        }
    }
}

// Masks, as ops::attention hands them on.
TEST(FlashVariants, TakeMasks) {
    const AttentionCase c{.batch = 2, .heads = 2, .kv_heads = 1, .tokens = 66, .keys = 131, .d = 64};
    for (const DType dtype : kModelFloats) {
        const AttentionInputs in = inputs_of(c, dtype);
        const Array q = upload(in.q, {c.batch, c.heads, c.tokens, c.d}, dtype),
                    k = upload(in.k, {c.batch, c.kv_heads, c.keys, c.d}, dtype),
                    v = upload(in.v, {c.batch, c.kv_heads, c.keys, c.d}, dtype);
        const auto added = rounded(random_floats(c.tokens * c.keys, 5), dtype);
        const Array mask = upload(added, {c.tokens, c.keys}, dtype);
        for (const FlashVariant& row : kernels::flash_attention(dtype, true)) {
            if (!runs_here(row) || row.max_d < c.d) continue;
            const Array out = Array::empty(test_device(), q.shape(), dtype);
            FlashAttentionParams params = params_of(c);
            params.mask = mask.as<>();
            params.mask_query = c.keys;
            params.mask_kind =
                dtype == DType::float32 ? kernels::MaskKind::float32 : kernels::MaskKind::element;
            ops::launch_flash({.q = q,
                               .k = k,
                               .v = v,
                               .out = out,
                               .params = params,
                               .cost = {},
                               .reads = {&q, &k, &v, &mask}},
                              &row);
            const auto expected =
                reference(c, in, [&](std::int64_t, std::int64_t, std::int64_t t, std::int64_t key) {
                    return added[static_cast<std::size_t>(t * c.keys + key)];
                });
            EXPECT_LE(worst_error(download(out), expected), 4 * rounding(dtype)) << row.kernel->def().name;
        }
    }
}

// Packed sequences and pages: by every kernel what the op makes of them, which its own tests compare with
// float64.
TEST(FlashVariants, TakePackedSequencesAndPages) {
    const std::int64_t heads = 2, d = 64;
    for (const DType dtype : kModelFloats) {
        const Array q = upload(random_floats(heads * 90 * d, 1), {1, heads, 90, d}, dtype),
                    k = upload(random_floats(heads * 160 * d, 2), {1, heads, 160, d}, dtype),
                    v = upload(random_floats(heads * 160 * d, 3), {1, heads, 160, d}, dtype);
        const Array q_starts = upload_ints({0, 20, 90}), k_starts = upload_ints({3, 60, 160});
        const auto rows_first = [](const Array& x) { return x.select(0, 0).transpose({1, 0, 2}); };
        const auto packed = download(ops::attention_packed(rows_first(q), rows_first(k), rows_first(v),
                                                           q_starts, k_starts, 70, {.causal = true}));
        const Array pool_k = upload(random_floats(10 * heads * 16 * d, 4), {10, heads, 16, d}, dtype),
                    pool_v = upload(random_floats(10 * heads * 16 * d, 5), {10, heads, 16, d}, dtype);
        const Array pages = *upload_ints({3, 1, 4, 0, 9, 2, 6, 5, 8, 7}).reshape_view({2, 5}),
                    positions = upload_ints({2, 33});
        const Array prompt = upload(random_floats(2 * 45 * heads * d, 6), {2, 45, heads, d}, dtype);
        const auto paged =
            download(ops::attention_cached(prompt, pool_k, pool_v, positions, {.pages = &pages}, {}));
        for (const FlashVariant& row : kernels::flash_attention(dtype, false)) {
            if (!runs_here(row) || row.max_d < d) continue;
            const Array out = Array::empty(test_device(), q.shape(), dtype);
            FlashAttentionParams params = params_of({.batch = 2,
                                                     .heads = heads,
                                                     .kv_heads = heads,
                                                     .tokens = 70,
                                                     .keys = 160,
                                                     .d = d,
                                                     .causal = true});
            params.q_starts = q_starts.as<const std::int32_t>();
            params.k_starts = k_starts.as<const std::int32_t>();
            params.q_total = 90;
            params.k_total = 160;
            ops::launch_flash({.q = q,
                               .k = k,
                               .v = v,
                               .out = out,
                               .params = params,
                               .cost = {},
                               .reads = {&q, &k, &v, &q_starts, &k_starts}},
                              &row);
            EXPECT_LE(worst_error(download(ops::contiguous(rows_first(out))), {packed.begin(), packed.end()}),
                      4 * rounding(dtype))
                << row.kernel->def().name;

            const Array y = Array::empty(test_device(), prompt.shape(), dtype);
            params = params_of({.batch = 2,
                                .heads = heads,
                                .kv_heads = heads,
                                .tokens = 45,
                                .keys = 80,
                                .d = d,
                                .causal = true});
            params.positions = positions.as<const std::int32_t>();
            params.pages = pages.as<const std::int32_t>();
            params.page_tokens = 16;
            params.pages_of_sequence = 5;
            params.page_count = 10;
            ops::launch_flash({.q = prompt.transpose({0, 2, 1, 3}),
                               .k = pool_k,
                               .v = pool_v,
                               .out = y.transpose({0, 2, 1, 3}),
                               .params = params,
                               .cost = {},
                               .reads = {&prompt, &pool_k, &pool_v, &positions, &pages}},
                              &row);
            EXPECT_LE(worst_error(download(y), {paged.begin(), paged.end()}), 4 * rounding(dtype))
                << row.kernel->def().name;
        }
    }
}

std::vector<float> rounded_to_8(std::vector<float> values) {
    for (float& value : values) value = float(float8_e4m3(value));
    return values;
}
Array upload_8(const std::vector<float>& values, const Dims& shape) {
    std::vector<std::uint8_t> bits;
    for (const float value : values) bits.push_back(float8_e4m3(value).bits);
    const Array array = Array::empty(test_device(), shape, DType::float8_e4m3);
    array.copy_from_host(bits.data());
    return array;
}

// Where the weights are rounded to e4m3 each is wrong by up to 1/16, and so the result by up to that much of
// the largest value; on average far less.
void expect_near(const std::vector<float>& got, const std::vector<double>& expected,
                 const AttentionInputs& in, std::int64_t d, DType result, const std::string& what) {
    if (test_device().info().sm != 90 || d % 16 != 0) {
        EXPECT_LE(worst_error(got, expected), 4 * rounding(result)) << what;
        return;
    }
    ASSERT_EQ(got.size(), expected.size());
    double largest = 0, worst = 0, error = 0, norm = 0;
    for (const float v : in.v) largest = std::max(largest, std::abs(double(v)));
    for (std::size_t i = 0; i < got.size(); ++i) {
        const double here = std::abs(double(got[i]) - expected[i]);
        worst = here <= worst ? worst : here;
        error += here * here;
        norm += expected[i] * expected[i];
    }
    EXPECT_LE(worst, largest / 16) << what;
    EXPECT_LE(std::sqrt(error), 0.04 * std::sqrt(norm)) << what;
}

TEST(FlashFloat8, MatchesFloat64) {
    for (const DType result : {DType::float16, DType::bfloat16}) {
        for (const std::int64_t d : {12, 24, 16, 64, 80, 128, 256}) {
            for (AttentionCase c :
                 {AttentionCase{.batch = 2, .heads = 4, .kv_heads = 2, .tokens = 70, .keys = 200, .d = d},
                  AttentionCase{.heads = 2, .tokens = 150, .keys = 150, .d = d, .causal = true},
                  AttentionCase{.tokens = 3, .keys = 40, .d = d, .left = 9},
                  AttentionCase{.heads = 2,
                                .tokens = 80,
                                .keys = 129,
                                .d = d,
                                .left = 60,
                                .right = 3,
                                .soft_cap = 4,
                                .slopes = true},
                  AttentionCase{
                      .tokens = 66, .keys = 530, .d = d, .scale = 0.4},  // each block's scores are higher
                  AttentionCase{.tokens = 66, .keys = 530, .d = d, .causal = true, .scale = 30},
                  AttentionCase{.tokens = 90, .keys = 30, .d = d, .causal = true}}) {
                AttentionInputs in = inputs_of(c, DType::float32);
                in.q = rounded_to_8(in.q);
                in.k = rounded_to_8(in.k);
                in.v = rounded_to_8(in.v);
                ops::AttentionOptions options{.causal = c.causal,
                                              .scale = c.scale,
                                              .left = c.left,
                                              .right = c.right,
                                              .soft_cap = c.soft_cap};
                const Array slopes = upload(in.slopes, {c.heads});
                if (c.slopes) options.alibi_slopes = &slopes;
                // A scale for all, and one for each head of q and of v.
                std::vector<float> q_scale, v_scale;
                for (std::int64_t i = 0; i < c.batch * c.heads; ++i)
                    q_scale.push_back(0.25f + 0.5f * float(i));
                for (std::int64_t i = 0; i < c.kv_heads; ++i) v_scale.push_back(3 - 2 * float(i));
                const Array of_q = upload(q_scale, {c.batch, c.heads}), of_v = upload(v_scale, {c.kv_heads});
                options.q_scale = {.value = 0.5, .each = &of_q};
                options.k_scale = {.value = 1.5};
                options.v_scale = {.value = 2, .each = &of_v};
                options.dtype = result;
                const Array y = ops::attention(upload_8(in.q, {c.batch, c.heads, c.tokens, c.d}),
                                               upload_8(in.k, {c.batch, c.kv_heads, c.keys, c.d}),
                                               upload_8(in.v, {c.batch, c.kv_heads, c.keys, c.d}), options);
                ASSERT_EQ(y.dtype(), result);
                for (std::size_t i = 0; i < in.q.size(); ++i) {
                    in.q[i] *= 0.75f * q_scale[i / static_cast<std::size_t>(c.tokens * c.d)];
                }
                for (std::size_t i = 0; i < in.v.size(); ++i) {
                    in.v[i] *= 2 * v_scale[i / static_cast<std::size_t>(c.keys * c.d) % v_scale.size()];
                }
                expect_near(download(y), reference(c, in), in, d, result,
                            str(describe(c, result), " cap ", c.soft_cap));
            }
        }
    }
}

TEST(FlashFloat8, MasksAreFloat32OrBoolean) {
    const AttentionCase c{.batch = 2, .heads = 2, .kv_heads = 2, .tokens = 66, .keys = 131, .d = 64};
    AttentionInputs in = inputs_of(c, DType::float32);
    in.q = rounded_to_8(in.q);
    in.k = rounded_to_8(in.k);
    in.v = rounded_to_8(in.v);
    const Array q = upload_8(in.q, {c.batch, c.heads, c.tokens, c.d}),
                k = upload_8(in.k, {c.batch, c.kv_heads, c.keys, c.d}),
                v = upload_8(in.v, {c.batch, c.kv_heads, c.keys, c.d});
    const auto added = random_floats(c.tokens * c.keys, 5);
    const Array mask = upload(added, {c.tokens, c.keys}), narrow = upload_8(added, {c.tokens, c.keys});
    ops::AttentionOptions options;
    options.mask = &mask;
    const auto expected = reference(c, in, [&](std::int64_t, std::int64_t, std::int64_t t, std::int64_t key) {
        return added[static_cast<std::size_t>(t * c.keys + key)];
    });
    expect_near(download(ops::attention(q, k, v, options)), expected, in, c.d, DType::bfloat16, "mask");
    options.mask = &narrow;
    EXPECT_THROW(ops::attention(q, k, v, options), Error);
}

TEST(FlashFloat8, RefusesTheRest) {
    const Dims shape{1, 2, 20, 32};
    const Array q = Array::empty(test_device(), shape, DType::float8_e4m3),
                wide = Array::empty(test_device(), shape, DType::bfloat16), scales = upload({1, 1, 1}, {3}),
                out = Array::empty(test_device(), shape, DType::float16);
    const auto kind_of = [](auto&& call) {
        try {
            call();
        } catch (const Error& e) {
            return e.kind();
        }
        ADD_FAILURE() << "taken";
        return ErrorKind::value;
    };
    const auto with = [&](const Array& a, const ops::AttentionOptions& options, const Array* to = nullptr) {
        return kind_of([&] { ops::attention(a, a, a, options, to); });
    };
    EXPECT_EQ(with(q, {.dtype = DType::float32}), ErrorKind::type);
    EXPECT_EQ(with(wide, {.dtype = DType::float16}), ErrorKind::type);
    EXPECT_EQ(with(wide, {.k_scale = {.value = 2}}), ErrorKind::value);
    EXPECT_EQ(with(q, {.q_scale = {.each = &scales}}), ErrorKind::value);
    EXPECT_EQ(with(q, {.v_scale = {.each = &wide}}), ErrorKind::type);
    EXPECT_EQ(with(q, {.k_scale = {.value = NAN}}), ErrorKind::value);
    EXPECT_EQ(with(q, {}, &out), ErrorKind::type);  // bfloat16 was asked for
    EXPECT_EQ(kind_of([&] { ops::attention(q, wide, wide, {}); }), ErrorKind::type);
    EXPECT_EQ(ops::attention(q.slice(2, 0, 1, 0), q, q, {}).shape(), (Dims{1, 2, 0, 32}));
}

TEST(FlashValues, TurnsKeysIntoTheirPlaces) {
    const std::int64_t batch = 2, heads = 3, keys = 150, d = 80, padded = 256;
    std::vector<std::uint8_t> bits(static_cast<std::size_t>(batch * heads * keys * d));
    for (std::size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<std::uint8_t>(i * 2654435761u >> 13);
    const Array in = Array::empty(test_device(), {batch, heads, keys, d}, DType::uint8),
                out = Array::empty(test_device(), {batch, heads, d, padded}, DType::uint8);
    in.copy_from_host(bits.data());
    const std::vector<std::uint8_t> poison(static_cast<std::size_t>(out.size()), 0xff);
    out.copy_from_host(poison.data());
    const kernels::FlashValuesParams params{.in = in.as<>(),
                                            .out = out.as<>(),
                                            .batch_stride = heads * keys * d,
                                            .head_stride = keys * d,
                                            .token_stride = d,
                                            .batch = batch,
                                            .kv_heads = heads,
                                            .keys = keys,
                                            .d = d,
                                            .padded = padded};
    ops::launch(kernels::flash_values(), {.grid = {2, 2, 6}, .block = {kernels::kFlashValueThreads}}, params,
                {}, {&in}, {&out});
    std::vector<std::uint8_t> got(static_cast<std::size_t>(out.size()));
    out.copy_to_host(got.data());
    // Of 16 places: keys 0 1 8 9, 2 3 10 11, and so on.
    constexpr std::int64_t kOrder[] = {0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15};
    for (std::int64_t i = 0; i < out.size(); ++i) {
        const std::int64_t place = i % padded, column = i / padded % d, head = i / padded / d;
        const std::int64_t key = place / 16 * 16 + kOrder[place % 16];
        const std::uint8_t expected =
            key < keys ? bits[static_cast<std::size_t>((head * keys + key) * d + column)] : 0;
        ASSERT_EQ(got[static_cast<std::size_t>(i)], expected) << i;
    }
}

}  // namespace
