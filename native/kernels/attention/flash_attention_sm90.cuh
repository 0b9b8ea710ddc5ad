// flash_attention for SM 90: one warp copies keys and values to shared memory, warpgroups of 64 queries each
// multiply (wgmma) from there. As in Shah et al. 2024 (arXiv:2407.08608) one warpgroup's softmax runs beside
// another's products, and within a warpgroup the scores of the next keys are made beside the product with the
// values of these. The weights stay in registers.
//
// exp2 is ex2.approx (2 units in the last place of float32, under what rounding the weights to 16 bits does).
#pragma once

#include <type_traits>

#include "kernels/attention/flash_attention.hpp"
#include "kernels/device.cuh"
#include "kernels/hopper.cuh"
#include "kernels/wgmma.cuh"

namespace gpk::kernels {

// kHeadDim: columns in shared memory, of which those from d on are zero. kKeys: keys of a block, which
// kStages blocks of keys and of values have room for.
template <class T, int kHeadDim_, int kKeys_, int kWarpgroups_, int kStages_>
struct FlashTraits {
    using Element = T;
    static constexpr int kHeadDim = kHeadDim_, kKeys = kKeys_, kWarpgroups = kWarpgroups_, kStages = kStages_;
    static constexpr int kRows = 64 * kWarpgroups, kThreads = 128 * (kWarpgroups + 1);
    static constexpr int kChunks = (kHeadDim + 63) / 64;  // of 64 columns, which are a row of 128 bytes
    // Measured: three warpgroups of small heads gain 7 % by it, two of larger ones lose 2 %.
    static constexpr bool kInTurns = kWarpgroups == 3;
    static constexpr int kProducerRegisters = kWarpgroups == 2 ? 40 : 32;
    static constexpr int kConsumerRegisters = kWarpgroups == 2 ? 232 : 160;
};

template <class Traits>
struct FlashShared {
    // A whole swizzle pattern is 1024 bytes.
    alignas(1024) typename Traits::Element q[Traits::kChunks][Traits::kRows][64];
    alignas(1024) typename Traits::Element k[Traits::kStages][Traits::kChunks][Traits::kKeys][64];
    alignas(1024) typename Traits::Element v[Traits::kStages][Traits::kChunks][Traits::kKeys][64];
    Barrier q_full, q_empty, tile_full, tile_empty;
    Barrier k_full[Traits::kStages], k_empty[Traits::kStages];
    Barrier v_full[Traits::kStages], v_empty[Traits::kStages];
    std::int32_t tile;
};

// A place in a ring of stages, and the parity of its barriers' phase.
template <int kStages>
struct Ring {
    int stage = 0;
    std::uint32_t parity = 0;
    __device__ __forceinline__ void advance() {
        if (++stage == kStages) {
            stage = 0;
            parity ^= 1;
        }
    }
};

__device__ __forceinline__ float exp2_approx(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
template <class T>
__device__ __forceinline__ std::uint32_t pack(float low, float high) {
    std::uint32_t bits;
    if constexpr (std::is_same_v<T, bfloat16>) {
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    } else {
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    }
    return bits;
}

// One thread: takes tiles, tells the warpgroups of them and copies what they need.
template <class Traits>
__device__ __forceinline__ void flash_produce(const FlashAttentionParams& p, FlashShared<Traits>& shared) {
    constexpr int kKeys = Traits::kKeys, kChunks = Traits::kChunks;
    constexpr std::uint32_t kRowBytes = 64 * sizeof(typename Traits::Element) * kChunks;
    const std::int32_t group = p.heads / p.kv_heads, items = p.end_tile - p.first_tile;
    Ring<Traits::kStages> ring;
    Ring<1> tiles, queries;
    for (std::int32_t item = blockIdx.x;; tiles.advance()) {
        barrier_wait(shared.tile_empty, tiles.parity ^ 1);
        shared.tile = item < items ? p.first_tile + item : -1;
        barrier_arrive(shared.tile_full);
        if (item >= items) return;
        const FlashTile tile = flash_tile(p, p.first_tile + item);
        const std::int32_t kv_head = tile.head / group;
        const std::int32_t first = tile.begin / kKeys, end = (tile.end + kKeys - 1) / kKeys;
        for (std::int32_t block = end - 1; block >= first; --block, ring.advance()) {
            const int stage = ring.stage;
            const std::int32_t key = tile.k_start + block * kKeys;
            barrier_wait(shared.k_empty[stage], ring.parity ^ 1);
            barrier_expect(shared.k_full[stage], kKeys * kRowBytes);
            for (int c = 0; c < kChunks; ++c) {
                tma_load(shared.k[stage][c], p.k_map, shared.k_full[stage], CachePolicy::evict_last, c * 64,
                         key, kv_head, tile.batch);
            }
            if (block == end - 1) {
                barrier_wait(shared.q_empty, queries.parity ^ 1);
                queries.advance();
                barrier_expect(shared.q_full, Traits::kRows * kRowBytes);
                for (int c = 0; c < kChunks; ++c) {
                    tma_load(shared.q[c], p.q_map, shared.q_full, CachePolicy::evict_first, c * 64,
                             tile.q_start + tile.first_row, tile.head, tile.batch);
                }
            }
            barrier_wait(shared.v_empty[stage], ring.parity ^ 1);
            barrier_expect(shared.v_full[stage], kKeys * kRowBytes);
            for (int c = 0; c < kChunks; ++c) {
                tma_load(shared.v[stage][c], p.v_map, shared.v_full[stage], CachePolicy::evict_last, c * 64,
                         key, kv_head, tile.batch);
            }
        }
        if (p.next_tile == nullptr) {
            item += gridDim.x;
        } else {
            const std::uint32_t taken = atomicAdd(p.next_tile, 1u);
            // Every item is fetched but the first of each block, and each block once finds none.
            if (taken == static_cast<std::uint32_t>(items) - 1) *p.next_tile = 0;
            item = static_cast<std::int32_t>(taken + gridDim.x);
        }
    }
}

// What a thread of a warpgroup works on: rows `row` and `row` + 8 of its tile (see wgmma.cuh).
template <class Traits, bool kGeneral>
struct FlashConsumer {
    using T = typename Traits::Element;
    static constexpr int kKeys = Traits::kKeys, kHeadDim = Traits::kHeadDim, kChunks = Traits::kChunks;
    static constexpr int kTurnBarrier = 1;  // and the next ones, one a warpgroup
    static constexpr int kZeroBarrier = kTurnBarrier + Traits::kWarpgroups;

    const FlashAttentionParams& p;
    FlashShared<Traits>& shared;
    const int warpgroup, thread;
    const float to_log2;  // of what scores() leaves, to powers of two
    Ring<Traits::kStages> keys, values;
    FlashTile tile;
    int row, column;  // of the tile, of a block
    float score[kKeys / 2], acc[kHeadDim / 2], highest[2], sum[2], keep[2];
    std::uint32_t weight[kKeys / 16][4];

    __device__ __forceinline__ FlashConsumer(const FlashAttentionParams& p, FlashShared<Traits>& shared)
        : p(p),
          shared(shared),
          warpgroup(threadIdx.x / 128 - 1),
          thread(threadIdx.x % 128),
          to_log2((kGeneral ? 1.0f : p.scale) * 1.44269504f),
          row(warpgroup * 64 + thread / 32 * 16 + thread % 32 / 4),
          column(thread % 4 * 2) {}

    // The warpgroups start their products in turn, where that is faster.
    __device__ __forceinline__ void wait_turn() {
        if (Traits::kInTurns) named_barrier_sync(kTurnBarrier + warpgroup, 256);
    }
    __device__ __forceinline__ void end_turn() {
        if (!Traits::kInTurns) return;
        named_barrier_arrive(kTurnBarrier + (warpgroup + 1) % Traits::kWarpgroups, 256);
    }
    __device__ __forceinline__ void release(Barrier& barrier) {
        if (thread % 32 == 0) barrier_arrive(barrier);
    }

    // score = q k^T
    __device__ __forceinline__ void start_scores() {
        const std::uint64_t q = wgmma_matrix(shared.q[0][warpgroup * 64], 16, 1024);
        const std::uint64_t k = wgmma_matrix(shared.k[keys.stage][0], 16, 1024);
#pragma unroll
        for (int step = 0; step < kHeadDim / 16; ++step) {
            constexpr int kRowUnits = 128 / 16;
            const int chunk = step / 4, inside = step % 4 * 2;
            wgmma<T, kKeys>(score, q + chunk * Traits::kRows * kRowUnits + inside,
                            k + chunk * kKeys * kRowUnits + inside, step > 0);
        }
        wgmma_commit();
    }
    // acc += weight v
    __device__ __forceinline__ void start_values() {
        const std::uint64_t v = wgmma_matrix(shared.v[values.stage][0], kKeys * 128, 1024);
#pragma unroll
        for (int step = 0; step < kKeys / 16; ++step) {
            wgmma<T, kHeadDim, true>(acc, weight[step], v + step * 2048 / 16, true);
        }
        wgmma_commit();
    }

    // Values of keys from the sequence's end on may be anything, and 0 * NaN is NaN.
    __device__ __forceinline__ void zero_values(int from) {
        for (int i = from * 64 / 8 + thread; i < kKeys * 64 / 8; i += 128) {
            for (int c = 0; c < kChunks; ++c) {
                reinterpret_cast<Vector<std::uint32_t, 4>*>(shared.v[values.stage][c])[i] = {};
            }
        }
        fence_async_shared();
        named_barrier_sync(kZeroBarrier + warpgroup, 128);
    }

    // x of each score of the block becomes change(x, row of the tile, key).
    template <class Change>
    __device__ __forceinline__ void each_score(int first_key, Change&& change) {
#pragma unroll
        for (int i = 0; i < kKeys / 2; ++i) {
            score[i] = change(score[i], row + i / 2 % 2 * 8, first_key + i / 4 * 8 + column + i % 2);
        }
    }
    // `apply`: what an element of the mask makes of a score.
    template <class Element, class Apply>
    __device__ __forceinline__ void each_masked(int first_key, Apply&& apply) {
        const Element* mask = static_cast<const Element*>(p.mask) + tile.sequence * p.mask_batch +
                              tile.head * p.mask_head + first_key + column;
        const int limit = tile.length - first_key - column;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const Element* line = mask + (tile.first_row + least(row + 8 * r, tile.rows - 1)) * p.mask_query;
#pragma unroll
            for (int i = 0; i < kKeys / 4; ++i) {
                const int key = i / 2 * 8 + i % 2;
                float& x = score[i / 2 * 4 + 2 * r + i % 2];
                if (key < limit) x = apply(x, line[key]);
            }
        }
    }
    __device__ __forceinline__ void change_scores(int first_key) {
        if (p.soft_cap > 0) {
            const float twice = 2 * 1.44269504f * p.scale / p.soft_cap;
            each_score(first_key, [&](float x, int, int) {
                return p.soft_cap - 2 * p.soft_cap * __frcp_rn(1 + exp2_approx(x * twice));
            });
        } else {
            each_score(first_key, [&](float x, int, int) { return x * p.scale; });
        }
        if (p.slopes != nullptr) {
            const float slope = p.slopes[tile.head];
            const int shift = tile.first_row + tile.shift;
            each_score(first_key, [&](float x, int at, int key) {
                return x - slope * static_cast<float>(abs(key - at - shift));
            });
        }
        switch (p.mask_kind) {
            case MaskKind::none: break;
            case MaskKind::boolean:
                each_masked<bool>(first_key, [](float x, bool seen) { return seen ? x : -INFINITY; });
                break;
            case MaskKind::element:
                each_masked<T>(first_key, [](float x, T more) { return x + float(more); });
                break;
            case MaskKind::float32:
                each_masked<float>(first_key, [](float x, float more) { return x + more; });
                break;
        }
    }

    // What is not seen becomes -infinity.
    __device__ __forceinline__ void mask_scores(int block) {
        const int first_key = block * kKeys, first_place = tile.first_row + warpgroup * 64 + tile.shift;
        if constexpr (kGeneral) change_scores(first_key);
        const bool all_seen = first_key + kKeys <= least(tile.length, first_place + p.right + 1) &&
                              first_key >= first_place + 63 - p.left;
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

    // score becomes the weights; keep is what earlier sums and products are to be multiplied by.
    __device__ __forceinline__ void softmax() {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            float top = highest[r];
#pragma unroll
            for (int i = 0; i < kKeys / 4; ++i) top = fmaxf(top, score[i / 2 * 4 + 2 * r + i % 2]);
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
            const float base = top == -INFINITY ? 0.0f : top * to_log2;
            keep[r] = exp2_approx(highest[r] * to_log2 - base);
            highest[r] = top;
            float here = 0;
#pragma unroll
            for (int i = 0; i < kKeys / 4; ++i) {
                float& x = score[i / 2 * 4 + 2 * r + i % 2];
                x = exp2_approx(x * to_log2 - base);
                here += x;
            }
            sum[r] = sum[r] * keep[r] + here;
        }
    }
    __device__ __forceinline__ void pack_weights() {
#pragma unroll
        for (int i = 0; i < kKeys / 4; ++i) weight[i / 4][i % 4] = pack<T>(score[2 * i], score[2 * i + 1]);
    }
    __device__ __forceinline__ void rescale() {
#pragma unroll
        for (int i = 0; i < kHeadDim / 2; ++i) acc[i] *= keep[i / 2 % 2];
    }

    __device__ __forceinline__ void store() {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 1);
            sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 2);
            const float inverse = sum[r] == 0 ? 0.0f : 1 / sum[r];
            T* out = static_cast<T*>(p.out) + tile.batch * p.out_at.batch + tile.head * p.out_at.head +
                     (tile.q_start + tile.first_row + row + 8 * r) * p.out_at.token;
#pragma unroll
            for (int i = 0; i < kHeadDim / 32; ++i) {
                // Four lanes hold pairs of four times 8 columns; each gets 8 columns whole.
                std::uint32_t x[4];
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    const int at = (4 * i + j) * 4 + 2 * r;
                    x[j] = pack<T>(acc[at] * inverse, acc[at + 1] * inverse);
                }
#pragma unroll
                for (int step = 1; step <= 2; step *= 2) {
                    const bool upper = thread & step;
#pragma unroll
                    for (int j = 0; j < 4; ++j) {
                        if (j & step) continue;
                        const std::uint32_t got =
                            __shfl_xor_sync(0xffffffffu, upper ? x[j] : x[j + step], step);
                        (upper ? x[j] : x[j + step]) = got;
                    }
                }
                const int first = 32 * i + 8 * (thread % 4);
                if (row + 8 * r < tile.rows && first < p.d) {
                    *reinterpret_cast<Vector<std::uint32_t, 4>*>(out + first) = {x[0], x[1], x[2], x[3]};
                }
            }
        }
    }

    __device__ __forceinline__ void run() {
        Ring<1> tiles, queries;
        if (warpgroup == Traits::kWarpgroups - 1) end_turn();
        for (;; tiles.advance()) {
            barrier_wait(shared.tile_full, tiles.parity);
            const std::int32_t index = shared.tile;
            barrier_arrive(shared.tile_empty);  // each thread, for it has read
            if (index < 0) break;
            tile = flash_tile(p, index);
            const int first = tile.begin / kKeys, end = (tile.end + kKeys - 1) / kKeys;
#pragma unroll
            for (int i = 0; i < kHeadDim / 2; ++i) acc[i] = 0;
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                highest[r] = -INFINITY;
                sum[r] = 0;
            }
            if (end > first) {
                barrier_wait(shared.q_full, queries.parity);
                queries.advance();
                run_blocks(first, end);
            }
            store();
        }
        if (warpgroup == 0) wait_turn();
    }

    __device__ __forceinline__ void run_blocks(int first, int end) {
        barrier_wait(shared.k_full[keys.stage], keys.parity);
        wgmma_fence();
        start_scores();
        wgmma_wait<0>();
        wgmma_hold(score);
        release(shared.k_empty[keys.stage]);
        keys.advance();
        mask_scores(end - 1);
        softmax();
        pack_weights();
        for (int block = end - 2; block >= first; --block) {
            barrier_wait(shared.k_full[keys.stage], keys.parity);
            wait_turn();
            wgmma_fence();
            start_scores();
            barrier_wait(shared.v_full[values.stage], values.parity);
            if (block == end - 2) zero_tail(end);
            wgmma_fence();
            start_values();
            end_turn();
            wgmma_wait<1>();
            wgmma_hold(score);
            release(shared.k_empty[keys.stage]);
            keys.advance();
            mask_scores(block);
            softmax();
            wgmma_wait<0>();
            wgmma_hold(acc);
            release(shared.v_empty[values.stage]);
            values.advance();
            pack_weights();
            rescale();
        }
        release(shared.q_empty);
        barrier_wait(shared.v_full[values.stage], values.parity);
        if (end - first == 1) zero_tail(end);
        wgmma_fence();
        start_values();
        wgmma_wait<0>();
        wgmma_hold(acc);
        release(shared.v_empty[values.stage]);
        values.advance();
    }
    __device__ __forceinline__ void zero_tail(int end) {
        const int left = tile.length - (end - 1) * kKeys;
        if (left < kKeys && (p.position != nullptr || p.k_starts != nullptr)) zero_values(left);
    }
};

template <class Traits, bool kGeneral>
__device__ __forceinline__ void flash_attention(const FlashAttentionParams& p) {
    extern __shared__ __align__(1024) unsigned char bytes[];
    auto& shared = *reinterpret_cast<FlashShared<Traits>*>(bytes);
    wait_for_predecessor();
    if (threadIdx.x == 0) {
        constexpr int kConsumerWarps = 4 * Traits::kWarpgroups;
        barrier_init(shared.q_full, 1);
        barrier_init(shared.q_empty, kConsumerWarps);
        barrier_init(shared.tile_full, 1);
        barrier_init(shared.tile_empty, 32 * kConsumerWarps);
        for (int i = 0; i < Traits::kStages; ++i) {
            barrier_init(shared.k_full[i], 1);
            barrier_init(shared.k_empty[i], kConsumerWarps);
            barrier_init(shared.v_full[i], 1);
            barrier_init(shared.v_empty[i], kConsumerWarps);
        }
        barrier_init_fence();
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        give_registers<Traits::kProducerRegisters>();
        if (threadIdx.x == 0) flash_produce<Traits>(p, shared);
    } else {
        take_registers<Traits::kConsumerRegisters>();
        FlashConsumer<Traits, kGeneral>(p, shared).run();
    }
}

template <class T, int kHeadDim>
using FlashTraitsOf = FlashTraits<T, kHeadDim, flash_sm90(kHeadDim).keys, flash_sm90(kHeadDim).warpgroups,
                                  flash_sm90(kHeadDim).stages>;

}  // namespace gpk::kernels

// A file for each head size: they compile side by side.
#define GPK_FLASH_SM90_KERNEL(D, suffix, T, options, kGeneral)                                     \
    extern "C" __global__ void __launch_bounds__(::gpk::kernels::FlashTraitsOf<T, D>::kThreads, 1) \
        flash_attention_##suffix##_d##D##options##_sm90(                                           \
            const __grid_constant__ ::gpk::kernels::FlashAttentionParams p) {                      \
        ::gpk::kernels::flash_attention<::gpk::kernels::FlashTraitsOf<T, D>, kGeneral>(p);         \
    }
#define GPK_FLASH_SM90_KERNELS(D)                                 \
    GPK_FLASH_SM90_KERNEL(D, f16, ::gpk::float16, , false)        \
    GPK_FLASH_SM90_KERNEL(D, f16, ::gpk::float16, _options, true) \
    GPK_FLASH_SM90_KERNEL(D, bf16, ::gpk::bfloat16, , false)      \
    GPK_FLASH_SM90_KERNEL(D, bf16, ::gpk::bfloat16, _options, true)
