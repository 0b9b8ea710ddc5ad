#include "kernels/attention/attention.hpp"
#include "kernels/device.cuh"
#include "kernels/floats.hpp"

namespace gpk::kernels {

namespace {

using Float4 = Vector<float, 4>;

constexpr int kThreads = PrefillVariant::kThreads;
constexpr int kKeys = PrefillVariant::kKeyTile;

// `rows` rows of d elements -> float32 in shared memory, rows `ld` apart. Rows from `limit` on, and
// columns up to the next multiple of four, are zero.
template <class T>
__device__ __forceinline__ void load_tile(float* tile, int ld, const T* from, std::int64_t stride, int rows,
                                          int limit, int d, bool vectorized) {
    if (vectorized) {
        constexpr int kPer = 16 / sizeof(T);
        const int vectors = d / kPer;
        for (int i = threadIdx.x; i < rows * vectors; i += kThreads) {
            const int row = i / vectors, column = i % vectors * kPer;
            Vector<T, kPer> v = {};
            if (row < limit) v = *reinterpret_cast<const Vector<T, kPer>*>(from + row * stride + column);
#pragma unroll
            for (int j = 0; j < kPer; ++j) tile[row * ld + column + j] = float(v.values[j]);
        }
    } else {
        const int columns = (d + 3) / 4 * 4;
        for (int i = threadIdx.x; i < rows * columns; i += kThreads) {
            const int row = i / columns, column = i % columns;
            tile[row * ld + column] = row < limit && column < d ? float(from[row * stride + column]) : 0.0f;
        }
    }
}

// Thread (ty, tx) of 16 x 8 works on the queries ty + 16 r of the tile and on the keys tx + 8 c; the
// eight lanes of one ty are neighbours in a warp. Output columns are 4 tx + 32 c.
template <class T, int D, int R>
__device__ __forceinline__ void prefill(const AttentionParams& p) {
    constexpr int kQueries = 16 * R, kLd = D + 4, kScoreLd = kKeys + 4, kColumns = D / 32;
    extern __shared__ __align__(16) float shared[];
    float* q_tile = shared;
    float* kv_tile = q_tile + kQueries * kLd;
    float* score_tile = kv_tile + kKeys * kLd;
    wait_for_predecessor();

    const int head = blockIdx.x, kv_head = head / (p.heads / p.kv_heads);
    // The last tiles see the most keys; they start first.
    const int first_query = p.first_token + (gridDim.y - 1 - blockIdx.y) * kQueries;
    const int queries = min(kQueries, p.tokens - first_query);
    const int base = *p.position + first_query;  // position of the tile's first query
    const int length = max(1, min(base + queries, p.capacity));
    const T* keys = static_cast<const T*>(p.keys) + kv_head * p.key_head_stride;
    const T* values = static_cast<const T*>(p.values) + kv_head * p.value_head_stride;
    load_tile(q_tile, kLd,
              static_cast<const T*>(p.q) + first_query * p.q_token_stride + head * p.q_head_stride,
              p.q_token_stride, kQueries, queries, p.d, false);

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

    for (int first_key = 0; first_key < length; first_key += kKeys) {
        const int here = min(kKeys, length - first_key);
        load_tile(kv_tile, kLd, keys + first_key * p.key_stride, p.key_stride, kKeys, here, p.d,
                  p.vectorized);
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
            // Every query sees key 0, so `top` is finite from the first tile on.
            const int last_key = min(base + ty + 16 * r, length - 1);
            float top = highest[r];
#pragma unroll
            for (int c = 0; c < 4; ++c) {
                score[r][c] = first_key + tx + 8 * c <= last_key ? score[r][c] * p.scale : -INFINITY;
                top = fmaxf(top, score[r][c]);
            }
#pragma unroll
            for (int step = 1; step < 8; step *= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, step));
            const float keep = expf(highest[r] - top);
            highest[r] = top;
            sum[r] *= keep;
#pragma unroll
            for (int c = 0; c < 4; ++c) {
                const float weight = expf(score[r][c] - top);
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
        load_tile(kv_tile, kLd, values + first_key * p.value_stride, p.value_stride, kKeys, here, p.d,
                  p.vectorized);
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
        const int query = ty + 16 * r;
        if (query >= queries) continue;
        const std::int64_t row = static_cast<std::int64_t>(first_query + query) * p.heads + head;
        T* out = static_cast<T*>(p.out) + row * p.d;
        const float inverse = 1.0f / sum[r];
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

#define VARIANT(D, R, suffix, T)                                                       \
    extern "C" __global__ void __launch_bounds__(kThreads)                             \
        attention_prefill_##suffix##_d##D(const __grid_constant__ AttentionParams p) { \
        prefill<T, D, R>(p);                                                           \
    }
#define X(suffix, T) GPK_PREFILL_VARIANTS(VARIANT, suffix, T)
GPK_FLOAT_TYPES(X)
#undef X
#undef VARIANT

}  // namespace gpk::kernels
