#include "kernels/attention/attention.hpp"
#include "kernels/device.cuh"
#include "kernels/floats.hpp"

namespace gpk::kernels {

namespace {

constexpr int kWarps = kDecodeThreads / 32;
constexpr int kElements = 8;  // of a key that one lane holds
constexpr int kUnroll = 4;    // keys that a lane has in flight

// Eight stored elements, moved as accesses of 16 bytes where the layout allows it.
template <class T>
struct Eight {
    static constexpr int kPer = 16 / sizeof(T);
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

// Sum and weighted values of some keys, relative to their highest score.
template <int G>
struct Running {
    float highest[G], sum[G], acc[G][kElements];
};

__device__ __forceinline__ float weight_of(float highest, float common) {
    return highest == -INFINITY ? 0.0f : expf(highest - common);
}

// The keys of one warp, `lanes` lanes to a key: those of group i are begin + i, begin + i + groups, ...
template <class T, int G>
__device__ __forceinline__ void run_keys(const AttentionParams& p, const T* keys, const T* values,
                                         const float (&q)[G][kElements], int begin, int end, int lanes,
                                         int first, Running<G>& r) {
    const int of_warp = 32 / lanes, groups = kWarps * of_warp;
    const int group = threadIdx.x % 32 / lanes;  // within the warp
    for (int base = begin + static_cast<int>(threadIdx.x) / 32 * of_warp; base < end;
         base += groups * kUnroll) {
        Eight<T> k[kUnroll], v[kUnroll];
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) {
            // Past the end the last key is read again and its score discarded.
            const std::int64_t key = min(base + group + u * groups, end - 1);
            // Lanes beyond the head's end read its first elements; their q is zero.
            const int at = first < p.d ? first : 0;
            k[u].load(keys + key * p.key_stride, at, p.d, p.vectorized);
            v[u].load(values + key * p.value_stride, at, p.d, p.vectorized);
        }
        float score[kUnroll][G];
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) {
#pragma unroll
            for (int g = 0; g < G; ++g) {
                float dot = 0;
#pragma unroll
                for (int j = 0; j < kElements; ++j) dot += q[g][j] * k[u][j];
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
                if (base + group + u * groups >= end) score[u][g] = -INFINITY;
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

// What the splits left in device memory -> one head's output, by the last block to finish.
template <class T>
__device__ __forceinline__ void join_splits(const AttentionParams& p, const float* partial, int active,
                                            T* out, int element) {
    const int stride = p.d + 2;
    float common = -INFINITY;
    for (int s = 0; s < active; ++s) common = fmaxf(common, __ldcg(partial + s * stride + p.d));
    float sum = 0, value = 0;
    for (int s = 0; s < active; ++s) {
        const float* part = partial + s * stride;
        const float weight = weight_of(__ldcg(part + p.d), common);
        sum += weight * __ldcg(part + p.d + 1);
        value += weight * __ldcg(part + element);
    }
    out[element] = T(value / sum);
}

template <class T, int G>
__device__ __forceinline__ void decode(const AttentionParams& p) {
    __shared__ float warp_highest[kWarps][G], warp_sum[kWarps][G], warp_acc[kWarps][G][kMaxHeadDim];
    __shared__ bool is_last;
    wait_for_predecessor();

    const int group_size = p.heads / p.kv_heads, tiles = (group_size + G - 1) / G;
    const int kv_head = blockIdx.y / tiles, tile = blockIdx.y % tiles;
    const int head = kv_head * group_size + tile * G, heads = min(G, group_size - tile * G);
    const int token = blockIdx.z;
    const int length = max(1, min(*p.position + token + 1, p.capacity));
    const int chunk = max(kDecodeMinKeys, (length + p.splits - 1) / p.splits);
    const int active = (length + chunk - 1) / chunk;
    if (static_cast<int>(blockIdx.x) >= active) return;
    const int begin = blockIdx.x * chunk, end = min(begin + chunk, length);

    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int lanes = 1;  // that share a key
    while (lanes * kElements < p.d) lanes *= 2;
    const int first = lane % lanes * kElements;

    float q[G][kElements];
    Running<G> r;
#pragma unroll
    for (int g = 0; g < G; ++g) {
        const T* row = static_cast<const T*>(p.q) + token * p.q_token_stride + (head + g) * p.q_head_stride;
        r.highest[g] = -INFINITY;
        r.sum[g] = 0;
#pragma unroll
        for (int j = 0; j < kElements; ++j) {
            q[g][j] = g < heads && first + j < p.d ? float(row[first + j]) * p.scale : 0.0f;
            r.acc[g][j] = 0;
        }
    }
    run_keys(p, static_cast<const T*>(p.keys) + kv_head * p.key_head_stride,
             static_cast<const T*>(p.values) + kv_head * p.value_head_stride, q, begin, end, lanes, first, r);
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

    const std::int64_t row = static_cast<std::int64_t>(token) * p.heads + head;
    for (int i = threadIdx.x; i < heads * p.d; i += kDecodeThreads) {
        const int g = i / p.d, element = i % p.d;
        float common = -INFINITY, sum = 0, value = 0;
#pragma unroll
        for (int w = 0; w < kWarps; ++w) common = fmaxf(common, warp_highest[w][g]);
#pragma unroll
        for (int w = 0; w < kWarps; ++w) {
            const float weight = weight_of(warp_highest[w][g], common);
            sum += weight * warp_sum[w][g];
            value += weight * warp_acc[w][g][element];
        }
        if (active == 1) {
            static_cast<T*>(p.out)[(row + g) * p.d + element] = T(value / sum);
        } else {
            float* part = p.partial + ((row + g) * p.splits + blockIdx.x) * (p.d + 2);
            part[element] = value;
            if (element == 0) {
                part[p.d] = common;
                part[p.d + 1] = sum;
            }
        }
    }
    if (active == 1) return;

    // The last block to get here joins the parts, and leaves the counter as it found it.
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        std::uint32_t* counter = p.counters + token * gridDim.y + blockIdx.y;
        is_last = atomicAdd(counter, 1u) == static_cast<unsigned>(active) - 1;
        if (is_last) *counter = 0;
    }
    __syncthreads();
    if (!is_last) return;
    __threadfence();
    for (int i = threadIdx.x; i < heads * p.d; i += kDecodeThreads) {
        const int g = i / p.d;
        join_splits(p, p.partial + (row + g) * p.splits * (p.d + 2), active,
                    static_cast<T*>(p.out) + (row + g) * p.d, i % p.d);
    }
}

}  // namespace

#define TILE(G, suffix, T)                                                            \
    extern "C" __global__ void __launch_bounds__(kDecodeThreads)                      \
        attention_decode_##suffix##_g##G(const __grid_constant__ AttentionParams p) { \
        decode<T, G>(p);                                                              \
    }
#define X(suffix, T) GPK_DECODE_HEAD_TILES(TILE, suffix, T)
GPK_FLOAT_TYPES(X)
#undef X
#undef TILE

}  // namespace gpk::kernels
