// attention_decode on tensor cores.
//
// The query heads of one key/value head, for all tokens, are the columns of products on the tensor cores
// (mma.m16n8k16), so the keys and values are read once: from global memory into registers in pieces of 16
// bytes, without shared memory. The order of d within a product is free, and chosen so that a lane's piece is
// what it needs: of keys 8 elements in a row (row g + 8 i, elements 8 t ...), of values 8 elements of four
// keys. With g = lane / 4 and t = lane % 4, as in the PTX ISA's figures of the fragments.
//
// A warp makes 16 keys at a time and asks for the next ones as soon as registers are free.
#pragma once

#include <type_traits>

#include "kernels/attention/attention_decode.hpp"
#include "kernels/attention/decode_split.cuh"
#include "kernels/attention/turn_head.cuh"
#include "kernels/device.cuh"
#include "kernels/overlap.cuh"

namespace gpk::kernels {

using Words = Vector<std::uint32_t, 4>;

template <class T>
__device__ __forceinline__ void multiply(float (&d)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2,
                                         std::uint32_t a3, std::uint32_t b0, std::uint32_t b1) {
    if constexpr (std::is_same_v<T, bfloat16>) {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, "
            "%9}, "
            "{%0, %1, %2, %3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    } else {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    }
}

template <class T>
__device__ __forceinline__ std::uint32_t pack(float low, float high) {
    return static_cast<std::uint32_t>(T(low).bits) | static_cast<std::uint32_t>(T(high).bits) << 16;
}
__device__ __forceinline__ std::uint32_t transpose(std::uint32_t x) {
    std::uint32_t y;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}
// Two neighbouring e4m3 numbers in the low half of `bytes`, or the high half, as two of T.
template <class T>
__device__ __forceinline__ std::uint32_t widen(std::uint32_t bytes, int half) {
    const auto two = static_cast<std::uint16_t>(bytes >> 16 * half);
#if __CUDA_ARCH__ >= 890
    std::uint32_t halves;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(two));
    if constexpr (std::is_same_v<T, float16>) return halves;
    float16 low, high;
    low.bits = static_cast<std::uint16_t>(halves);
    high.bits = static_cast<std::uint16_t>(halves >> 16);
    return pack<T>(float(low), float(high));
#else
    // The bits moved to their places are 2^-8 of the number as float16.
    const std::uint32_t apart = __byte_perm(two, 0, 0x1404);  // in the high bytes
    const std::uint32_t small = (apart & 0x80008000u) | ((apart >> 1) & 0x3f803f80u);
    float16 low, high;
    low.bits = static_cast<std::uint16_t>(small);
    high.bits = static_cast<std::uint16_t>(small >> 16);
    const auto number = [&](float16 x, std::uint32_t byte) {
        return (byte & 0x7f) == 0x7f ? __uint_as_float(0x7fffffffu) : float(x) * 256;
    };
    return pack<T>(number(low, two & 0xff), number(high, two >> 8));
#endif
}

// kTiles: of 8 columns, each a query head of a token. kSteps: times 16 keys that a warp has in registers.
template <class T, class Stored, int kHeadDim, int kTiles, int kWarps, int kSteps>
struct Decode {
    static constexpr bool kNarrow = sizeof(Stored) == 1;
    static constexpr int kPer = 16 / sizeof(Stored);                             // elements of a piece
    static constexpr int kKeyPieces = (kHeadDim + 4 * kPer - 1) / (4 * kPer);    // of a key, for a lane
    static constexpr int kValuePieces = (kHeadDim + 8 * kPer - 1) / (8 * kPer);  // of a value
    static constexpr bool kKeepsQuery = kHeadDim <= 128;  // else it would not fit, and the L1 cache has it
    static constexpr int kAccTiles = kValuePieces * kPer / 2;  // of 16 elements of d
    // Where it appends.
    struct Shared {
        alignas(16) T queries[8 * kTiles][kHeadDim + 8];
        alignas(16) Stored newest[2][kHeadDim];  // key and value
    };

    const AttentionDecodeParams& p;
    Shared& shared;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    DecodeRange range;
    bool keeps;  // the newest key, where it appends
    std::uint32_t query[kTiles][kKeepsQuery ? kKeyPieces : 1][kPer / 2];
    float acc[kTiles][kAccTiles][4], highest[kTiles][2], sum[kTiles][2];
    Words key[kSteps][kKeyPieces][2], value[kSteps][kValuePieces][4];
    int low[kTiles][2], high[kTiles][2];  // keys that the columns 2 t and 2 t + 1 of a tile see

    __device__ __forceinline__ Decode(const AttentionDecodeParams& p, const DecodeRange& range,
                                      Shared& shared)
        : p(p),
          shared(shared),
          range(range),
          keeps(position_of(p) == range.position && range.split_end == range.end) {
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                int token, head;
                const bool is_there = column_of(n, 2 * t + j, token, head);
                const int at = range.position + token;
                low[n][j] = is_there ? at - p.left : INT32_MAX;
                high[n][j] = min(at + p.right, range.end - 1);
            }
        }
    }

    // Column `column` of the tile `n`: which query head of which token, or none.
    __device__ __forceinline__ bool column_of(int n, int column, int& token, int& head) const {
        const int row = range.first_row + n * 8 + column;
        token = row / range.group;
        head = range.kv_head * range.group + row - token * range.group;
        return token < p.tokens;
    }

    // A load that is not kept from one round to the next.
    static __device__ __forceinline__ Words load_again(const Words* from) {
        Words words;
        asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(words.values[0]), "=r"(words.values[1]), "=r"(words.values[2]),
                       "=r"(words.values[3])
                     : "l"(from));
        return words;
    }
    __device__ __forceinline__ const T* query_of(int token, int head) const {
        return static_cast<const T*>(p.q) + range.batch * p.q_at.batch + token * p.q_at.token +
               head * p.q_at.head;
    }
    // The piece c of the query of this lane's column of tile n.
    __device__ __forceinline__ void load_query(int n, int c, std::uint32_t (&to)[kPer / 2]) const {
        int token, head;
        const bool is_there = column_of(n, g, token, head);
        const T* row = p.append.k != nullptr ? shared.queries[n * 8 + g] : query_of(token, head);
        const int first = c * 4 * kPer + t * kPer;
#pragma unroll
        for (int i = 0; i < kPer / 8; ++i) {
            Words words = {};
            if (is_there && first + 8 * i < p.d) {
                const auto* from = reinterpret_cast<const Words*>(row + first + 8 * i);
                words = kKeepsQuery || p.append.k != nullptr ? *from : load_again(from);
            }
#pragma unroll
            for (int j = 0; j < 4; ++j) to[4 * i + j] = words.values[j];
        }
    }

    // Where a key of the sequence lies; past the end the last one, whose score is discarded.
    __device__ __forceinline__ std::int64_t place(const DecodeStrides& at, int index) const {
        index = min(index, range.end - 1);
        if (p.pages == nullptr) return range.batch * at.batch + index * at.token;
        const int page = index / p.page_tokens;
        const int number = p.pages[range.batch * p.pages_of_sequence + page];
        return min(max(number, 0), p.page_count - 1) * at.batch + (index - page * p.page_tokens) * at.token;
    }
    __device__ __forceinline__ Words read(const void* from, std::int64_t at, int element) const {
        Words words = {};
        if (element < p.d) {
            const auto* source =
                reinterpret_cast<const Words*>(static_cast<const Stored*>(from) + at + element);
            asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(words.values[0]), "=r"(words.values[1]), "=r"(words.values[2]),
                           "=r"(words.values[3])
                         : "l"(source));
        }
        return words;
    }
    __device__ __forceinline__ void load_keys(int slot, int first) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const std::int64_t at = place(p.k_at, first + g + 8 * i) + range.kv_head * p.k_at.head;
#pragma unroll
            for (int c = 0; c < kKeyPieces; ++c) key[slot][c][i] = read(p.keys, at, c * 4 * kPer + t * kPer);
        }
    }
    __device__ __forceinline__ void load_values(int slot, int first) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const std::int64_t at =
                place(p.v_at, first + 2 * t + i % 2 + i / 2 * 8) + range.kv_head * p.v_at.head;
#pragma unroll
            for (int c = 0; c < kValuePieces; ++c)
                value[slot][c][i] = read(p.values, at, c * 8 * kPer + g * kPer);
        }
    }

    // Two words of a key's piece: elements 4 i .. 4 i + 3.
    __device__ __forceinline__ std::uint32_t key_pair(const Words& piece, int i) const {
        if constexpr (!kNarrow) return piece.values[i];
        return widen<T>(piece.values[i / 2], i % 2);
    }

    // scores[n]: keys g and g + 8 of the tile's columns 2 t and 2 t + 1.
    __device__ __forceinline__ void multiply_keys(int slot, float (&scores)[kTiles][4]) {
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) scores[n][i] = 0;
        }
#pragma unroll
        for (int c = 0; c < kKeyPieces; ++c) {
            const int at = kKeepsQuery ? c : 0;
            if constexpr (!kKeepsQuery) {
#pragma unroll
                for (int n = 0; n < kTiles; ++n) load_query(n, c, query[n][0]);
            }
#pragma unroll
            for (int i = 0; i < kPer / 2; i += 2) {
                const std::uint32_t a0 = key_pair(key[slot][c][0], i), a1 = key_pair(key[slot][c][1], i);
                const std::uint32_t a2 = key_pair(key[slot][c][0], i + 1),
                                    a3 = key_pair(key[slot][c][1], i + 1);
#pragma unroll
                for (int n = 0; n < kTiles; ++n) {
                    multiply<T>(scores[n], a0, a1, a2, a3, query[n][at][i], query[n][at][i + 1]);
                }
            }
        }
    }

    // acc[n][tile]: elements d and d + 1 of columns 2 t and 2 t + 1, where d = d_of(tile).
    __device__ __forceinline__ int d_of(int tile) const {
        const int c = tile / (kPer / 2), i = tile % (kPer / 2);
        return c * 8 * kPer + g * kPer + 2 * i;
    }
    __device__ __forceinline__ void multiply_values(int slot, const std::uint32_t (&weights)[kTiles][2]) {
#pragma unroll
        for (int tile = 0; tile < kAccTiles; ++tile) {
            const int c = tile / (kPer / 2), i = tile % (kPer / 2);
            std::uint32_t a[4];
#pragma unroll
            for (int pair = 0; pair < 2; ++pair) {  // keys 2 t and 2 t + 1, then these + 8
                if constexpr (kNarrow) {
                    const std::uint32_t both =
                        __byte_perm(value[slot][c][2 * pair].values[i / 2],
                                    value[slot][c][2 * pair + 1].values[i / 2], i % 2 == 0 ? 0x5140 : 0x7362);
                    a[2 * pair] = widen<T>(both, 0);
                    a[2 * pair + 1] = widen<T>(both, 1);
                } else {
                    const std::uint32_t x = value[slot][c][2 * pair].values[i],
                                        y = value[slot][c][2 * pair + 1].values[i];
                    a[2 * pair] = __byte_perm(x, y, 0x5410);
                    a[2 * pair + 1] = __byte_perm(x, y, 0x7632);
                }
            }
#pragma unroll
            for (int n = 0; n < kTiles; ++n) {
                multiply<T>(acc[n][tile], a[0], a[1], a[2], a[3], weights[n][0], weights[n][1]);
            }
        }
    }

    // The scores become weights, in powers of two.
    __device__ __forceinline__ void softmax(float (&scores)[kTiles][4], int first) {
        const bool all_seen = first >= range.low_of_last && first + 16 <= range.end_of_first;
        bool changed = false;
        float keep[kTiles][2];
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                float &low = scores[n][j], &high = scores[n][2 + j];
                low = change(low, n, j, first + g, all_seen);
                high = change(high, n, j, first + g + 8, all_seen);
                float top = fmaxf(low, high);
#pragma unroll
                for (int step = 4; step < 32; step *= 2) {
                    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, step));
                }
                top = fmaxf(top, highest[n][j]);
                changed |= top != highest[n][j];
                const float base = top == -INFINITY ? 0.0f : top;
                keep[n][j] = exp2f(highest[n][j] - base);
                highest[n][j] = top;
                low = exp2f(low - base);
                high = exp2f(high - base);
                sum[n][j] = sum[n][j] * keep[n][j] + low + high;
            }
        }
        if (!__any_sync(0xffffffffu, changed)) return;
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
#pragma unroll
            for (int tile = 0; tile < kAccTiles; ++tile) {
#pragma unroll
                for (int i = 0; i < 4; ++i) acc[n][tile][i] *= keep[n][i % 2];
            }
        }
    }
    __device__ __forceinline__ float change(float x, int n, int j, int index, bool all_seen) const {
        if (p.has_options) {
            int token, head;
            if (column_of(n, 2 * t + j, token, head)) {
                x = with_options(p, x, head, index - range.position - token) * kLog2E;
            }
        } else {
            x *= p.scale * kLog2E;
        }
        return all_seen || (index >= low[n][j] && index <= high[n][j]) ? x : -INFINITY;
    }

    // What is appended, from before the keys are known: the queries of this block to shared memory; and by
    // whoever has the newest key, that and its value too, and to the cache.
    using Turn = TurnLane<(kHeadDim + 63) / 64>;
    using Part = HeadPart<T, (kHeadDim + 63) / 64>;
    static constexpr int kAppended = 8 * kTiles + 2;  // the key, the value, the queries
    // Where row `row` of these comes from; null: there is none.
    static __device__ __forceinline__ const T* appended(const AttentionDecodeParams& p, const DecodeRange& r,
                                                        int row) {
        const DecodeAppend& from = p.append;
        if (row == 0) return static_cast<const T*>(from.k) + r.batch * from.k_batch_stride + r.kv_head * p.d;
        if (row == 1) return static_cast<const T*>(from.v) + r.batch * from.v_batch_stride + r.kv_head * p.d;
        const int head = r.first_row + row - 2;
        if (head >= r.group) return nullptr;
        return static_cast<const T*>(p.q) + r.batch * p.q_at.batch +
               (r.kv_head * r.group + head) * p.q_at.head;
    }
    __device__ __forceinline__ void append(Turn& turning, const Part& own) {
        const DecodeAppend& from = p.append;
        const int position = position_of(p);  // where it is outside the cache nothing is kept
        turning.set_position(from.rope, static_cast<float>(position));
#pragma unroll 1
        for (int row = warp; row < kAppended; row += kWarps) {
            const T* const x = appended(p, range, row);
            if (x == nullptr || (row < 2 && !keeps)) continue;
            const Part part = kKeepsQuery && row == warp ? own : turning.load(x);
            if (row >= 2) {
                turning.turn(part, static_cast<const T*>(from.q_norm), from.norm_eps,
                             [&](int i, float number) { shared.queries[row - 2][i] = T(number); });
                continue;
            }
            const DecodeStrides& at = row == 0 ? p.k_at : p.v_at;
            Stored* const to = static_cast<Stored*>(const_cast<void*>(row == 0 ? p.keys : p.values)) +
                               range.batch * at.batch + range.kv_head * at.head + position * at.token;
            const auto put = [&](int i, float number) {
                const Stored stored = to_cache<Stored>(number);
                shared.newest[row][i] = stored;
                to[i] = stored;
            };
            if (row == 0) {
                turning.turn(part, static_cast<const T*>(from.k_norm), from.norm_eps, put);
            } else {
#pragma unroll
                for (int j = 0; j < (kHeadDim + 63) / 64; ++j) {
                    if (j >= turning.count) break;
                    put(turning.first[j], float(part.a[j]));
                    put(turning.second[j], float(part.b[j]));
                }
            }
        }
        __syncthreads();
    }
    // What was asked for before it was there; nor must what lies past the end be multiplied, by zero though
    // it be.
    __device__ __forceinline__ void take_newest(int slot, int first) {
        const auto newest = [&](int row, int element) {
            Words words = {};
            if (element < p.d) words = *reinterpret_cast<const Words*>(&shared.newest[row][element]);
            return words;
        };
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            if (first + g + 8 * i < range.position) continue;
#pragma unroll
            for (int c = 0; c < kKeyPieces; ++c) key[slot][c][i] = newest(0, c * 4 * kPer + t * kPer);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if (first + 2 * t + i % 2 + i / 2 * 8 < range.position) continue;
#pragma unroll
            for (int c = 0; c < kValuePieces; ++c) value[slot][c][i] = newest(1, c * 8 * kPer + g * kPer);
        }
    }

    __device__ __forceinline__ void load_first(int first, int stride) {
#pragma unroll
        for (int slot = 0; slot < kSteps; ++slot) {
            if (first + slot * stride >= range.split_end) break;
            load_keys(slot, first + slot * stride);
            load_values(slot, first + slot * stride);
        }
    }

    __device__ __forceinline__ void run(Turn& turning, const Part& own) {
        constexpr int kStride = 16 * kWarps;
        int first = range.split_begin + warp * 16;
        const bool appends = p.append.k != nullptr;
        if (appends && !kKeepsQuery) append(turning, own);  // no registers for both
        load_first(first, kStride);
        if (appends && kKeepsQuery) {
            append(turning, own);
#pragma unroll
            for (int slot = 0; slot < kSteps; ++slot) {
                const int here = first + slot * kStride;
                if (keeps && here < range.split_end && here + 16 > range.position) take_newest(slot, here);
            }
        }
        if constexpr (kKeepsQuery) {
#pragma unroll
            for (int n = 0; n < kTiles; ++n) {
#pragma unroll
                for (int c = 0; c < kKeyPieces; ++c) load_query(n, c, query[n][c]);
            }
        }
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                highest[n][j] = -INFINITY;
                sum[n][j] = 0;
            }
#pragma unroll
            for (int tile = 0; tile < kAccTiles; ++tile) {
#pragma unroll
                for (int i = 0; i < 4; ++i) acc[n][tile][i] = 0;
            }
        }
#pragma unroll 1
        for (; first < range.split_end; first += kStride * kSteps) {
#pragma unroll
            for (int slot = 0; slot < kSteps; ++slot) {
                const int here = first + slot * kStride, next = here + kStride * kSteps;
                if (here >= range.split_end) break;
                float scores[kTiles][4];
                multiply_keys(slot, scores);
                if (next < range.split_end) load_keys(slot, next);
                softmax(scores, here);
                std::uint32_t weights[kTiles][2];
#pragma unroll
                for (int n = 0; n < kTiles; ++n) {
                    weights[n][0] = transpose(pack<T>(scores[n][0], scores[n][1]));
                    weights[n][1] = transpose(pack<T>(scores[n][2], scores[n][3]));
                }
                multiply_values(slot, weights);
                if (next < range.split_end) load_values(slot, next);
            }
        }
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
#pragma unroll
            for (int j = 0; j < 2; ++j) {
#pragma unroll
                for (int step = 4; step < 32; step *= 2) {
                    sum[n][j] += __shfl_xor_sync(0xffffffffu, sum[n][j], step);
                }
            }
        }
        join_warps();
    }

    static __device__ __forceinline__ int place_of(int d) {
        const int c = d / (8 * kPer), rest = d % (8 * kPer), inside = rest % kPer;
        return (c * (kPer / 2) + inside / 2) * 16 + rest / kPer * 2 + inside % 2;
    }

    // The warps' results, which are of different keys, to one in shared memory, and on from there.
    __device__ __forceinline__ void join_warps() {
        constexpr int kColumns = 8 * kTiles;
        __shared__ float tops[kWarps][kColumns], sums[kWarps][kColumns];
        // [kWarps][kColumns][kLine], element d at place_of(d): a warp's stores of 8 bytes meet every bank
        // once.
        extern __shared__ __align__(16) float values[];
        constexpr int kLine = decode_line(kHeadDim);
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                const int column = n * 8 + 2 * t + j;
                if (g == 0) {
                    tops[warp][column] = highest[n][j];
                    sums[warp][column] = sum[n][j];
                }
#pragma unroll
                for (int tile = 0; tile < kAccTiles; ++tile) {
                    if (d_of(tile) >= kHeadDim) continue;
                    float* at = values + (warp * kColumns + column) * kLine + tile * 16 + g * 2;
                    *reinterpret_cast<Vector<float, 2>*>(at) = {acc[n][tile][j], acc[n][tile][2 + j]};
                }
            }
        }
        __syncthreads();
        for (int column = warp; column < kColumns; column += kWarps) {
            int token, head;
            if (!column_of(column / 8, column % 8, token, head)) continue;
            float top = -INFINITY, total = 0;
#pragma unroll
            for (int w = 0; w < kWarps; ++w) top = fmaxf(top, tops[w][column]);
            const float base = top == -INFINITY ? 0.0f : top;
            float weight[kWarps];
#pragma unroll
            for (int w = 0; w < kWarps; ++w) {
                weight[w] = exp2f(tops[w][column] - base);
                total += weight[w] * sums[w][column];
            }
            for (int d = lane; d < p.d; d += 32) {
                float x = 0;
#pragma unroll
                for (int w = 0; w < kWarps; ++w) {
                    x += weight[w] * values[(w * kColumns + column) * kLine + place_of(d)];
                }
                put<T>(p, range, token, head, d, x, top, total);
            }
        }
        if (range.active > 1) join_splits<T>(p, range, kColumns);
    }
};

template <class T, class Stored, int kHeadDim, int kTiles, int kWarps, int kSteps>
__device__ __forceinline__ void decode_mma(const AttentionDecodeParams& p) {
    using Work = Decode<T, Stored, kHeadDim, kTiles, kWarps, kSteps>;
    __shared__ typename Work::Shared shared;
    const bool appends = p.append.k != nullptr;
    if (!appends) prefetch_keys(p, 8 * kTiles, sizeof(Stored));  // else they come beside the queries
    const DecodeRange place = decode_place(p, 8 * kTiles);
    wait_for_predecessor();
    launch_dependents();
    const int position = position_of(p);
    // Before the position is known.
    typename Work::Turn turning(p.append.rope, appends ? p.d : 0);
    typename Work::Part own;
    if (Work::kKeepsQuery && appends) {
        const int row = threadIdx.x / 32;
        const T* const x = row < Work::kAppended ? Work::appended(p, place, row) : nullptr;
        if (x != nullptr) own = turning.load(x);
    }
    const DecodeRange range = with_keys(p, place, 8 * kTiles, position);
    if (range.split < range.active) Work(p, range, shared).run(turning, own);
}

}  // namespace gpk::kernels

// X of GPK_DECODE_MMA.
#define GPK_DECODE_MMA_KERNEL(suffix, T, stored, Stored, D, N, threads, blocks, steps) \
    extern "C" __global__ void __launch_bounds__(threads, blocks)                      \
        attention_decode_##suffix##stored##_d##D##_r##N##_t##threads(                  \
            const __grid_constant__ AttentionDecodeParams p) {                         \
        decode_mma<T, Stored, D, N / 8, threads / 32, steps>(p);                       \
    }
