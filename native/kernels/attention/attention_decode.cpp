#include "kernels/attention/attention_decode.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "kernels/attention/attend_host.hpp"
#include "kernels/attention/kv_append_host.hpp"
#include "kernels/floats.hpp"
#include "kernels/host.hpp"

namespace gpk {
extern const Image image_attention_decode, image_attention_decode_mma, image_attention_decode_float8;
}

namespace gpk::kernels {

namespace {

// The keys begin .. end - 1 of a sequence as float32, without gaps.
template <class Stored>
std::vector<float> gather(const AttentionDecodeParams& p, const void* from, const DecodeStrides& at,
                          std::int64_t batch, std::int64_t kv_head, std::int64_t begin, std::int64_t end) {
    std::vector<float> rows;
    rows.reserve(static_cast<std::size_t>(std::max<std::int64_t>(end - begin, 0) * p.d));
    for (std::int64_t key = begin; key < end; ++key) {
        std::int64_t start = batch * at.batch + key * at.token;
        if (p.pages != nullptr) {
            const std::int64_t number = p.pages[batch * p.pages_of_sequence + key / p.page_tokens];
            start = std::clamp<std::int64_t>(number, 0, p.page_count - 1) * at.batch +
                    key % p.page_tokens * at.token;
        }
        const Stored* row = static_cast<const Stored*>(from) + start + kv_head * at.head;
        for (std::int64_t i = 0; i < p.d; ++i) rows.push_back(static_cast<float>(row[i]));
    }
    return rows;
}

// All query heads of one key/value head.
template <class T, class Stored>
void attend_group(const AttentionDecodeParams& p, std::int64_t batch, std::int64_t kv_head) {
    const std::int32_t group = p.heads / p.kv_heads;
    const DecodeRows all =
        decode_rows(p, p.positions == nullptr ? 0 : p.positions[batch], 0, p.tokens * group);
    const std::vector<float> keys = gather<Stored>(p, p.keys, p.k_at, batch, kv_head, all.begin, all.end),
                             values = gather<Stored>(p, p.values, p.v_at, batch, kv_head, all.begin, all.end);
    HostAttention room;
    std::vector<float> q(static_cast<std::size_t>(p.d));
    for (std::int64_t row = 0; row < std::int64_t{p.tokens} * group; ++row) {
        const std::int64_t token = row / group, head = kv_head * group + row % group;
        const std::int64_t place = all.position + token;
        const std::int64_t begin = std::max<std::int64_t>(place - p.left, 0),
                           end = std::min<std::int64_t>(place + p.right + 1, p.capacity);
        T* out =
            static_cast<T*>(p.out) + batch * p.out_at.batch + token * p.out_at.token + head * p.out_at.head;
        if (end <= begin) {
            std::fill_n(out, p.d, T(0.0f));
            continue;
        }
        const T* from =
            static_cast<const T*>(p.q) + batch * p.q_at.batch + token * p.q_at.token + head * p.q_at.head;
        std::transform(from, from + p.d, q.begin(), [](T x) { return static_cast<float>(x); });
        const KeyRange<float> range{.keys = keys.data() + (begin - all.begin) * p.d,
                                    .values = values.data() + (begin - all.begin) * p.d,
                                    .key_stride = p.d,
                                    .value_stride = p.d,
                                    .count = end - begin,
                                    .d = p.d};
        float* scores = room.score(range, q.data(), p.scale);
        for (std::int64_t i = 0; i < range.count; ++i) {
            if (p.soft_cap > 0) scores[i] = p.soft_cap * std::tanh(scores[i] / p.soft_cap);
            if (p.slopes != nullptr) {
                scores[i] -= p.slopes[head] * static_cast<float>(std::abs(begin + i - place));
            }
        }
        room.combine(range, q.data());
        std::transform(q.begin(), q.end(), out, [&](float x) { return T(x * p.value_scale); });
    }
}

// Appends, and gives the same call without that, whose queries are in `q`.
template <class T, class Stored>
AttentionDecodeParams appended(const AttentionDecodeParams& p, std::vector<T>& q) {
    const std::int64_t of_sequence = std::int64_t{p.heads} * p.d;
    q.resize(static_cast<std::size_t>(p.batch * of_sequence));
    for (std::int64_t i = 0; i < std::int64_t{p.batch} * p.heads; ++i) {
        const T* from = static_cast<const T*>(p.q) + i / p.heads * p.q_at.batch + i % p.heads * p.q_at.head;
        std::copy_n(from, p.d, q.data() + i * p.d);
    }
    const DecodeAppend& from = p.append;
    kv_append_host<T, Stored>({.q = q.data(),
                               .k = from.k,
                               .v = from.v,
                               .keys = const_cast<void*>(p.keys),
                               .values = const_cast<void*>(p.values),
                               .positions = p.positions,
                               .q_norm = from.q_norm,
                               .k_norm = from.k_norm,
                               .rope = from.rope,
                               .batch = p.batch,
                               .tokens = 1,
                               .capacity = p.capacity,
                               .heads = p.heads,
                               .kv_heads = p.kv_heads,
                               .d = p.d,
                               .norm_eps = from.norm_eps,
                               .q_token_stride = of_sequence,
                               .k_token_stride = 0,
                               .v_token_stride = 0,
                               .q_batch_stride = of_sequence,
                               .k_batch_stride = from.k_batch_stride,
                               .v_batch_stride = from.v_batch_stride,
                               .key_head_stride = p.k_at.head,
                               .value_head_stride = p.v_at.head,
                               .key_batch_stride = p.k_at.batch,
                               .value_batch_stride = p.v_at.batch});
    AttentionDecodeParams rest = p;
    rest.append = {};
    rest.q = q.data();
    rest.q_at = {.batch = of_sequence, .head = p.d, .token = of_sequence};
    return rest;
}

template <class T, class Stored>
void attention_decode_host(const AttentionDecodeParams& p) {
    if (p.append.k != nullptr) {
        std::vector<T> q;
        return attention_decode_host<T, Stored>(appended<T, Stored>(p, q));
    }
    parallel_for(std::int64_t{p.batch} * p.kv_heads, 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) attend_group<T, Stored>(p, i / p.kv_heads, i % p.kv_heads);
    });
}

#define X(G, suffix, T, stored, Stored)                                                     \
    Kernel(KernelDef{.name = "attention_decode_" #suffix #stored "_r" #G,                   \
                     .image = &image_attention_decode,                                      \
                     .twin = twin<AttentionDecodeParams, attention_decode_host<T, Stored>>, \
                     .waits_for_predecessor = true}),
// Of each type, of one row and of four: over the same type, then over float8.
const Kernel kPlain[] = {GPK_DECODE_PLAIN(X)};
#undef X

constexpr int mma_shared_bytes(int max_d, int rows, int threads) { return threads / 32 * rows * max_d * 4; }

#define MMA(suffix, T, stored, Stored, D, N, threads, image_name)                               \
    Kernel(KernelDef{.name = "attention_decode_" #suffix #stored "_d" #D "_r" #N "_t" #threads, \
                     .image = &image_name,                                                      \
                     .twin = twin<AttentionDecodeParams, attention_decode_host<T, Stored>>,     \
                     .max_shared_bytes = mma_shared_bytes(D, N, threads),                       \
                     .waits_for_predecessor = true}),
#define SAME(suffix, T, stored, Stored, D, N, threads, ...) \
    MMA(suffix, T, stored, Stored, D, N, threads, image_attention_decode_mma)
#define NARROW(suffix, T, stored, Stored, D, N, threads, ...) \
    MMA(suffix, T, stored, Stored, D, N, threads, image_attention_decode_float8)
const Kernel kMma[] = {GPK_DECODE_MMA(SAME)};  // of float16, then of bfloat16
const Kernel kFloat8[] = {GPK_DECODE_MMA_FLOAT8(NARROW)};
#undef NARROW
#undef SAME
#undef MMA

std::vector<DecodeVariant> rows_of(DType dtype, DType stored) {
    std::vector<DecodeVariant> rows;
    const int type = float_index(dtype);
    const bool narrow = stored != dtype;
    const int of_type = static_cast<int>(narrow ? std::size(kFloat8) : std::size(kMma)) / 2;
    if (type > 0) {
#define X(suffix, T, stored, Stored, D, N, threads, blocks, steps) \
    {nullptr, true, D, N, threads, mma_shared_bytes(D, N, threads), blocks},
        constexpr DecodeVariant kShapes[] = {GPK_DECODE_MMA(X)}, kFloat8Shapes[] = {GPK_DECODE_MMA_FLOAT8(X)};
#undef X
        for (int i = 0; i < of_type; ++i) {
            const int at = (type - 1) * of_type + i;
            DecodeVariant row = (narrow ? kFloat8Shapes : kShapes)[at];
            row.kernel = &(narrow ? kFloat8 : kMma)[at];
            rows.push_back(row);
        }
    }
    const Kernel* plain = &kPlain[4 * type + (narrow ? 2 : 0)];
    // Four rows share what is read, where there are as many.
    rows.push_back({&plain[1], false, kMaxHeadDim, 4, kDecodeThreads, 0, 2});
    rows.push_back({&plain[0], false, kMaxHeadDim, 1, kDecodeThreads, 0, 2});
    return rows;
}

}  // namespace

std::span<const DecodeVariant> attention_decode(DType dtype, DType stored) {
    static const auto both = [](DType each) {
        return std::array{rows_of(each, each), rows_of(each, DType::float8_e4m3)};
    };
    static const std::array<std::vector<DecodeVariant>, 2> rows[] = {
        both(DType::float32), both(DType::float16), both(DType::bfloat16)};
    return rows[float_index(dtype)][stored == dtype ? 0 : 1];
}

}  // namespace gpk::kernels
