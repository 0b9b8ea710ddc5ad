// A step's attention that appends on its way: the same bits as the two ops by themselves.
#include <gtest/gtest.h>

#include "base/error.hpp"
#include "model_support.hpp"
#include "ops/attention.hpp"
#include "ops/creation.hpp"
#include "ops/elementwise.hpp"

namespace {

using namespace gpk;

struct Shape {
    std::int64_t heads, kv_heads, d, capacity;
    bool rotated = true, normed = false, narrow = false;
};

struct Step {
    Array qkv, keys, values, positions, inv_freq, q_norm, k_norm;
    std::int64_t heads, kv_heads, d;

    Array part(std::int64_t first, std::int64_t count) const {
        const std::int64_t batch = qkv.shape()[0];
        return qkv.slice(1, first * d, 1, count * d).reshape_view({batch, count, d})->expand_dims(1);
    }
    Array q() const { return part(0, heads); }
    Array k() const { return part(heads, kv_heads); }
    Array v() const { return part(heads + kv_heads, kv_heads); }
};

Step step_of(const Shape& s, DType dtype, const std::vector<std::int32_t>& positions) {
    const auto batch = static_cast<std::int64_t>(positions.size());
    const std::int64_t rows = (s.heads + 2 * s.kv_heads) * s.d;
    const Dims cache{batch, s.kv_heads, s.capacity, s.d};
    const std::int64_t cached = batch * s.kv_heads * s.capacity * s.d;
    const auto stored = [&](std::uint32_t seed) {
        const Array array = upload(random_floats(cached, seed), cache, dtype);
        return s.narrow ? ops::astype(array, DType::float8_e4m3) : array;
    };
    return {upload(random_floats(batch * rows, 1), {batch, rows}, dtype),
            stored(2),
            stored(3),
            upload_ints(positions),
            upload(random_floats(s.d / 2, 4, 0.2f), {s.d / 2}),
            upload(random_floats(s.d, 5), {s.d}, dtype),
            upload(random_floats(s.d, 6), {s.d}, dtype),
            s.heads,
            s.kv_heads,
            s.d};
}

std::vector<float> numbers(const Array& array) {
    return download(array.dtype() == DType::float8_e4m3 ? ops::astype(array, DType::float32) : array);
}

void check(const Shape& s, DType dtype, const std::vector<std::int32_t>& positions,
           const ops::AttentionOptions& options, bool as_alone) {
    const Step apart = step_of(s, dtype, positions), joined = step_of(s, dtype, positions);
    const auto options_of = [&](const Step& step, const ops::Rope& rope, const Array& q) {
        return ops::KvAppendOptions{.rope = s.rotated ? &rope : nullptr,
                                    .q = &q,
                                    .q_norm = s.normed ? &step.q_norm : nullptr,
                                    .k_norm = s.normed ? &step.k_norm : nullptr};
    };
    const Array q = apart.q(), other_q = joined.q();
    const ops::Rope rope{apart.inv_freq, 1.25}, other_rope{joined.inv_freq, 1.25};
    ops::kv_append(apart.k(), apart.v(), apart.keys, apart.values, apart.positions,
                   options_of(apart, rope, q));
    const Array expected =
        ops::attention_cached(q, apart.keys, apart.values, apart.positions, {.as_alone = as_alone}, options);
    const Array y =
        ops::append_and_attend(joined.k(), joined.v(), joined.keys, joined.values, joined.positions,
                               options_of(joined, other_rope, other_q), options, as_alone);
    for (std::size_t row = 0; row < positions.size(); ++row) {
        if (positions[row] < 0) continue;  // of no text
        const auto at = static_cast<std::int64_t>(row);
        EXPECT_EQ(download(y.select(0, at)), download(expected.select(0, at))) << "sequence " << row;
    }
    EXPECT_EQ(numbers(joined.keys), numbers(apart.keys));
    EXPECT_EQ(numbers(joined.values), numbers(apart.values));
}

TEST(AppendAndAttend, HasTheBitsOfBothOps) {
    constexpr Shape kShapes[] = {{8, 1, 64, 700},
                                 {7, 1, 128, 300},
                                 {4, 4, 80, 65},
                                 {32, 2, 128, 140},
                                 {6, 2, 64, 90, true, true},
                                 {4, 2, 256, 50, true, true},
                                 {4, 2, 64, 70, false, true},
                                 {8, 1, 64, 130, true, false, true},
                                 {16, 2, 128, 200, true, true, true},
                                 {6, 2, 12, 40}};
    for (const DType dtype : kModelFloats) {
        for (const Shape& s : kShapes) {
            SCOPED_TRACE(str(name(dtype), " ", s.heads, "/", s.kv_heads, " d ", s.d));
            const auto last = static_cast<std::int32_t>(s.capacity) - 1;
            for (const bool as_alone : {false, true}) {
                check(s, dtype, {0, last, -1, last / 2, 15, 16}, {.causal = true}, as_alone);
                check(s, dtype, {last}, {.causal = true, .left = 20, .soft_cap = 30}, as_alone);
            }
        }
    }
}

TEST(AppendAndAttend, DropsWhatIsPastTheEnd) {
    check({8, 2, 64, 40}, DType::bfloat16, {39, 40, 41, 1 << 20}, {.causal = true}, false);
}

TEST(AppendAndAttend, LeavesOutWhatIsEmptyAndRefusesTheRest) {
    const Step step = step_of({4, 2, 64, 20}, DType::bfloat16, {3, 4});
    const Array q = step.q(), k = step.k(), v = step.v();
    const ops::Rope rope{step.inv_freq};
    const ops::KvAppendOptions without{.rope = &rope}, with{.rope = &rope, .q = &q};
    const ops::AttentionOptions causal{.causal = true};
    const auto call = [&](const Array& positions, const ops::KvAppendOptions& append, const Array* out) {
        return ops::append_and_attend(k, v, step.keys, step.values, positions, append, causal, false, out);
    };
    EXPECT_THROW(call(step.positions, without, nullptr), Error);
    EXPECT_THROW(call(upload_ints({1}), with, nullptr), Error);
    EXPECT_THROW(call(step.positions, with, &k), Error);
    const Array in_qkv = step.part(4, 4);  // over k and v
    EXPECT_THROW(call(step.positions, with, &in_qkv), Error);
    const auto rows = [](const Array& x) { return x.slice(0, 0, 1, 0); };
    const Array no_q = rows(q);
    EXPECT_EQ(ops::append_and_attend(rows(k), rows(v), rows(step.keys), rows(step.values),
                                     rows(step.positions), {.rope = &rope, .q = &no_q}, causal)
                  .shape(),
              (Dims{0, 1, 4, 64}));
}

}  // namespace
