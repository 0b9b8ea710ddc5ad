#include "kernels/attention/flash_attention.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/attention/attend_host.hpp"
#include "kernels/floats.hpp"
#include "kernels/host.hpp"

namespace gpk {
extern const Image image_flash_attention, image_flash_attention_d64_sm90, image_flash_attention_d96_sm90,
    image_flash_attention_d128_sm90, image_flash_attention_d256_sm90;
}

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

// One query of a tile.
template <class T>
void attend_row(const FlashAttentionParams& p, const FlashTile& tile, std::int64_t row, HostAttention& room) {
    const std::int64_t kv_head = tile.head / (p.heads / p.kv_heads), token = tile.first_row + row;
    const std::int64_t place = token + tile.shift;
    const std::int64_t low = std::max<std::int64_t>(place - p.left, 0);
    const std::int64_t end = std::min<std::int64_t>(place + p.right + 1, tile.length);
    T* out = static_cast<T*>(p.out) + tile.batch * p.out_at.batch + tile.head * p.out_at.head +
             (tile.q_start + token) * p.out_at.token;
    if (end <= low) {
        std::fill_n(out, p.d, T(0.0f));
        return;
    }
    const KeyRange<T> keys{.keys = static_cast<const T*>(p.k) + tile.batch * p.k_at.batch +
                                   kv_head * p.k_at.head + (tile.k_start + low) * p.k_at.token,
                           .values = static_cast<const T*>(p.v) + tile.batch * p.v_at.batch +
                                     kv_head * p.v_at.head + (tile.k_start + low) * p.v_at.token,
                           .key_stride = p.k_at.token,
                           .value_stride = p.v_at.token,
                           .count = end - low,
                           .d = p.d};
    const T* q = static_cast<const T*>(p.q) + tile.batch * p.q_at.batch + tile.head * p.q_at.head +
                 (tile.q_start + token) * p.q_at.token;
    float* scores = room.score(keys, q, p.scale);
    const std::int64_t mask =
        tile.sequence * p.mask_batch + tile.head * p.mask_head + token * p.mask_query + low;
    for (std::int64_t i = 0; i < keys.count; ++i) {
        float score = scores[i];
        if (p.soft_cap > 0) score = p.soft_cap * std::tanh(score / p.soft_cap);
        if (p.slopes != nullptr) score -= p.slopes[tile.head] * static_cast<float>(std::abs(low + i - place));
        scores[i] = masked<T>(p, mask + i, score);
    }
    room.combine(keys, out);
}

template <class T>
void flash_attention_host(const FlashAttentionParams& p) {
    const std::int64_t tiles = p.end_tile - p.first_tile;
    parallel_for(tiles * p.tile_rows, 1, [&](std::int64_t begin, std::int64_t end) {
        HostAttention room;
        for (std::int64_t i = begin; i < end; ++i) {
            const FlashTile tile = flash_tile(p, static_cast<std::int32_t>(p.first_tile + i / p.tile_rows));
            if (i % p.tile_rows < tile.rows) attend_row<T>(p, tile, i % p.tile_rows, room);
        }
    });
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

#define SM90(D, N, W, S, suffix, T, options)                                      \
    Kernel(KernelDef{.name = "flash_attention_" #suffix "_d" #D #options "_sm90", \
                     .image = &image_flash_attention_d##D##_sm90,                 \
                     .twin = twin<FlashAttentionParams, flash_attention_host<T>>, \
                     .max_shared_bytes = FlashSm90{D, N, W, S}.shared_bytes(),    \
                     .waits_for_predecessor = true}),
// [float16, bfloat16][without options, with]
const Kernel kSm90[2][2][4] = {
    {{GPK_FLASH_SM90(SM90, f16, float16, )}, {GPK_FLASH_SM90(SM90, f16, float16, _options)}},
    {{GPK_FLASH_SM90(SM90, bf16, bfloat16, )}, {GPK_FLASH_SM90(SM90, bf16, bfloat16, _options)}}};
#undef SM90

std::vector<FlashVariant> rows_of(DType dtype, bool options) {
    std::vector<FlashVariant> rows;
    const int type = float_index(dtype);
    if (type > 0) {
        const Kernel* kernel = kSm90[type - 1][options];
#define X(D, N, W, S, ...)                                                   \
    rows.push_back({kernel++, true, D, FlashSm90{D, N, W, S}.tile_rows(), N, \
                    FlashSm90{D, N, W, S}.threads(), FlashSm90{D, N, W, S}.shared_bytes()});
        GPK_FLASH_SM90(X, )
#undef X
    }
    const Kernel* kernel = kPlain[type];
#define X(D, R, ...)                                                                     \
    rows.push_back({kernel++, false, D, FlashPlain{D, R}.tile_rows(), FlashPlain::kKeys, \
                    FlashPlain::kThreads, FlashPlain{D, R}.shared_bytes()});
    GPK_FLASH_PLAIN(X, )
#undef X
    return rows;
}

}  // namespace

std::span<const FlashVariant> flash_attention(DType dtype, bool options) {
    static const std::vector<FlashVariant> rows[3][2] = {
        {rows_of(DType::float32, false), rows_of(DType::float32, true)},
        {rows_of(DType::float16, false), rows_of(DType::float16, true)},
        {rows_of(DType::bfloat16, false), rows_of(DType::bfloat16, true)}};
    return rows[float_index(dtype)][options];
}

}  // namespace gpk::kernels
