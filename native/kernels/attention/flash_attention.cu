#include "kernels/attention/flash_attention.hpp"
#include "kernels/device.cuh"
#include "kernels/floats.hpp"

namespace gpk::kernels {

namespace {

using Float4 = Vector<float, 4>;

constexpr int kThreads = FlashPlain::kThreads;
constexpr int kKeys = FlashPlain::kKeys;

// `rows` rows of d elements, of which each lies at(row) from `from` -> float32 in shared memory, rows `ld`
// apart. Rows from `limit` on, and columns up to the next multiple of four, are zero.
template <class T, class At>
__device__ __forceinline__ void load_tile(float* tile, int ld, const T* from, int rows, int limit, int d,
                                          bool vectorized, At&& at) {
    if (vectorized) {
        constexpr int kPer = 16 / sizeof(T);
        const int vectors = d / kPer;
        for (int i = threadIdx.x; i < rows * vectors; i += kThreads) {
            const int row = i / vectors, column = i % vectors * kPer;
            Vector<T, kPer> v = {};
            if (row < limit) v = *reinterpret_cast<const Vector<T, kPer>*>(from + at(row) + column);
#pragma unroll
            for (int j = 0; j < kPer; ++j) tile[row * ld + column + j] = float(v.values[j]);
        }
    } else {
        const int columns = (d + 3) / 4 * 4;
        for (int i = threadIdx.x; i < rows * columns; i += kThreads) {
            const int row = i / columns, column = i % columns;
            tile[row * ld + column] = row < limit && column < d ? float(from[at(row) + column]) : 0.0f;
        }
    }
}

// What the options make of a query's score.
template <class T>
__device__ __forceinline__ float changed(const FlashAttentionParams& p, const FlashTile& tile, float x,
                                         float scale, int row, int key) {
    x *= scale;
    if (p.soft_cap > 0) x = p.soft_cap * tanhf(x / p.soft_cap);
    if (p.slopes != nullptr) {
        x -= p.slopes[tile.head] * static_cast<float>(abs(key - tile.first_row - row - tile.shift));
    }
    if (p.mask_kind == MaskKind::none) return x;
    const std::int64_t at =
        tile.sequence * p.mask_batch + tile.head * p.mask_head + (tile.first_row + row) * p.mask_query + key;
    if (p.mask_kind == MaskKind::boolean) return static_cast<const bool*>(p.mask)[at] ? x : -INFINITY;
    if (p.mask_kind == MaskKind::float32) return x + static_cast<const float*>(p.mask)[at];
    return x + float(static_cast<const T*>(p.mask)[at]);
}

// Thread (ty, tx) of 16 x 8 works on the queries ty + 16 r of the tile and on the keys tx + 8 c; the
// eight lanes of one ty are neighbours in a warp. Output columns are 4 tx + 32 c.
template <class T, int D, int R>
__device__ __forceinline__ void flash_attention(const FlashAttentionParams& p) {
    constexpr int kQueries = 16 * R, kLd = D + 4, kScoreLd = kKeys + 4, kColumns = D / 32;
    extern __shared__ __align__(16) float shared[];
    float* q_tile = shared;
    float* kv_tile = q_tile + kQueries * kLd;
    float* score_tile = kv_tile + kKeys * kLd;
    wait_for_predecessor();

    const FlashTile tile = flash_tile(p, p.first_tile + static_cast<int>(blockIdx.x));
    if (tile.rows <= 0) return;
    const int kv_head = tile.head / (p.heads / p.kv_heads);
    const T* q = static_cast<const T*>(p.q) + tile.batch * p.q_at.batch + tile.head * p.q_at.head +
                 (tile.q_start + tile.first_row) * p.q_at.token;
    const T* keys = static_cast<const T*>(p.k) + kv_head * p.k_at.head;
    const T* values = static_cast<const T*>(p.v) + kv_head * p.v_at.head;
    const float scale = flash_scale(p, tile);
    load_tile(q_tile, kLd, q, kQueries, tile.rows, p.d, false, [&](int row) { return row * p.q_at.token; });

    const int ty = threadIdx.x / 8, tx = threadIdx.x % 8;
    const int padded = (p.d + 3) / 4 * 4;
    float highest[R], sum[R], acc[R][kColumns][4];
#pragma unroll
    for (int r = 0; r < R; ++r) {
        highest[r] = -INFINITY;
        sum[r] = 0;
#pragma unroll
        for (int c = 0; c < kColumns; ++c) {
#pragma unroll
            for (int j = 0; j < 4; ++j) acc[r][c][j] = 0;
        }
    }

    for (int first_key = tile.begin / kKeys * kKeys; first_key < tile.end; first_key += kKeys) {
        const int here = min(kKeys, tile.length - first_key);
        load_tile(kv_tile, kLd, keys, kKeys, here, p.d, p.vectorized,
                  [&](int row) { return key_offset(p, p.k_at, tile, first_key + row); });
        __syncthreads();

        float score[R][4] = {};
        for (int e = 0; e < padded; e += 4) {
            Float4 k[4];
#pragma unroll
            for (int c = 0; c < 4; ++c) {
                k[c] = *reinterpret_cast<const Float4*>(kv_tile + (tx + 8 * c) * kLd + e);
            }
#pragma unroll
            for (int r = 0; r < R; ++r) {
                const Float4 q = *reinterpret_cast<const Float4*>(q_tile + (ty + 16 * r) * kLd + e);
#pragma unroll
                for (int c = 0; c < 4; ++c) {
#pragma unroll
                    for (int j = 0; j < 4; ++j) score[r][c] += q.values[j] * k[c].values[j];
                }
            }
        }

#pragma unroll
        for (int r = 0; r < R; ++r) {
            const int row = min(ty + 16 * r, tile.rows - 1), place = tile.first_row + row + tile.shift;
            const int low = place - p.left, high = min(tile.length - 1, place + p.right);
            float top = highest[r];
#pragma unroll
            for (int c = 0; c < 4; ++c) {
                const int key = first_key + tx + 8 * c;
                score[r][c] =
                    key >= low && key <= high ? changed<T>(p, tile, score[r][c], scale, row, key) : -INFINITY;
                top = fmaxf(top, score[r][c]);
            }
#pragma unroll
            for (int step = 1; step < 8; step *= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, step));
            const float base = top == -INFINITY ? 0.0f : top;  // nothing seen yet
            const float keep = expf(highest[r] - base);
            highest[r] = top;
            sum[r] *= keep;
#pragma unroll
            for (int c = 0; c < 4; ++c) {
                const float weight = expf(score[r][c] - base);
                sum[r] += weight;
                score_tile[(ty + 16 * r) * kScoreLd + tx + 8 * c] = weight;
            }
#pragma unroll
            for (int c = 0; c < kColumns; ++c) {
#pragma unroll
                for (int j = 0; j < 4; ++j) acc[r][c][j] *= keep;
            }
        }
        __syncthreads();  // the keys are read
        load_tile(kv_tile, kLd, values, kKeys, here, p.d, p.vectorized,
                  [&](int row) { return key_offset(p, p.v_at, tile, first_key + row); });
        __syncthreads();

        for (int key = 0; key < kKeys; key += 4) {
            Float4 weight[R];
#pragma unroll
            for (int r = 0; r < R; ++r) {
                weight[r] = *reinterpret_cast<const Float4*>(score_tile + (ty + 16 * r) * kScoreLd + key);
            }
#pragma unroll
            for (int t = 0; t < 4; ++t) {
#pragma unroll
                for (int c = 0; c < kColumns; ++c) {
                    const int column = 4 * tx + 32 * c;
                    if (column < p.d) {
                        const Float4 v = *reinterpret_cast<const Float4*>(kv_tile + (key + t) * kLd + column);
#pragma unroll
                        for (int r = 0; r < R; ++r) {
#pragma unroll
                            for (int j = 0; j < 4; ++j) acc[r][c][j] += weight[r].values[t] * v.values[j];
                        }
                    }
                }
            }
        }
        __syncthreads();  // the values are read
    }

#pragma unroll
    for (int r = 0; r < R; ++r) {
#pragma unroll
        for (int step = 1; step < 8; step *= 2) sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], step);
        const int row = ty + 16 * r;
        if (row >= tile.rows) continue;
        T* out = static_cast<T*>(p.out) + tile.batch * p.out_at.batch + tile.head * p.out_at.head +
                 (tile.q_start + tile.first_row + row) * p.out_at.token;
        const float inverse = sum[r] == 0 ? 0.0f : flash_value_scale(p, tile) / sum[r];
#pragma unroll
        for (int c = 0; c < kColumns; ++c) {
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const int column = 4 * tx + 32 * c + j;
                if (column < p.d) out[column] = T(acc[r][c][j] * inverse);
            }
        }
    }
}

}  // namespace

#define VARIANT(D, R, suffix, T)                                                          \
    extern "C" __global__ void __launch_bounds__(kThreads)                                \
        flash_attention_##suffix##_d##D(const __grid_constant__ FlashAttentionParams p) { \
        flash_attention<T, D, R>(p);                                                      \
    }
#define X(suffix, T) GPK_FLASH_PLAIN(VARIANT, suffix, T)
GPK_FLOAT_TYPES(X)
#undef X
#undef VARIANT

}  // namespace gpk::kernels
