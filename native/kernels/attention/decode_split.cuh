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
    const int keys = r.end - base, even = (keys + p.splits - 1) / p.splits;
    const int least = keys <= decode_alone(p.d) ? keys : p.least_keys;
    const int chunk = (max(max(even, least), 1) + kStep - 1) / kStep * kStep;
    r.active = max((keys + chunk - 1) / chunk, 1);
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
// here may stay in the L1 cache. Line by line: bulk prefetches, of rows or of all keys, took 1.5 to 2 us
// more.
__device__ __forceinline__ void prefetch_keys(const AttentionDecodeParams& p, const DecodeRange& r,
                                              int bytes_of_element) {
#if __CUDA_ARCH__ >= 900
    constexpr int kKeys = 256, kLine = 128;
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
    float* totals;
};
__device__ __forceinline__ DecodeParts parts_of(const AttentionDecodeParams& p, const DecodeRange& r,
                                                int token, int head) {
    const std::int64_t row = (static_cast<std::int64_t>(r.batch) * p.tokens + token) * p.heads + head;
    const std::int64_t rows = static_cast<std::int64_t>(p.batch) * p.tokens * p.heads;
    return {p.partial + (rows * p.splits * 2 + 3) / 4 * 4 + row * p.splits * p.d,  // on 16 bytes
            p.partial + row * p.splits * 2};
}

// N numbers that one block writes and another waits for, without flags, fences or counts: memory holds the
// bits of zero until a number is there, for which the smallest one stands where it is zero, and again after
// it was read.
template <int N>
struct Words {
    Vector<std::uint32_t, N> bits;

    Words() = default;
    __device__ __forceinline__ explicit Words(const Vector<float, N>& x) {
#pragma unroll
        for (int j = 0; j < N; ++j) bits.values[j] = max(__float_as_uint(x.values[j]), 1u);
    }
    static __device__ __forceinline__ void clear(float* at) {
        Words none;
#pragma unroll
        for (int j = 0; j < N; ++j) none.bits.values[j] = 0;
        none.store(at);
    }
    __device__ __forceinline__ void store(float* to) const {
        const auto& w = bits.values;
        if constexpr (N == 4) {
            asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(w[0]),
                         "r"(w[1]), "r"(w[2]), "r"(w[3])
                         : "memory");
        } else if constexpr (N == 2) {
            asm volatile("st.relaxed.gpu.global.v2.u32 [%0], {%1, %2};" ::"l"(to), "r"(w[0]), "r"(w[1])
                         : "memory");
        } else {
            asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(w[0]) : "memory");
        }
    }
    __device__ __forceinline__ void load(const float* from) {
        auto& w = bits.values;
        if constexpr (N == 4) {
            asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
                         : "l"(from)
                         : "memory");
        } else if constexpr (N == 2) {
            asm volatile("ld.relaxed.gpu.global.v2.u32 {%0, %1}, [%2];"
                         : "=r"(w[0]), "=r"(w[1])
                         : "l"(from)
                         : "memory");
        } else {
            asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(w[0]) : "l"(from) : "memory");
        }
    }
    // Not zero: all are there.
    __device__ __forceinline__ std::uint32_t least() const {
        std::uint32_t all = bits.values[0];
#pragma unroll
        for (int j = 1; j < N; ++j) all = min(all, bits.values[j]);
        return all;
    }
    __device__ __forceinline__ float operator[](int j) const { return __uint_as_float(bits.values[j]); }
};

// The largest number of a warp. Their bits are put into the order of integers.
__device__ __forceinline__ float warp_max(float x) {
    const auto turn = [](int bits) { return bits ^ ((bits >> 31) & 0x7fffffff); };
    return __int_as_float(turn(__reduce_max_sync(0xffffffffu, turn(__float_as_int(x)))));
}
// Powers of two of differences: weights that are rounded to 16 bits, or sums of them. Within 2 units of
// float32 (PTX ISA, "ex2"), what vanishes is zero.
__device__ __forceinline__ float power_of_two(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Four elements d .. d + 3 of a row, those of them that there are.
template <class T>
__device__ __forceinline__ void put_out(const AttentionDecodeParams& p, const DecodeRange& r, int token,
                                        int head, int d, const Vector<float, 4>& x, float sum) {
    T* const to =
        static_cast<T*>(p.out) + r.batch * p.out_at.batch + token * p.out_at.token + head * p.out_at.head + d;
    const float scale = sum == 0 ? 0.0f : p.value_scale / sum;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        if (d + j < p.d) to[j] = T(sum == 0 ? 0.0f : x.values[j] * scale);
    }
}

// What `others` splits found of the elements d .. d + 3 of a row, to own times its weight. A warp, whose
// lanes have the elements from `first` on; it makes the weights when it takes the first ones.
template <int N>
struct DecodeJoin {
    static constexpr int kEach = kDecodeMaxSplits / 32;  // splits of a lane
    static constexpr int kMany = N == 4 ? 16 : 4;        // splits whose values are under way at a time

    const AttentionDecodeParams& p;
    const DecodeParts parts;
    const int others, lane = threadIdx.x % 32;
    float highest, sum;  // of this block, then its weight and the sum of all
    float weight[kEach] = {};

    template <class Body>
    __device__ __forceinline__ void each_part(int split, int d, Body body) const {
#pragma unroll
        for (int i = 0; i < kMany; ++i) {
#pragma unroll
            for (int j = 0; j < 4 / N; ++j) {
                if (split + i < others && d + j * N < p.d) {
                    body(i, j, parts.values + (split + i) * p.d + d + j * N);
                }
            }
        }
    }
    template <class Body>
    __device__ __forceinline__ void each_total(Body body) const {
#pragma unroll
        for (int e = 0; e < kEach; ++e) {
            if (e * 32 + lane < others) body(e, parts.totals + (e * 32 + lane) * 2);
        }
    }
    __device__ __forceinline__ void weigh(const Words<2> (&totals)[kEach]) {
        float common = highest;
        each_total([&](int e, float*) { common = fmaxf(common, totals[e][0]); });
        common = warp_max(common);
        if (common == -INFINITY) common = 0;
        float all = 0;
        each_total([&](int e, float*) {
            weight[e] = power_of_two(totals[e][0] - common);
            all += weight[e] * totals[e][1];
        });
        highest = power_of_two(highest - common);
        sum = sum * highest + warp_reduce(all, [](float a, float b) { return a + b; });
    }
    __device__ __forceinline__ Vector<float, 4> add(int first, const Vector<float, 4>& own) {
        const int d = first + 4 * lane;
        Vector<float, 4> x = {};
#pragma unroll 1
        for (int split = 0; split < others; split += kMany) {
            const bool weighs = first == 0 && split == 0;
            Words<2> totals[kEach];
            Words<N> part[kMany][4 / N];
            std::uint32_t least;
            do {  // all are asked for before the first is looked at
                least = 1;
                if (weighs) each_total([&](int e, float* from) { totals[e].load(from); });
                each_part(split, d, [&](int i, int j, float* from) { part[i][j].load(from); });
                if (weighs) each_total([&](int e, float*) { least = min(least, totals[e].least()); });
                each_part(split, d, [&](int i, int j, float*) { least = min(least, part[i][j].least()); });
            } while (!__all_sync(0xffffffffu, least != 0));
            if (weighs) {
                each_total([&](int, float* at) { Words<2>::clear(at); });
                weigh(totals);
            }
            each_part(split, d, [&](int, int, float* at) { Words<N>::clear(at); });
            float w[kMany];
#pragma unroll
            for (int i = 0; i < kMany; ++i) {
                w[i] = __shfl_sync(0xffffffffu, split < 32 ? weight[0] : weight[1], (split + i) % 32);
            }
            each_part(split, d, [&](int i, int j, float*) {
#pragma unroll
                for (int e = 0; e < N; ++e) x.values[j * N + e] += w[i] * part[i][j][e];
            });
        }
#pragma unroll
        for (int j = 0; j < 4; ++j) x.values[j] += highest * own.values[j];
        return x;
    }
};

// A row, by a warp: what the block found, own(d) for d .. d + 3, relative to its highest score, and the sum
// of its weights. own() is called by all lanes, for the last ones with elements that are not there. The block
// of the last keys adds what the others found: they were started before it, so they need none of its place to
// get there.
template <class T, int N, class Own>
__device__ __forceinline__ void finish_row(const AttentionDecodeParams& p, const DecodeRange& r, int token,
                                           int head, float highest, float sum, Own own) {
    const int lane = threadIdx.x % 32;
    DecodeJoin<N> join{p, parts_of(p, r, token, head), r.active - 1, lane, highest, sum};
    const bool publishes = r.split < join.others;
    if (publishes && lane == 0) Words<2>({highest, sum}).store(join.parts.totals + r.split * 2);
#pragma unroll 1
    for (int first = 0; first < p.d; first += 128) {
        const int d = first + 4 * lane;
        Vector<float, 4> x = own(d);
        if (publishes) {
#pragma unroll
            for (int j = 0; j < 4; j += N) {
                Vector<float, N> piece;
#pragma unroll
                for (int e = 0; e < N; ++e) piece.values[e] = x.values[j + e];
                if (d + j < p.d) Words<N>(piece).store(join.parts.values + r.split * p.d + d + j);
            }
            continue;
        }
        if (join.others > 0) x = join.add(first, x);
        put_out<T>(p, r, token, head, d, x, join.sum);
    }
}

}  // namespace gpk::kernels
