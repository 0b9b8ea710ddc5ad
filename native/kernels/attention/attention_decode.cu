#include "kernels/attention/attention_decode.hpp"
#include "kernels/attention/decode_split.cuh"
#include "kernels/device.cuh"

// On the ordinary cores: float32, and layouts that are not in pieces of 16 bytes.

namespace gpk::kernels {

namespace {

constexpr int kWarps = kDecodeThreads / 32;
constexpr int kElements = 8;  // of a key that one lane holds
constexpr int kUnroll = 4;    // keys that a lane has in flight

// Eight stored elements, moved as accesses of 16 bytes (float8: of 8) where the layout allows it.
template <class T>
struct Eight {
    static constexpr int kPer = sizeof(T) == 1 ? 8 : 16 / sizeof(T);
    Vector<T, kPer> parts[kElements / kPer];
    __device__ __forceinline__ float operator[](int j) const {
        return float(parts[j / kPer].values[j % kPer]);
    }
    __device__ __forceinline__ void load(const T* row, int first, int d, bool vectorized) {
        if (vectorized) {
            const auto* from = reinterpret_cast<const Vector<T, kPer>*>(row + first);
#pragma unroll
            for (int k = 0; k < kElements / kPer; ++k) parts[k] = from[k];
        } else {
#pragma unroll
            for (int j = 0; j < kElements; ++j) {
                parts[j / kPer].values[j % kPer] = first + j < d ? row[first + j] : T(0.0f);
            }
        }
    }
};

// Sum and weighted values of some keys, relative to their highest score, for G rows.
template <int G>
struct Running {
    float highest[G], sum[G], acc[G][kElements];
};
template <int G>
struct Rows {
    int token[G], head[G], low[G], high[G];  // keys low .. high are seen
    float q[G][kElements];
};

__device__ __forceinline__ float weight_of(float highest, float common) {
    return highest == -INFINITY ? 0.0f : exp2f(highest - common);
}

__device__ __forceinline__ std::int64_t place(const AttentionDecodeParams& p, const DecodeRange& r,
                                              const DecodeStrides& at, int index) {
    const std::int64_t head = r.kv_head * at.head;
    if (p.pages == nullptr) return head + r.batch * at.batch + index * at.token;
    const int page = index / p.page_tokens;
    const int number = p.pages[static_cast<std::int64_t>(r.batch) * p.pages_of_sequence + page];
    return head + min(max(number, 0), p.page_count - 1) * at.batch +
           (index - page * p.page_tokens) * at.token;
}

// The keys of one warp, `lanes` lanes to a key: those of group i are begin + i, begin + i + groups, ...
template <class Stored, int G>
__device__ __forceinline__ void run_keys(const AttentionDecodeParams& p, const DecodeRange& range,
                                         const Rows<G>& rows, int lanes, int first, Running<G>& r) {
    const int of_warp = 32 / lanes, groups = kWarps * of_warp;
    const int group = threadIdx.x % 32 / lanes;  // within the warp
    const bool whole = p.vectorized && p.d % kElements == 0;
    for (int base = range.split_begin + static_cast<int>(threadIdx.x) / 32 * of_warp; base < range.split_end;
         base += groups * kUnroll) {
        Eight<Stored> k[kUnroll], v[kUnroll];
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) {
            // Past the end the last key is read again and its score discarded.
            const int key = min(base + group + u * groups, range.split_end - 1);
            // Lanes beyond the head's end read its first elements; their q is zero.
            const int at = first < p.d ? first : 0;
            k[u].load(static_cast<const Stored*>(p.keys) + place(p, range, p.k_at, key), at, p.d, whole);
            v[u].load(static_cast<const Stored*>(p.values) + place(p, range, p.v_at, key), at, p.d, whole);
        }
        float score[kUnroll][G];
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) {
#pragma unroll
            for (int g = 0; g < G; ++g) {
                float dot = 0;
#pragma unroll
                for (int j = 0; j < kElements; ++j) dot += rows.q[g][j] * k[u][j];
                score[u][g] = dot;
            }
        }
        for (int step = lanes / 2; step > 0; step /= 2) {
#pragma unroll
            for (int u = 0; u < kUnroll; ++u) {
#pragma unroll
                for (int g = 0; g < G; ++g) score[u][g] += __shfl_xor_sync(0xffffffffu, score[u][g], step);
            }
        }
#pragma unroll
        for (int g = 0; g < G; ++g) {
            float highest = r.highest[g];
#pragma unroll
            for (int u = 0; u < kUnroll; ++u) {
                const int key = base + group + u * groups;
                const bool is_seen = key < range.split_end && key >= rows.low[g] && key <= rows.high[g];
                score[u][g] = is_seen ? with_options(p, score[u][g], rows.head[g],
                                                     key - range.position - rows.token[g]) *
                                            kLog2E
                                      : -INFINITY;
                highest = fmaxf(highest, score[u][g]);
            }
            const float keep = weight_of(r.highest[g], highest);
            r.highest[g] = highest;
            r.sum[g] *= keep;
#pragma unroll
            for (int j = 0; j < kElements; ++j) r.acc[g][j] *= keep;
#pragma unroll
            for (int u = 0; u < kUnroll; ++u) {
                const float weight = weight_of(score[u][g], highest);
                r.sum[g] += weight;
#pragma unroll
                for (int j = 0; j < kElements; ++j) r.acc[g][j] += weight * v[u][j];
            }
        }
    }
}

// Joins the lane groups of a warp, each of which saw other keys.
template <int G>
__device__ __forceinline__ void join_groups(int lanes, Running<G>& r) {
    for (int step = lanes; step < 32; step *= 2) {
#pragma unroll
        for (int g = 0; g < G; ++g) {
            const float other = __shfl_xor_sync(0xffffffffu, r.highest[g], step);
            const float common = fmaxf(r.highest[g], other);
            const float keep = weight_of(r.highest[g], common), take = weight_of(other, common);
            r.highest[g] = common;
            r.sum[g] = r.sum[g] * keep + __shfl_xor_sync(0xffffffffu, r.sum[g], step) * take;
#pragma unroll
            for (int j = 0; j < kElements; ++j) {
                r.acc[g][j] = r.acc[g][j] * keep + __shfl_xor_sync(0xffffffffu, r.acc[g][j], step) * take;
            }
        }
    }
}

template <class T, class Stored, int G>
__device__ __forceinline__ void decode(const AttentionDecodeParams& p) {
    __shared__ float warp_highest[kWarps][G], warp_sum[kWarps][G], warp_acc[kWarps][G][kMaxHeadDim];
    wait_for_predecessor();
    const DecodeRange range = decode_range(p, G, position_of(p));
    if (range.split >= range.active) return;

    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int lanes = 1;  // that share a key
    while (lanes * kElements < p.d) lanes *= 2;
    const int first = lane % lanes * kElements;

    Rows<G> rows;
    Running<G> r;
#pragma unroll
    for (int g = 0; g < G; ++g) {
        const int row = range.first_row + g, token = row / range.group;
        const bool is_there = token < p.tokens;
        rows.token[g] = token;
        rows.head[g] = range.kv_head * range.group + row - token * range.group;
        rows.low[g] = is_there ? range.position + token - p.left : INT32_MAX;
        rows.high[g] = min(range.position + token + p.right, range.end - 1);
        const T* q = static_cast<const T*>(p.q) + range.batch * p.q_at.batch + token * p.q_at.token +
                     rows.head[g] * p.q_at.head;
        r.highest[g] = -INFINITY;
        r.sum[g] = 0;
#pragma unroll
        for (int j = 0; j < kElements; ++j) {
            rows.q[g][j] = is_there && first + j < p.d ? float(q[first + j]) : 0.0f;
            r.acc[g][j] = 0;
        }
    }
    run_keys<Stored>(p, range, rows, lanes, first, r);
    join_groups(lanes, r);

    if (lane < lanes) {
#pragma unroll
        for (int g = 0; g < G; ++g) {
            warp_highest[warp][g] = r.highest[g];
            warp_sum[warp][g] = r.sum[g];
#pragma unroll
            for (int j = 0; j < kElements; ++j) {
                if (first + j < p.d) warp_acc[warp][g][first + j] = r.acc[g][j];
            }
        }
    }
    __syncthreads();

    for (int g = warp; g < G; g += kWarps) {
        const int row = range.first_row + g, token = row / range.group;
        if (token >= p.tokens) break;
        float common = -INFINITY, sum = 0, weight[kWarps];
#pragma unroll
        for (int w = 0; w < kWarps; ++w) common = fmaxf(common, warp_highest[w][g]);
#pragma unroll
        for (int w = 0; w < kWarps; ++w) {
            weight[w] = weight_of(warp_highest[w][g], common);
            sum += weight[w] * warp_sum[w][g];
        }
        const auto own = [&](int d) {
            Vector<float, 4> x = {};
#pragma unroll
            for (int w = 0; w < kWarps; ++w) {
#pragma unroll
                for (int j = 0; j < 4; ++j) x.values[j] += weight[w] * warp_acc[w][g][d + j];
            }
            return x;
        };
        finish_row<T, 1>(p, range, token, range.kv_head * range.group + row - token * range.group, common,
                         sum, own);
    }
}

}  // namespace

#define X(G, suffix, T, stored, Stored)                                                             \
    extern "C" __global__ void __launch_bounds__(kDecodeThreads)                                    \
        attention_decode_##suffix##stored##_r##G(const __grid_constant__ AttentionDecodeParams p) { \
        decode<T, Stored, G>(p);                                                                    \
    }
GPK_DECODE_PLAIN(X)
#undef X

}  // namespace gpk::kernels
