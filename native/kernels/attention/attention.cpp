#include "kernels/attention/attention.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/floats.hpp"
#include "kernels/host.hpp"

namespace gpk {
extern const Image image_attention_decode, image_attention_prefill;
}

namespace gpk::kernels {

namespace {

constexpr int kLanes = 16;  // partial sums of a dot product, so that it runs in vectors

// One query over `length` keys. `scores` has room for length numbers, `acc` for d.
template <class T>
[[gnu::always_inline]] inline void attend(const AttentionParams& p, const T* q, const T* keys,
                                          const T* values, std::int64_t length, float* scores, float* acc,
                                          T* out) {
    const std::int64_t d = p.d;
    float query[kMaxHeadDim];
    for (std::int64_t i = 0; i < d; ++i) query[i] = static_cast<float>(q[i]) * p.scale;
    float highest = -INFINITY;
    for (std::int64_t key = 0; key < length; ++key) {
        const T* k = keys + key * p.key_stride;
        float partial[kLanes] = {};
        std::int64_t i = 0;
        for (; i + kLanes <= d; i += kLanes) {
            for (int lane = 0; lane < kLanes; ++lane) {
                partial[lane] += query[i + lane] * static_cast<float>(k[i + lane]);
            }
        }
        float dot = 0;
        for (; i < d; ++i) dot += query[i] * static_cast<float>(k[i]);
        for (int lane = 0; lane < kLanes; ++lane) dot += partial[lane];
        scores[key] = dot;
        highest = std::max(highest, dot);
    }
    float sum = 0;
    std::fill_n(acc, d, 0.0f);
    for (std::int64_t key = 0; key < length; ++key) {
        const float weight = std::exp(scores[key] - highest);
        const T* v = values + key * p.value_stride;
        sum += weight;
        for (std::int64_t i = 0; i < d; ++i) acc[i] += weight * static_cast<float>(v[i]);
    }
    for (std::int64_t i = 0; i < d; ++i) out[i] = T(acc[i] / sum);
}

template <class T>
void attend_one(const AttentionParams& p, const T* q, const T* keys, const T* values, std::int64_t length,
                float* scores, float* acc, T* out);

#define X(suffix, T)                                                                                    \
    GPK_SIMD void attend_##suffix(const AttentionParams& p, const T* q, const T* keys, const T* values, \
                                  std::int64_t length, float* scores, float* acc, T* out) {             \
        attend<T>(p, q, keys, values, length, scores, acc, out);                                        \
    }                                                                                                   \
    template <>                                                                                         \
    void attend_one<T>(const AttentionParams& p, const T* q, const T* keys, const T* values,            \
                       std::int64_t length, float* scores, float* acc, T* out) {                        \
        attend_##suffix(p, q, keys, values, length, scores, acc, out);                                  \
    }
GPK_FLOAT_TYPES(X)
#undef X

template <class T>
void attention_host(const AttentionParams& p) {
    const std::int64_t group = p.heads / p.kv_heads;
    const std::int64_t count = p.tokens - p.first_token;
    parallel_for(count * p.heads, 1, [&](std::int64_t begin, std::int64_t end) {
        std::vector<float> scores, acc(static_cast<std::size_t>(p.d));
        for (std::int64_t i = begin; i < end; ++i) {
            // Neighbours share a key/value head, whose keys then stay in the cache.
            const std::int64_t head = i / count, token = p.first_token + i % count, kv_head = head / group;
            const std::int64_t length = std::clamp<std::int64_t>(*p.position + token + 1, 1, p.capacity);
            if (scores.size() < static_cast<std::size_t>(length)) {
                scores.resize(static_cast<std::size_t>(length));
            }
            attend_one<T>(p, static_cast<const T*>(p.q) + token * p.q_token_stride + head * p.q_head_stride,
                          static_cast<const T*>(p.keys) + kv_head * p.key_head_stride,
                          static_cast<const T*>(p.values) + kv_head * p.value_head_stride, length,
                          scores.data(), acc.data(), static_cast<T*>(p.out) + (token * p.heads + head) * p.d);
        }
    });
}

#define TILE(G, suffix, T)                                             \
    Kernel(KernelDef{.name = "attention_decode_" #suffix "_g" #G,      \
                     .image = &image_attention_decode,                 \
                     .twin = twin<AttentionParams, attention_host<T>>, \
                     .waits_for_predecessor = true}),
#define X(suffix, T) {GPK_DECODE_HEAD_TILES(TILE, suffix, T)},
const Kernel kDecode[][std::size(kDecodeHeadTiles)] = {GPK_FLOAT_TYPES(X)};
#undef X
#undef TILE

#define VARIANT(D, R, suffix, T)                                              \
    Kernel(KernelDef{.name = "attention_prefill_" #suffix "_d" #D,            \
                     .image = &image_attention_prefill,                       \
                     .twin = twin<AttentionParams, attention_host<T>>,        \
                     .max_shared_bytes = PrefillVariant{D, R}.shared_bytes(), \
                     .waits_for_predecessor = true}),
#define X(suffix, T) {GPK_PREFILL_VARIANTS(VARIANT, suffix, T)},
const Kernel kPrefill[][std::size(kPrefillVariants)] = {GPK_FLOAT_TYPES(X)};
#undef X
#undef VARIANT

}  // namespace

const Kernel& attention_decode(DType dtype, int head_tile) {
    const int* tile = std::find(std::begin(kDecodeHeadTiles), std::end(kDecodeHeadTiles), head_tile);
    return kDecode[float_index(dtype)][tile - kDecodeHeadTiles];
}

const Kernel& attention_prefill(DType dtype, int variant) { return kPrefill[float_index(dtype)][variant]; }

}  // namespace gpk::kernels
