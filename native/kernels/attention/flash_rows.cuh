// What the kernels of flash_attention do alike with the scores of two queries: rows `row` and `row` + 8 of a
// tile are a thread's, together with three other lanes, as mma.m16n8 and wgmma lay accumulators out. Element
// i of an array of scores is of row + i / 2 % 2 * 8 and key i / 4 * 8 + column + i % 2 of the block; of
// results the same columns.
//
// exp2 is ex2.approx (2 units in the last place of float32, under what rounding the weights to 16 bits does).
#pragma once

#include <type_traits>

#include "kernels/attention/flash_attention.hpp"
#include "kernels/device.cuh"
#include "kernels/pairs.cuh"

namespace gpk::kernels {

__device__ __forceinline__ float exp2_approx(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
// Four numbers, the first in the lowest byte; what is too large becomes the largest.
__device__ __forceinline__ std::uint32_t pack_e4m3(float a, float b, float c, float d) {
    std::uint16_t low, high;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(low) : "f"(b), "f"(a));
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(high) : "f"(d), "f"(c));
    return static_cast<std::uint32_t>(low) | static_cast<std::uint32_t>(high) << 16;
}

// kGeneral: with options (a mask, slopes, a soft cap) or a scale that is not positive. Element: of a mask of
// the queries' dtype. kLazy: weigh() is used.
template <class Element, int kKeys, bool kGeneral, bool kLazy = false>
struct FlashRows {
    static constexpr float kLog2E = 1.44269504f;
    static constexpr bool kFloat8 = sizeof(Element) == 1;
    static constexpr int kOfWord = kFloat8 ? 4 : 2;  // weights
    static constexpr int kWeights = kKeys / (8 * kOfWord);
    // The logarithm of the weight of the highest score. e4m3 has 3 bits of weights from 2^-6 to 448; what a
    // thread has of a row stays under that in the lazy way, so that none is more.
    static constexpr int kHighest = !kFloat8 ? 0 : kLazy ? 3 : 8;
    static constexpr float kLimit = 448;

    int row, column;
    float scale, to_log2;  // of the products; of what mask() leaves, to powers of two
    float highest[2], sum[2], keep[2];

    __device__ __forceinline__ void begin(const FlashAttentionParams& p, const FlashTile& tile) {
        scale = flash_scale(p, tile);
        to_log2 = (kGeneral ? 1.0f : scale) * kLog2E;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            highest[r] = -INFINITY;
            sum[r] = 0;
        }
    }

    // What is not seen becomes -infinity. The rows from `group` on, kGroup of them, go together.
    template <int kGroup>
    __device__ __forceinline__ void mask(const FlashAttentionParams& p, const FlashTile& tile,
                                         float (&score)[kKeys / 2], int first_key, int group) const {
        const int first_place = tile.first_row + group + tile.shift;
        if constexpr (kGeneral) change(p, tile, score, first_key);
        const bool all_seen = first_key + kKeys <= least(tile.length, first_place + p.right + 1) &&
                              first_key >= first_place + kGroup - 1 - p.left;
        if (all_seen) return;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int place = tile.first_row + row + 8 * r + tile.shift, offset = first_key + column;
            const int low = place - p.left - offset;
            const int high = least(tile.length - 1, place + p.right) - offset;
#pragma unroll
            for (int i = 0; i < kKeys / 4; ++i) {
                const int key = i / 2 * 8 + i % 2, at = i / 2 * 4 + 2 * r + i % 2;
                score[at] = key >= low && key <= high ? score[at] : -INFINITY;
            }
        }
    }

    // The scores become weights; keep is what earlier sums and products are to be multiplied by.
    __device__ __forceinline__ void softmax(float (&score)[kKeys / 2]) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            float tops[2] = {highest[r], highest[r]};
#pragma unroll
            for (int i = 0; i < kKeys / 4; ++i) {
                tops[i % 2] = fmaxf(tops[i % 2], score[i / 2 * 4 + 2 * r + i % 2]);
            }
            float top = fmaxf(tops[0], tops[1]);
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
            const float base = top == -INFINITY ? 0.0f : top * to_log2;
            keep[r] = exp2_approx(highest[r] * to_log2 - base);
            highest[r] = top;
            const float shifted = base - kHighest;
            float here[2] = {};
#pragma unroll
            for (int i = 0; i < kKeys / 4; ++i) {
                float& x = score[i / 2 * 4 + 2 * r + i % 2];
                x = exp2_approx(x * to_log2 - shifted);
                here[i % 2] += x;
            }
            sum[r] = sum[r] * keep[r] + (here[0] + here[1]);
        }
    }
    // The weights by the highest scores of blocks before, where that is good enough: this one's scores need
    // not be compared then, nor sums and products changed. Scores stay as they are.
    __device__ __forceinline__ bool weigh(const float (&score)[kKeys / 2],
                                          std::uint32_t (&weight)[kWeights][4]) {
        float here[2] = {}, shifted[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) shifted[r] = highest[r] * to_log2 - kHighest;
#pragma unroll
        for (int i = 0; i < kWeights * 4; ++i) {
            float x[kOfWord];
#pragma unroll
            for (int j = 0; j < kOfWord; ++j) {
                x[j] = exp2_approx(score[place(i, j)] * to_log2 - shifted[i % 2]);
                here[i % 2] += x[j];
            }
            weight[i / 4][i % 4] = word(x);
        }
        // Of rows that have seen nothing, and with NaN, nothing is under a limit.
        const bool good = here[0] < kLimit && here[1] < kLimit;
        if (!__all_sync(0xffffffffu, good)) return false;
#pragma unroll
        for (int r = 0; r < 2; ++r) sum[r] += here[r];
        return true;
    }
    // Scores that have become weights, as a product wants them.
    __device__ __forceinline__ static void pack(const float (&score)[kKeys / 2],
                                                std::uint32_t (&weight)[kWeights][4]) {
#pragma unroll
        for (int i = 0; i < kWeights * 4; ++i) {
            float x[kOfWord];
#pragma unroll
            for (int j = 0; j < kOfWord; ++j) x[j] = score[place(i, j)];
            weight[i / 4][i % 4] = word(x);
        }
    }
    template <int kCount>
    __device__ __forceinline__ void rescale(float (&acc)[kCount]) const {
#pragma unroll
        for (int i = 0; i < kCount; ++i) acc[i] *= keep[i / 2 % 2];
    }

    // What the rows have come to. The first d columns are stored, in pieces of 8.
    template <class Out, int kCount>
    __device__ __forceinline__ void store(const FlashAttentionParams& p, const FlashTile& tile,
                                          const float (&acc)[kCount]) {
        const int lane = threadIdx.x % 4;
        const float factor = flash_value_scale(p, tile);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 1);
            sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 2);
            const float inverse = sum[r] == 0 ? 0.0f : factor / sum[r];
            Out* out = static_cast<Out*>(p.out) + tile.batch * p.out_at.batch + tile.head * p.out_at.head +
                       (tile.q_start + tile.first_row + row + 8 * r) * p.out_at.token;
#pragma unroll
            for (int i = 0; i < kCount / 16; ++i) {
                // Four lanes hold pairs of four times 8 columns; each gets 8 columns whole.
                std::uint32_t x[4];
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    const int at = (4 * i + j) * 4 + 2 * r;
                    x[j] = gpk::kernels::pack_pair<Out>(acc[at] * inverse, acc[at + 1] * inverse);
                }
#pragma unroll
                for (int step = 1; step <= 2; step *= 2) {
                    const bool upper = lane & step;
#pragma unroll
                    for (int j = 0; j < 4; ++j) {
                        if (j & step) continue;
                        const std::uint32_t got =
                            __shfl_xor_sync(0xffffffffu, upper ? x[j] : x[j + step], step);
                        (upper ? x[j] : x[j + step]) = got;
                    }
                }
                const int first = 32 * i + 8 * lane;
                if (row + 8 * r < tile.rows && first < p.d) {
                    *reinterpret_cast<Vector<std::uint32_t, 4>*>(out + first) = {x[0], x[1], x[2], x[3]};
                }
            }
        }
    }

   private:
    // Which score is number j of word i. With float8 a word has pairs of two times 8 keys (see flash_values).
    __device__ __forceinline__ static constexpr int place(int i, int j) {
        return kFloat8 ? i / 4 * 16 + i % 4 / 2 * 8 + i % 2 * 2 + j / 2 * 4 + j % 2 : 2 * i + j;
    }
    __device__ __forceinline__ static std::uint32_t word(const float (&x)[kOfWord]) {
        if constexpr (kFloat8) {
            return pack_e4m3(x[0], x[1], x[2], x[3]);
        } else {
            return gpk::kernels::pack_pair<Element>(x[0], x[1]);
        }
    }
    // x of each score of the block becomes made(x, row of the tile, key).
    template <class Made>
    __device__ __forceinline__ void each(float (&score)[kKeys / 2], int first_key, Made&& made) const {
#pragma unroll
        for (int i = 0; i < kKeys / 2; ++i) {
            score[i] = made(score[i], row + i / 2 % 2 * 8, first_key + i / 4 * 8 + column + i % 2);
        }
    }
    // `apply`: what an element of the mask makes of a score.
    template <class Value, class Apply>
    __device__ __forceinline__ void each_masked(const FlashAttentionParams& p, const FlashTile& tile,
                                                float (&score)[kKeys / 2], int first_key,
                                                Apply&& apply) const {
        const Value* mask = static_cast<const Value*>(p.mask) + tile.sequence * p.mask_batch +
                            tile.head * p.mask_head + first_key + column;
        const int limit = tile.length - first_key - column;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const Value* line = mask + (tile.first_row + least(row + 8 * r, tile.rows - 1)) * p.mask_query;
#pragma unroll
            for (int i = 0; i < kKeys / 4; ++i) {
                const int key = i / 2 * 8 + i % 2;
                float& x = score[i / 2 * 4 + 2 * r + i % 2];
                if (key < limit) x = apply(x, line[key]);
            }
        }
    }
    __device__ __forceinline__ void change(const FlashAttentionParams& p, const FlashTile& tile,
                                           float (&score)[kKeys / 2], int first_key) const {
        if (p.soft_cap > 0) {
            const float twice = 2 * kLog2E * scale / p.soft_cap;
            each(score, first_key, [&](float x, int, int) {
                return p.soft_cap - 2 * p.soft_cap * __frcp_rn(1 + exp2_approx(x * twice));
            });
        } else {
            each(score, first_key, [&](float x, int, int) { return x * scale; });
        }
        if (p.slopes != nullptr) {
            const float slope = p.slopes[tile.head];
            const int shift = tile.first_row + tile.shift;
            each(score, first_key, [&](float x, int at, int key) {
                return x - slope * static_cast<float>(abs(key - at - shift));
            });
        }
        switch (p.mask_kind) {
            case MaskKind::none: break;
            case MaskKind::boolean:
                each_masked<bool>(p, tile, score, first_key,
                                  [](float x, bool seen) { return seen ? x : -INFINITY; });
                break;
            case MaskKind::element:
                each_masked<Element>(p, tile, score, first_key,
                                     [](float x, Element more) { return x + float(more); });
                break;
            case MaskKind::float32:
                each_masked<float>(p, tile, score, first_key, [](float x, float more) { return x + more; });
                break;
        }
    }
};

}  // namespace gpk::kernels
