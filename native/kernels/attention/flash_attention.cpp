#include "kernels/attention/flash_attention.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/attention/attend_host.hpp"
#include "kernels/floats.hpp"
#include "kernels/host.hpp"

namespace gpk {
#define X(D, ...) extern const Image image_flash_attention_d##D##_mma, image_flash_attention_d##D##_sm90;
GPK_FLASH_SM90(X, )
#undef X
#define X(D, ...) extern const Image image_flash_attention_float8_d##D##_sm90;
GPK_FLASH_FLOAT8(X, )
#undef X
extern const Image image_flash_attention;
}  // namespace gpk

namespace gpk::kernels {

namespace {

template <class T>
float masked(const FlashAttentionParams& p, std::int64_t at, float score) {
    switch (p.mask_kind) {
        case MaskKind::none: break;
        case MaskKind::boolean: return static_cast<const bool*>(p.mask)[at] ? score : -INFINITY;
        case MaskKind::element: return score + static_cast<float>(static_cast<const T*>(p.mask)[at]);
        case MaskKind::float32: return score + static_cast<const float*>(p.mask)[at];
    }
    return score;
}

// A tile, and its keys begin .. end - 1: where they lie, or as float32 in rows of their own.
template <class T>
class HostTile {
   public:
    static constexpr bool kWiden = sizeof(T) == 1;

    HostTile(const FlashAttentionParams& p, std::int32_t index) : p_(p), tile_(flash_tile(p, index)) {
        if (kWiden || p.pages != nullptr) {
            keys_ = gather(p.k, p.k_at);
            values_ = gather(p.v, p.v_at);
        }
    }

    std::int32_t rows() const { return tile_.rows; }
    template <class Out>
    void attend(std::int64_t row, HostAttention& room) const {
        const T* q = static_cast<const T*>(p_.q) + tile_.batch * p_.q_at.batch + tile_.head * p_.q_at.head +
                     (tile_.q_start + tile_.first_row + row) * p_.q_at.token;
        const std::int64_t first = std::int64_t{tile_.begin} * p_.d;
        if (kWiden || p_.pages != nullptr) {
            const std::vector<float> wide(q, q + p_.d);
            attend_row<float, Out>(row, wide.data(), keys_.data() - first, values_.data() - first, p_.d, p_.d,
                                   room);
        } else if constexpr (!kWiden) {
            attend_row<T, Out>(row, q, head_of(p_.k, p_.k_at) + key_offset(p_, p_.k_at, tile_, 0),
                               head_of(p_.v, p_.v_at) + key_offset(p_, p_.v_at, tile_, 0), p_.k_at.token,
                               p_.v_at.token, room);
        }
    }

   private:
    const T* head_of(const void* from, const AttentionStrides& at) const {
        return static_cast<const T*>(from) + tile_.head / (p_.heads / p_.kv_heads) * at.head;
    }
    std::vector<float> gather(const void* from, const AttentionStrides& at) const {
        std::vector<float> rows;
        rows.reserve(static_cast<std::size_t>(tile_.end - tile_.begin) * static_cast<std::size_t>(p_.d));
        for (std::int32_t key = tile_.begin; key < tile_.end; ++key) {
            const T* row = head_of(from, at) + key_offset(p_, at, tile_, key);
            for (std::int32_t i = 0; i < p_.d; ++i) rows.push_back(static_cast<float>(row[i]));
        }
        return rows;
    }

    // `keys` and `values`: of key 0.
    template <class Key, class Out>
    void attend_row(std::int64_t row, const Key* q, const Key* keys, const Key* values,
                    std::int64_t key_stride, std::int64_t value_stride, HostAttention& room) const {
        const std::int64_t token = tile_.first_row + row, place = token + tile_.shift;
        const std::int64_t low = std::max<std::int64_t>(place - p_.left, 0);
        const std::int64_t end = std::min<std::int64_t>(place + p_.right + 1, tile_.length);
        Out* out = static_cast<Out*>(p_.out) + tile_.batch * p_.out_at.batch + tile_.head * p_.out_at.head +
                   (tile_.q_start + token) * p_.out_at.token;
        if (end <= low) {
            std::fill_n(out, p_.d, Out(0.0f));
            return;
        }
        const KeyRange<Key> range{.keys = keys + low * key_stride,
                                  .values = values + low * value_stride,
                                  .key_stride = key_stride,
                                  .value_stride = value_stride,
                                  .count = end - low,
                                  .d = p_.d};
        float* scores = room.score(range, q, flash_scale(p_, tile_));
        const std::int64_t mask =
            tile_.sequence * p_.mask_batch + tile_.head * p_.mask_head + token * p_.mask_query + low;
        for (std::int64_t i = 0; i < range.count; ++i) {
            float score = scores[i];
            if (p_.soft_cap > 0) score = p_.soft_cap * std::tanh(score / p_.soft_cap);
            if (p_.slopes != nullptr) {
                score -= p_.slopes[tile_.head] * static_cast<float>(std::abs(low + i - place));
            }
            scores[i] = masked<T>(p_, mask + i, score);
        }
        room.combine(range, out, flash_value_scale(p_, tile_));
    }

    const FlashAttentionParams& p_;
    FlashTile tile_;
    std::vector<float> keys_, values_;
};

template <class T, class Out>
void attend_tiles(const FlashAttentionParams& p) {
    const std::int64_t tiles = p.end_tile - p.first_tile;
    parallel_for(tiles * p.tile_rows, 1, [&](std::int64_t begin, std::int64_t end) {
        HostAttention room;
        while (begin < end) {
            const std::int64_t index = begin / p.tile_rows, next = std::min(end, (index + 1) * p.tile_rows);
            const HostTile<T> tile(p, static_cast<std::int32_t>(p.first_tile + index));
            const std::int64_t rows = std::min(next - index * p.tile_rows, std::int64_t{tile.rows()});
            for (std::int64_t row = begin % p.tile_rows; row < rows; ++row) {
                tile.template attend<Out>(row, room);
            }
            begin = next;
        }
    });
}

template <class T>
void flash_attention_host(const FlashAttentionParams& p) {
    if constexpr (sizeof(T) > 1) {
        attend_tiles<T, T>(p);
    } else if (p.out_float16 != 0) {
        attend_tiles<T, float16>(p);
    } else {
        attend_tiles<T, bfloat16>(p);
    }
}

#define PLAIN(D, R, suffix, T)                                                    \
    Kernel(KernelDef{.name = "flash_attention_" #suffix "_d" #D,                  \
                     .image = &image_flash_attention,                             \
                     .twin = twin<FlashAttentionParams, flash_attention_host<T>>, \
                     .max_shared_bytes = FlashPlain{D, R}.shared_bytes(),         \
                     .waits_for_predecessor = true}),
#define X(suffix, T) {GPK_FLASH_PLAIN(PLAIN, suffix, T)},
const Kernel kPlain[][3] = {GPK_FLOAT_TYPES(X)};
#undef X
#undef PLAIN

#define MMA(D, N, G, B, suffix, T, options)                                       \
    Kernel(KernelDef{.name = "flash_attention_" #suffix "_d" #D #options "_mma",  \
                     .image = &image_flash_attention_d##D##_mma,                  \
                     .twin = twin<FlashAttentionParams, flash_attention_host<T>>, \
                     .max_shared_bytes = FlashMma{D, N, G, B}.shared_bytes(),     \
                     .waits_for_predecessor = true}),
#define SM90(D, N, W, S, suffix, T, options)                                      \
    Kernel(KernelDef{.name = "flash_attention_" #suffix "_d" #D #options "_sm90", \
                     .image = &image_flash_attention_d##D##_sm90,                 \
                     .twin = twin<FlashAttentionParams, flash_attention_host<T>>, \
                     .max_shared_bytes = FlashSm90{D, N, W, S}.shared_bytes(),    \
                     .waits_for_predecessor = true}),
#define FLOAT8(D, N, W, S, options)                                                         \
    Kernel(KernelDef{.name = "flash_attention_e4m3_d" #D #options "_sm90",                  \
                     .image = &image_flash_attention_float8_d##D##_sm90,                    \
                     .twin = twin<FlashAttentionParams, flash_attention_host<float8_e4m3>>, \
                     .max_shared_bytes = FlashSm90{D, N, W, S, 1}.shared_bytes(),           \
                     .waits_for_predecessor = true}),
// [float16, bfloat16][without options, with]
const Kernel kMma[2][2][4] = {
    {{GPK_FLASH_MMA(MMA, f16, float16, )}, {GPK_FLASH_MMA(MMA, f16, float16, _options)}},
    {{GPK_FLASH_MMA(MMA, bf16, bfloat16, )}, {GPK_FLASH_MMA(MMA, bf16, bfloat16, _options)}}};
const Kernel kSm90[2][2][4] = {
    {{GPK_FLASH_SM90(SM90, f16, float16, )}, {GPK_FLASH_SM90(SM90, f16, float16, _options)}},
    {{GPK_FLASH_SM90(SM90, bf16, bfloat16, )}, {GPK_FLASH_SM90(SM90, bf16, bfloat16, _options)}}};
const Kernel kFloat8[2][3] = {{GPK_FLASH_FLOAT8(FLOAT8, )}, {GPK_FLASH_FLOAT8(FLOAT8, _options)}};
#undef FLOAT8
#undef SM90
#undef MMA

FlashVariant sm90_row(const Kernel& kernel, const FlashSm90& shape) {
    return {&kernel,
            true,
            true,
            shape.max_d,
            shape.tile_rows(),
            shape.keys,
            shape.threads(),
            shape.shared_bytes()};
}

std::vector<FlashVariant> rows_of(DType dtype, bool options) {
    std::vector<FlashVariant> rows;
    if (dtype == DType::float8_e4m3) {
        const Kernel* kernel = kFloat8[options];
#define X(D, N, W, S, ...) rows.push_back(sm90_row(*kernel++, FlashSm90{D, N, W, S, 1}));
        GPK_FLASH_FLOAT8(X, )
#undef X
        return rows;
    }
    const int type = float_index(dtype);
    if (type > 0) {
        const Kernel* kernel = kSm90[type - 1][options];
#define X(D, N, W, S, ...) rows.push_back(sm90_row(*kernel++, FlashSm90{D, N, W, S}));
        GPK_FLASH_SM90(X, )
#undef X
        kernel = kMma[type - 1][options];
#define X(D, N, G, B, ...)                                                                             \
    rows.push_back({kernel++, true, false, D, FlashMma{D, N, G, B}.tile_rows(), N, FlashMma::kThreads, \
                    FlashMma{D, N, G, B}.shared_bytes()});
        GPK_FLASH_MMA(X, )
#undef X
    }
    const Kernel* kernel = kPlain[type];
#define X(D, R, ...)                                                                            \
    rows.push_back({kernel++, false, false, D, FlashPlain{D, R}.tile_rows(), FlashPlain::kKeys, \
                    FlashPlain::kThreads, FlashPlain{D, R}.shared_bytes()});
    GPK_FLASH_PLAIN(X, )
#undef X
    return rows;
}

}  // namespace

std::span<const FlashVariant> flash_attention(DType dtype, bool options) {
    static const std::vector<FlashVariant> rows[4][2] = {
        {rows_of(DType::float32, false), rows_of(DType::float32, true)},
        {rows_of(DType::float16, false), rows_of(DType::float16, true)},
        {rows_of(DType::bfloat16, false), rows_of(DType::bfloat16, true)},
        {rows_of(DType::float8_e4m3, false), rows_of(DType::float8_e4m3, true)}};
    return rows[dtype == DType::float8_e4m3 ? 3 : float_index(dtype)][options];
}

}  // namespace gpk::kernels
