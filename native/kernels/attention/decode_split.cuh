// What the kernels of attention_decode share: which keys a block has, and how what the blocks of a sequence
// found is joined. Scores are in powers of two.
#pragma once

#include "kernels/attention/attention_decode.hpp"
#include "kernels/device.cuh"

namespace gpk::kernels {

inline constexpr float kLog2E = 1.44269504f;

struct DecodeRange : DecodeRows {
    std::int32_t batch, kv_head, group, first_row;
    std::int32_t split, active;           // of so many that have keys
    std::int32_t split_begin, split_end;  // keys of this one
};

// What does not depend on the sequence's position.
__device__ __forceinline__ DecodeRange decode_place(const AttentionDecodeParams& p, int rows) {
    DecodeRange r;
    r.batch = blockIdx.z;
    r.group = p.heads / p.kv_heads;
    const int tiles = (p.tokens * r.group + rows - 1) / rows;
    r.kv_head = blockIdx.y / tiles;
    r.first_row = (blockIdx.y - r.kv_head * tiles) * rows;
    r.split = blockIdx.x;
    return r;
}
// `position`: of the sequence, as decode_rows() wants it.
__device__ __forceinline__ DecodeRange with_keys(const AttentionDecodeParams& p, DecodeRange r, int rows,
                                                 int position) {
    constexpr int kStep = 16;
    static_cast<DecodeRows&>(r) = decode_rows(p, position, r.first_row, rows);
    const int base = r.begin / kStep * kStep;
    const int even = (r.end - base + p.splits - 1) / p.splits;
    const int chunk = (max(even, decode_least_keys(p.d)) + kStep - 1) / kStep * kStep;
    r.active = max((r.end - base + chunk - 1) / chunk, 1);
    r.split_begin = base + r.split * chunk;
    r.split_end = min(r.split_begin + chunk, r.end);
    return r;
}
__device__ __forceinline__ DecodeRange decode_range(const AttentionDecodeParams& p, int rows, int position) {
    return with_keys(p, decode_place(p, rows), rows, position);
}

__device__ __forceinline__ int position_of(const AttentionDecodeParams& p) {
    return p.positions == nullptr ? 0 : p.positions[blockIdx.z];
}

// Where a key lies, in elements.
__device__ __forceinline__ std::int64_t place_in_page(const AttentionDecodeParams& p, const DecodeStrides& at,
                                                      int number, int inside) {
    return min(max(number, 0), p.page_count - 1) * at.batch + inside * at.token;
}

// Asks the L2 cache for the block's first keys and values while the kernel before still runs. That may be
// writing them, the positions or the pages: whatever comes of it is only a hint, but nothing that is read
// here may stay in the L1 cache.
__device__ __forceinline__ void prefetch_keys(const AttentionDecodeParams& p, int rows,
                                              int bytes_of_element) {
#if __CUDA_ARCH__ >= 900
    constexpr int kKeys = 256, kLine = 128;
    const DecodeRange r =
        decode_range(p, rows, p.positions == nullptr ? 0 : __ldcg(p.positions + blockIdx.z));
    if (!p.vectorized) return;
    const int end = min(r.split_end, r.split_begin + kKeys);
    for (int key = r.split_begin + static_cast<int>(threadIdx.x); key < end; key += blockDim.x) {
        std::int64_t k_at = r.batch * p.k_at.batch + key * p.k_at.token,
                     v_at = r.batch * p.v_at.batch + key * p.v_at.token;
        if (p.pages != nullptr) {
            const int page = key / p.page_tokens, inside = key - page * p.page_tokens;
            const int number =
                __ldcg(p.pages + static_cast<std::int64_t>(r.batch) * p.pages_of_sequence + page);
            k_at = place_in_page(p, p.k_at, number, inside);
            v_at = place_in_page(p, p.v_at, number, inside);
        }
        // Bulk prefetches go lane by lane: of so few bytes each they take longer than the reading.
        const auto ask = [&](const void* from, std::int64_t at) {
            const char* const row = static_cast<const char*>(from) + at * bytes_of_element;
            for (int byte = 0; byte < p.d * bytes_of_element; byte += kLine) {
                asm volatile("prefetch.global.L2 [%0];" ::"l"(row + byte) : "memory");
            }
        };
        ask(p.keys, k_at + r.kv_head * p.k_at.head);
        ask(p.values, v_at + r.kv_head * p.v_at.head);
    }
#endif
}

// What the options make of a product; `distance` is that of the key from the token's place.
__device__ __forceinline__ float with_options(const AttentionDecodeParams& p, float x, int head,
                                              int distance) {
    x *= p.scale;
    if (p.soft_cap > 0) {  // tanh(y) = 1 - 2 / (1 + exp(2 y))
        x = p.soft_cap - __fdividef(2 * p.soft_cap, 1 + exp2f(__fdividef(2 * kLog2E * x, p.soft_cap)));
    }
    if (p.slopes != nullptr) x -= p.slopes[head] * static_cast<float>(abs(distance));
    return x;
}

// What the splits of a row found: [splits][d], and [splits] of the highest score and the sum.
struct DecodeParts {
    float* values;
    Vector<float, 2>* totals;
};
__device__ __forceinline__ DecodeParts parts_of(const AttentionDecodeParams& p, const DecodeRange& r,
                                                int token, int head) {
    const std::int64_t row = (static_cast<std::int64_t>(r.batch) * p.tokens + token) * p.heads + head;
    const std::int64_t rows = static_cast<std::int64_t>(p.batch) * p.tokens * p.heads;
    return {p.partial + (rows * p.splits * 2 + 3) / 4 * 4 + row * p.splits * p.d,  // on 16 bytes
            reinterpret_cast<Vector<float, 2>*>(p.partial) + row * p.splits};
}
template <class T>
__device__ __forceinline__ T& out_of(const AttentionDecodeParams& p, const DecodeRange& r, int token,
                                     int head, int d) {
    return static_cast<T*>(
        p.out)[r.batch * p.out_at.batch + token * p.out_at.token + head * p.out_at.head + d];
}
template <class T>
__device__ __forceinline__ T finished(const AttentionDecodeParams& p, float value, float sum) {
    return T(sum == 0 ? 0.0f : value / sum * p.value_scale);
}

// Element d of a row: the block's weighted values, relative to their highest score, and the weights' sum.
template <class T>
__device__ __forceinline__ void put(const AttentionDecodeParams& p, const DecodeRange& r, int token, int head,
                                    int d, float value, float highest, float sum) {
    if (r.active == 1) {
        out_of<T>(p, r, token, head, d) = finished<T>(p, value, sum);
        return;
    }
    const DecodeParts parts = parts_of(p, r, token, head);
    parts.values[static_cast<std::int64_t>(r.split) * p.d + d] = value;
    if (d == 0) parts.totals[r.split] = {highest, sum};
}

// The last block to get here joins the parts, a warp a row, and leaves the counter as it found it.
template <class T>
__device__ __forceinline__ void join_splits(const AttentionDecodeParams& p, const DecodeRange& r, int rows) {
    __shared__ bool is_last;
    __syncthreads();
    if (threadIdx.x == 0) {
        // What the whole block wrote comes before the count, and what others did before reading it.
        std::uint32_t* counter = p.counters + blockIdx.z * gridDim.y + blockIdx.y;
        std::uint32_t before;
        asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
        is_last = before == static_cast<unsigned>(r.active) - 1;
        if (is_last) *counter = 0;
    }
    __syncthreads();
    if (!is_last) return;
    const int lane = threadIdx.x % 32;
    for (int i = threadIdx.x / 32; i < rows; i += blockDim.x / 32) {
        const int row = r.first_row + i, token = row / r.group;
        if (token >= p.tokens) break;
        const int head = r.kv_head * r.group + row - token * r.group;
        const DecodeParts parts = parts_of(p, r, token, head);
        constexpr int kEach = kDecodeMaxSplits / 32;  // splits of a lane
        static_assert(kEach == 2);
        constexpr int kBatch = 16;  // splits whose values are under way at a time
        Vector<float, 4> part[kBatch];
        const auto ask = [&](int first_split, int d) {
#pragma unroll
            for (int i = 0; i < kBatch; ++i) {
                const int s = first_split + i;
                part[i] = {};
                if (s >= r.active) continue;
                const float* from = parts.values + s * p.d + d;
                if (p.d % 4 == 0) {
                    if (d < p.d) part[i] = *reinterpret_cast<const Vector<float, 4>*>(from);
                } else {
#pragma unroll
                    for (int j = 0; j < 4; ++j) {
                        if (d + j < p.d) part[i].values[j] = from[j];
                    }
                }
            }
        };
        ask(0, 4 * lane);  // beside what their weights are made from

        float weight[kEach], common = -INFINITY, sum = 0;
        Vector<float, 2> total[kEach];
#pragma unroll
        for (int e = 0; e < kEach; ++e) {
            const int s = e * 32 + lane;
            total[e] = {-INFINITY, 0};
            if (s < r.active) total[e] = parts.totals[s];
            common = fmaxf(common, total[e].values[0]);
        }
        common = warp_reduce(common, [](float a, float b) { return fmaxf(a, b); });
        if (common == -INFINITY) common = 0;
#pragma unroll
        for (int e = 0; e < kEach; ++e) {
            weight[e] = exp2f(total[e].values[0] - common);
            sum += weight[e] * total[e].values[1];
        }
        sum = warp_reduce(sum, [](float a, float b) { return a + b; });

        for (int first = 0; first < p.d; first += 128) {
            const int d = first + 4 * lane;
            float value[4] = {};
            for (int s = 0; s < r.active; s += kBatch) {
                if (first > 0 || s > 0) ask(s, d);
#pragma unroll
                for (int i = 0; i < kBatch; ++i) {
                    const float w = __shfl_sync(0xffffffffu, s < 32 ? weight[0] : weight[1], (s + i) % 32);
#pragma unroll
                    for (int j = 0; j < 4; ++j) value[j] += w * part[i].values[j];
                }
            }
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                if (d + j < p.d) out_of<T>(p, r, token, head, d + j) = finished<T>(p, value[j], sum);
            }
        }
    }
}

}  // namespace gpk::kernels
