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

#include "kernels/attention/attention_decode.hpp"
#include "kernels/attention/decode_pieces.cuh"
#include "kernels/attention/decode_split.cuh"
#include "kernels/attention/turn_head.cuh"
#include "kernels/device.cuh"
#include "kernels/overlap.cuh"

namespace gpk::kernels {

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
    // This lane's first piece of the first key and value of the sequence, or of page 0; of the first ones
    // that the warp reads, but for pages; and of its column's query.
    const Stored *keys, *values, *first_keys[2], *first_values[4];
    const T* query_row[kTiles];
    bool keeps;  // the newest key, where it appends
    std::uint32_t query[kTiles][kKeepsQuery ? kKeyPieces : 1][kPer / 2];
    float acc[kTiles][kAccTiles][4], highest[kTiles][2], sum[kTiles][2];
    Piece key[kSteps][kKeyPieces][2], value[kSteps][kValuePieces][4];
    int low[kTiles][2], high[kTiles][2];  // keys that the columns 2 t and 2 t + 1 of a tile see

    __device__ __forceinline__ Decode(const AttentionDecodeParams& p, Shared& shared)
        : p(p), shared(shared) {}

    // All that follows from where the keys are, once it is known, made here and now: before the wait for the
    // kernel before, if it can be.
    __device__ __forceinline__ void set(const DecodeRange& r, int position) {
        range = r;
        keeps = p.append.k != nullptr && position == range.position && range.split_end == range.end;
        keys = static_cast<const Stored*>(p.keys) + range.kv_head * p.k_at.head + t * kPer;
        values = static_cast<const Stored*>(p.values) + range.kv_head * p.v_at.head + g * kPer;
        if (p.pages == nullptr) {
            keys += range.batch * p.k_at.batch;
            values += range.batch * p.v_at.batch;
            find_first();
        }
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
            int token, head;
            query_row[n] = column_of(n, g, token, head) ? query_of(token, head) : nullptr;
            asm volatile("" : "+l"(query_row[n]));
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                const bool is_there = column_of(n, 2 * t + j, token, head);
                const int at = range.position + token;
                low[n][j] = is_there ? at - p.left : INT32_MAX;
                high[n][j] = min(at + p.right, range.end - 1);
            }
        }
    }
    __device__ __forceinline__ int first() const { return range.split_begin + warp * 16; }
    __device__ __forceinline__ void find_first() {
        find_keys(first(), first_keys);
        find_values(first(), first_values);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            asm volatile("" : "+l"(first_values[i]));
            if (i < 2) asm volatile("" : "+l"(first_keys[i]));
        }
    }

    // Column `column` of the tile `n`: which query head of which token, or none.
    __device__ __forceinline__ bool column_of(int n, int column, int& token, int& head) const {
        const int row = range.first_row + n * 8 + column;
        token = p.tokens == 1 ? row >= range.group : row / range.group;
        head = range.kv_head * range.group + row - token * range.group;
        return token < p.tokens;
    }

    // A load that is not kept from one round to the next.
    static __device__ __forceinline__ Piece load_again(const Piece* from) {
        Piece words;
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
        const bool appends = p.append.k != nullptr;
        const bool is_there = appends ? column_of(n, g, token, head) : query_row[n] != nullptr;
        const T* row = appends ? shared.queries[n * 8 + g] : query_row[n];
        const int first = c * 4 * kPer + t * kPer;
#pragma unroll
        for (int i = 0; i < kPer / 8; ++i) {
            Piece words = {};
            if (is_there && first + 8 * i < p.d) {
                const auto* from = reinterpret_cast<const Piece*>(row + first + 8 * i);
                words = kKeepsQuery || p.append.k != nullptr ? *from : load_again(from);
            }
#pragma unroll
            for (int j = 0; j < 4; ++j) to[4 * i + j] = words.values[j];
        }
    }

    __device__ __forceinline__ void load_queries() {
        if constexpr (kKeepsQuery) {
#pragma unroll
            for (int n = 0; n < kTiles; ++n) {
#pragma unroll
                for (int c = 0; c < kKeyPieces; ++c) load_query(n, c, query[n][c]);
            }
        }
    }

    // Where a key of the sequence lies; past the end the last one, whose score is discarded.
    __device__ __forceinline__ std::int64_t place(const DecodeStrides& at, int index) const {
        index = min(index, range.end - 1);
        if (p.pages == nullptr) return index * at.token;
        const int page = index / p.page_tokens;
        const int number = p.pages[range.batch * p.pages_of_sequence + page];
        return min(max(number, 0), p.page_count - 1) * at.batch + (index - page * p.page_tokens) * at.token;
    }
    static __device__ __forceinline__ Piece read(const Stored* from, bool is_there) {
        Piece piece = {};
        if (is_there) {
            asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(piece.values[0]), "=r"(piece.values[1]), "=r"(piece.values[2]),
                           "=r"(piece.values[3])
                         : "l"(from));
        }
        return piece;
    }
    __device__ __forceinline__ void find_keys(int first, const Stored* (&rows)[2]) const {
#pragma unroll
        for (int i = 0; i < 2; ++i) rows[i] = keys + place(p.k_at, first + g + 8 * i);
    }
    __device__ __forceinline__ void find_values(int first, const Stored* (&rows)[4]) const {
#pragma unroll
        for (int i = 0; i < 4; ++i) rows[i] = values + place(p.v_at, first + 2 * t + i % 2 + i / 2 * 8);
    }
    __device__ __forceinline__ void load_keys(int slot, const Stored* const (&rows)[2]) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
#pragma unroll
            for (int c = 0; c < kKeyPieces; ++c) {
                key[slot][c][i] = read(rows[i] + c * 4 * kPer, c * 4 * kPer + t * kPer < p.d);
            }
        }
    }
    __device__ __forceinline__ void load_values(int slot, const Stored* const (&rows)[4]) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
#pragma unroll
            for (int c = 0; c < kValuePieces; ++c) {
                value[slot][c][i] = read(rows[i] + c * 8 * kPer, c * 8 * kPer + g * kPer < p.d);
            }
        }
    }
    __device__ __forceinline__ void load_keys(int slot, int first) {
        const Stored* rows[2];
        find_keys(first, rows);
        load_keys(slot, rows);
    }
    __device__ __forceinline__ void load_values(int slot, int first) {
        const Stored* rows[4];
        find_values(first, rows);
        load_values(slot, rows);
    }

    // Two words of a key's piece: elements 4 i .. 4 i + 3.
    __device__ __forceinline__ std::uint32_t key_pair(const Piece& piece, int i) const {
        if constexpr (!kNarrow) return piece.values[i];
        return widen<T>(piece.values[i / 2], i % 2);
    }

    // scores[n]: keys g and g + 8 of the tile's columns 2 t and 2 t + 1.
    __device__ __forceinline__ void multiply_keys(int slot, float (&scores)[kTiles][4]) {
        float others[kTiles][4];  // two sums, since each product waits for the one before
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) scores[n][i] = others[n][i] = 0;
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
                    multiply<T>(i % 4 == 0 ? scores[n] : others[n], a0, a1, a2, a3, query[n][at][i],
                                query[n][at][i + 1]);
                }
            }
        }
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) scores[n][i] += others[n][i];
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
        const auto each = [&](auto body) {  // keys g and g + 8 of each column
#pragma unroll
            for (int n = 0; n < kTiles; ++n) {
#pragma unroll
                for (int i = 0; i < 4; ++i) body(scores[n][i], n, i % 2, first + g + i / 2 * 8);
            }
        };
        if (p.has_options) {
            each([&](float& x, int n, int j, int index) {
                int token, head;
                if (!column_of(n, 2 * t + j, token, head)) return;
                x = with_options(p, x, head, index - range.position - token) * kLog2E;
            });
        } else {
            const float scale = p.scale * kLog2E;
            each([&](float& x, int, int, int) { x *= scale; });
        }
        if (first < range.low_of_last || first + 16 > range.end_of_first) {
            each([&](float& x, int n, int j, int index) {
                if (index < low[n][j] || index > high[n][j]) x = -INFINITY;
            });
        }
        bool changed = false;
        float keep[kTiles][2];
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                float &low = scores[n][j], &high = scores[n][2 + j];
                float top = fmaxf(low, high);
#pragma unroll
                for (int step = 4; step < 32; step *= 2) {
                    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, step));
                }
                top = fmaxf(top, highest[n][j]);
                changed |= top != highest[n][j];
                const float base = top == -INFINITY ? 0.0f : top;
                keep[n][j] = power_of_two(highest[n][j] - base);
                highest[n][j] = top;
                low = power_of_two(low - base);
                high = power_of_two(high - base);
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
            Piece words = {};
            if (element < p.d) words = *reinterpret_cast<const Piece*>(&shared.newest[row][element]);
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

    __device__ __forceinline__ void load_first(int stride) {
        if (first() >= range.split_end) return;
        if (p.pages != nullptr) find_first();
        load_keys(0, first_keys);
        load_values(0, first_values);
#pragma unroll
        for (int slot = 1; slot < kSteps; ++slot) {
            if (first() + slot * stride >= range.split_end) break;
            load_keys(slot, first() + slot * stride);
            load_values(slot, first() + slot * stride);
        }
    }

    __device__ __forceinline__ void run(Turn& turning, const Part& own) {
        if (p.append.k != nullptr || first() < range.split_end) attend(turning, own);
        join_warps();
    }
    __device__ __forceinline__ void attend(Turn& turning, const Part& own) {
        constexpr int kStride = 16 * kWarps;
        const bool appends = p.append.k != nullptr;
        if (appends && !kKeepsQuery) append(turning, own);  // no registers for both
        if (!appends) load_queries();                       // before the keys, behind which they would wait
        load_first(kStride);
        int first = this->first();
        if (appends && kKeepsQuery) {
            append(turning, own);
#pragma unroll
            for (int slot = 0; slot < kSteps; ++slot) {
                const int here = first + slot * kStride;
                if (keeps && here < range.split_end && here + 16 > range.position) take_newest(slot, here);
            }
            load_queries();
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
    }

    // Where element d of a column lies, so that neither a warp's stores of pairs nor its reading of whole
    // lines in fours meet a bank twice.
    static __device__ __forceinline__ int place_of(int column, int d) {
        return d ^ (column / 2 % 4 * 2) ^ (kNarrow ? (d / 32 % 2) * 8 : 0);
    }

    // The warps' results, which are of different keys, to one, and on from there.
    __device__ __forceinline__ void join_warps() {
        constexpr int kColumns = 8 * kTiles;
        __shared__ float tops[kWarps][kColumns], sums[kWarps][kColumns];
        extern __shared__ __align__(16) float values[];  // [kWarps][kColumns][kHeadDim]
        const int warps = min((range.split_end - range.split_begin + 15) / 16, kWarps);  // that had keys
        if (warp < warps) {
#pragma unroll
            for (int n = 0; n < kTiles; ++n) {
#pragma unroll
                for (int j = 0; j < 2; ++j) {
                    const int column = n * 8 + 2 * t + j;
                    int token, head;
                    if (!column_of(n, 2 * t + j, token, head)) continue;
                    if (g == 0) {
                        tops[warp][column] = highest[n][j];
                        sums[warp][column] = sum[n][j];
                    }
                    float* const line = values + (warp * kColumns + column) * kHeadDim;
#pragma unroll
                    for (int tile = 0; tile < kAccTiles; ++tile) {
                        if (d_of(tile) >= kHeadDim) continue;
                        *reinterpret_cast<Vector<float, 2>*>(line + place_of(column, d_of(tile))) = {
                            acc[n][tile][j], acc[n][tile][2 + j]};
                    }
                }
            }
        }
        __syncthreads();
        // In loops, and a lane for each warp's total: instructions that run once cost more to bring than to
        // do.
        static_assert(kWarps <= 16);
#pragma unroll 1
        for (int column = warp; column < kColumns; column += kWarps) {
            int token, head;
            if (!column_of(column / 8, column % 8, token, head)) continue;
            const float own_top = lane < warps ? tops[lane][column] : -INFINITY;
            const float top = warp_max(own_top);
            const float weight = power_of_two(own_top - (top == -INFINITY ? 0.0f : top));
            float total = lane < warps ? weight * sums[lane][column] : 0.0f;
#pragma unroll
            for (int step = 8; step > 0; step /= 2) total += __shfl_xor_sync(0xffffffffu, total, step);
            total = __shfl_sync(0xffffffffu, total, 0);
            const auto own = [&](int d) {
                Vector<float, 4> x = {};
                const int at = place_of(column, min(d, kHeadDim - 4));
                const float* line = values + column * kHeadDim + at / 4 * 4;
#pragma unroll 4
                for (int w = 0; w < warps; ++w, line += kColumns * kHeadDim) {
                    const auto part = *reinterpret_cast<const Vector<float, 4>*>(line);
                    const float share = __shfl_sync(0xffffffffu, weight, w);
#pragma unroll
                    for (int j = 0; j < 4; ++j) x.values[j] += share * part.values[j];
                }
                return at % 4 == 0 ? x : Vector<float, 4>{x.values[2], x.values[3], x.values[0], x.values[1]};
            };
            finish_row<T, 4>(p, range, token, head, top, total, own);
        }
    }
};

template <class T, class Stored, int kHeadDim, int kTiles, int kWarps, int kSteps>
__device__ __forceinline__ void decode_mma(const AttentionDecodeParams& p) {
    using Work = Decode<T, Stored, kHeadDim, kTiles, kWarps, kSteps>;
    __shared__ typename Work::Shared shared;
    const bool appends = p.append.k != nullptr;
    const DecodeRange place = decode_place(p, 8 * kTiles);
    Work work(p, shared);
    int position = 0;
    if (appends) {
        wait_for_predecessor();
        launch_dependents();
        position = position_of(p);
    } else if (p.positions != nullptr) {
        position = __ldcg(p.positions + blockIdx.z);  // a hint
    }
    // Before the position is known.
    typename Work::Turn turning(p.append.rope, appends ? p.d : 0);
    typename Work::Part own;
    if (Work::kKeepsQuery && appends) {
        const int row = threadIdx.x / 32;
        const T* const x = row < Work::kAppended ? Work::appended(p, place, row) : nullptr;
        if (x != nullptr) own = turning.load(x);
    }
#pragma unroll 1
    for (bool waited = appends;;) {
        const DecodeRange range = with_keys(p, place, 8 * kTiles, position);
        work.set(range, position);
        if (waited) break;
        prefetch_keys(p, range, sizeof(Stored));  // else they come beside the queries
        wait_for_predecessor();
        launch_dependents();
        waited = true;
        const int known = position_of(p);
        if (known == position) break;
        position = known;
    }
    if (work.range.split < work.range.active) work.run(turning, own);
}

}  // namespace gpk::kernels

// X of GPK_DECODE_MMA.
#define GPK_DECODE_MMA_KERNEL(suffix, T, stored, Stored, D, N, threads, blocks, steps) \
    extern "C" __global__ void __launch_bounds__(threads, blocks)                      \
        attention_decode_##suffix##stored##_d##D##_r##N##_t##threads(                  \
            const __grid_constant__ AttentionDecodeParams p) {                         \
        decode_mma<T, Stored, D, N / 8, threads / 32, steps>(p);                       \
    }
