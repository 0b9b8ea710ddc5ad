// flash_attention for SM 90: one warp copies keys and values to shared memory, warpgroups of 64 queries each
// multiply (wgmma) from there. As in Shah et al. 2024 (arXiv:2407.08608) one warpgroup's softmax runs beside
// another's products, and within a warpgroup the scores of the next keys are made beside the product with the
// values of these. The weights stay in registers.
//
// float8: products of 8 bits want both operands along k, so values come turned, in the order that weights
// have (flash_values). Weights are up to 2^8, where e4m3 still has 3 bits of them at 2^-14 of the largest.
#pragma once

#include "kernels/attention/flash_rows.cuh"
#include "kernels/hopper.cuh"
#include "kernels/wgmma.cuh"

namespace gpk::kernels {

// kHeadDim: columns in shared memory, of which those from d on are zero. kKeys: keys of a block, which
// kStages blocks of keys and of values have room for.
template <class T, int kHeadDim_>
struct FlashTraits {
    using Element = T;
    static constexpr FlashSm90 kShape = flash_sm90(kHeadDim_, sizeof(T));
    static constexpr bool kFloat8 = sizeof(T) == 1;
    static constexpr int kHeadDim = kHeadDim_, kKeys = kShape.keys, kWarpgroups = kShape.warpgroups,
                         kStages = kShape.stages;
    static constexpr int kRows = 64 * kWarpgroups, kThreads = 128 * (kWarpgroups + 1);
    static constexpr int kRowColumns = 128 / sizeof(T);  // of a row of 128 bytes
    static constexpr int kChunks = (kHeadDim + kRowColumns - 1) / kRowColumns;
    // Values: of kChunks parts of the columns the keys; with float8 of one part of the keys the columns.
    static constexpr int kValueChunks = kFloat8 ? kKeys / 128 : kChunks;
    static constexpr int kValueRows = kFloat8 ? kHeadDim : kKeys;
    // Measured: three warpgroups of small heads gain 7 % by it, two of larger ones lose 2 %.
    static constexpr bool kInTurns = kWarpgroups == 3;
    // Scores are not compared with each other where they need not be. Measured: 8 to 15 % more of float8 with
    // heads of 128; what else there is has no registers for it.
    static constexpr bool kLazy = kFloat8 && kHeadDim == 128;
    // 64512 in all, in eights; two warpgroups of float8 need the last eight to keep their products apart.
    static constexpr bool kMost = kFloat8;
    static constexpr int kProducerRegisters = kWarpgroups == 3 ? 32 : kMost ? 24 : 40;
    static constexpr int kConsumerRegisters = kWarpgroups == 3 ? 160 : kMost ? 240 : 232;
};

template <class Traits>
struct FlashShared {
    using Element = typename Traits::Element;
    // A whole swizzle pattern is 1024 bytes.
    alignas(1024) Element q[Traits::kChunks][Traits::kRows][Traits::kRowColumns];
    alignas(1024) Element k[Traits::kStages][Traits::kChunks][Traits::kKeys][Traits::kRowColumns];
    alignas(1024) Element v[Traits::kStages][Traits::kValueChunks][Traits::kValueRows][Traits::kRowColumns];
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

// One warp: takes tiles, tells the warpgroups of them and copies what they need. Of keys in pages each lane
// copies those of a page.
template <class Traits>
__device__ __forceinline__ void flash_produce(const FlashAttentionParams& p, FlashShared<Traits>& shared) {
    constexpr int kKeys = Traits::kKeys, kChunks = Traits::kChunks, kColumns = Traits::kRowColumns;
    constexpr std::uint32_t kKeyBytes = kKeys * 128 * kChunks;
    constexpr std::uint32_t kValueBytes = Traits::kValueChunks * Traits::kValueRows * 128;
    const std::int32_t group = p.heads / p.kv_heads, items = p.end_tile - p.first_tile;
    const int lane = threadIdx.x;
    const std::int32_t boxes = p.pages == nullptr ? 1 : kKeys / p.box_keys;
    Ring<Traits::kStages> ring;
    Ring<1> tiles, queries;
    for (std::int32_t item = blockIdx.x;; tiles.advance()) {
        barrier_wait(shared.tile_empty, tiles.parity ^ 1);
        if (lane == 0) {
            shared.tile = item < items ? p.first_tile + item : -1;
            barrier_arrive(shared.tile_full);
        }
        if (item >= items) return;
        const FlashTile tile = flash_tile(p, p.first_tile + item);
        const std::int32_t kv_head = tile.head / group;
        const std::int32_t first = tile.begin / kKeys, end = (tile.end + kKeys - 1) / kKeys;
        for (std::int32_t block = end - 1; block >= first; --block, ring.advance()) {
            const int stage = ring.stage;
            std::int32_t key = tile.k_start + block * kKeys, batch = tile.batch;
            if (p.pages != nullptr && lane < boxes) {
                key += lane * p.box_keys;
                batch = page_of(p, tile, key);
                key %= p.page_tokens;
            }
            barrier_wait(shared.k_empty[stage], ring.parity ^ 1);
            if (lane == 0) barrier_expect(shared.k_full[stage], kKeyBytes);
            __syncwarp();
            if (lane < boxes) {
                for (int c = 0; c < kChunks; ++c) {
                    tma_load(shared.k[stage][c][lane * p.box_keys], p.k_map, shared.k_full[stage],
                             CachePolicy::evict_last, c * kColumns, key, kv_head, batch);
                }
            }
            if (block == end - 1 && lane == 0) {
                barrier_wait(shared.q_empty, queries.parity ^ 1);
                queries.advance();
                barrier_expect(shared.q_full, Traits::kRows * 128 * kChunks);
                for (int c = 0; c < kChunks; ++c) {
                    tma_load(shared.q[c], p.q_map, shared.q_full, CachePolicy::evict_first, c * kColumns,
                             tile.q_start + tile.first_row, tile.head, tile.batch);
                }
            }
            barrier_wait(shared.v_empty[stage], ring.parity ^ 1);
            if (lane == 0) barrier_expect(shared.v_full[stage], kValueBytes);
            __syncwarp();
            if (lane < boxes) {
                for (int c = 0; c < Traits::kValueChunks; ++c) {
                    if constexpr (Traits::kFloat8) {
                        tma_load(shared.v[stage][c], p.v_map, shared.v_full[stage], CachePolicy::evict_last,
                                 key + 128 * c, 0, kv_head, batch);
                    } else {
                        tma_load(shared.v[stage][c][lane * p.box_keys], p.v_map, shared.v_full[stage],
                                 CachePolicy::evict_last, c * kColumns, key, kv_head, batch);
                    }
                }
            }
        }
        if (p.next_tile == nullptr) {
            item += gridDim.x;
        } else {
            std::uint32_t taken = 0;
            if (lane == 0) {
                taken = atomicAdd(p.next_tile, 1u);
                // Every item is fetched but the first of each block, and each block once finds none.
                if (taken == static_cast<std::uint32_t>(items) - 1) *p.next_tile = 0;
            }
            taken = __shfl_sync(0xffffffffu, taken, 0);
            item = static_cast<std::int32_t>(taken + gridDim.x);
        }
    }
}

// What a thread of a warpgroup works on: rows `row` and `row` + 8 of its tile (see wgmma.cuh).
template <class Traits, bool kGeneral>
struct FlashConsumer {
    using T = typename Traits::Element;
    static constexpr int kKeys = Traits::kKeys, kHeadDim = Traits::kHeadDim;
    static constexpr int kTurnBarrier = 1;  // and the next ones, one a warpgroup
    static constexpr int kZeroBarrier = kTurnBarrier + Traits::kWarpgroups;
    static constexpr int kKeysOfStep = 32 / sizeof(T);

    const FlashAttentionParams& p;
    FlashShared<Traits>& shared;
    const int warpgroup, thread;
    Ring<Traits::kStages> keys, values;
    FlashTile tile;
    FlashRows<T, kKeys, kGeneral, Traits::kLazy> rows;
    float score[kKeys / 2], acc[kHeadDim / 2];
    using Weights = std::uint32_t[kKeys / kKeysOfStep][4];
    Weights even, odd;  // of every second block, where they are made early

    __device__ __forceinline__ FlashConsumer(const FlashAttentionParams& p, FlashShared<Traits>& shared)
        : p(p), shared(shared), warpgroup(threadIdx.x / 128 - 1), thread(threadIdx.x % 128) {
        rows.row = warpgroup * 64 + thread / 32 * 16 + thread % 32 / 4;
        rows.column = thread % 4 * 2;
    }

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
        for (int step = 0; step < kHeadDim / kKeysOfStep; ++step) {
            constexpr int kRowUnits = 128 / 16;
            const int chunk = step / 4, inside = step % 4 * 2;
            wgmma<T, kKeys>(score, q + chunk * Traits::kRows * kRowUnits + inside,
                            k + chunk * kKeys * kRowUnits + inside, step > 0);
        }
        wgmma_commit();
    }
    // acc += weight v
    __device__ __forceinline__ void start_values(const Weights& weight) {
        if constexpr (Traits::kFloat8) {
            const std::uint64_t v = wgmma_matrix(shared.v[values.stage][0], 16, 1024);
#pragma unroll
            for (int step = 0; step < kKeys / 32; ++step) {
                wgmma<T, kHeadDim>(acc, weight[step], v + step / 4 * kHeadDim * 8 + step % 4 * 2, true);
            }
        } else {
            const std::uint64_t v = wgmma_matrix(shared.v[values.stage][0], kKeys * 128, 1024);
#pragma unroll
            for (int step = 0; step < kKeys / 16; ++step) {
                wgmma<T, kHeadDim, true>(acc, weight[step], v + step * 2048 / 16, true);
            }
        }
        wgmma_commit();
    }

    // Values of keys from the sequence's end on may be anything, and 0 * NaN is NaN.
    __device__ __forceinline__ void zero_values(int from) {
        for (int i = from * 64 / 8 + thread; i < kKeys * 64 / 8; i += 128) {
            for (int c = 0; c < Traits::kChunks; ++c) {
                reinterpret_cast<Vector<std::uint32_t, 4>*>(shared.v[values.stage][c])[i] = {};
            }
        }
        fence_async_shared();
        named_barrier_sync(kZeroBarrier + warpgroup, 128);
    }

    __device__ __forceinline__ void mask_scores(int block) {
        rows.template mask<64>(p, tile, score, block * kKeys, warpgroup * 64);
    }
    __device__ __forceinline__ void store() {
        if constexpr (!Traits::kFloat8) {
            rows.template store<T>(p, tile, acc);
        } else if (p.out_float16 != 0) {
            rows.template store<float16>(p, tile, acc);
        } else {
            rows.template store<bfloat16>(p, tile, acc);
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
            rows.begin(p, tile);
            if (end > first) {
                barrier_wait(shared.q_full, queries.parity);
                queries.advance();
                run_blocks(first, end);
            }
            store();
        }
        if (warpgroup == 0) wait_turn();
    }

    __device__ __forceinline__ void have_scores() {
        wgmma_hold(score);
        release(shared.k_empty[keys.stage]);
        keys.advance();
    }
    __device__ __forceinline__ void have_values() {
        wgmma_hold(acc);
        release(shared.v_empty[values.stage]);
        values.advance();
    }

    __device__ __forceinline__ void run_blocks(int first, int end) {
        barrier_wait(shared.k_full[keys.stage], keys.parity);
        wgmma_fence();
        start_scores();
        wgmma_wait<0>();
        have_scores();
        mask_scores(end - 1);
        rows.softmax(score);
        rows.pack(score, even);
        int block = end - 2;
        if constexpr (Traits::kLazy) {
            for (; block > first; block -= 2) {
                run_block(even, odd, block, end);
                run_block(odd, even, block - 1, end);
            }
            if (block == first) {
                run_block(even, odd, block, end);
                end_blocks(odd, first, end);
            } else {
                end_blocks(even, first, end);
            }
        } else {
            for (; block >= first; --block) run_block(even, even, block, end);
            end_blocks(even, first, end);
        }
    }
    // The product with the values of the block after this one, and the weights of this one. Those that are
    // made while the product reads its own are in other registers.
    __device__ __forceinline__ void run_block(const Weights& weight, Weights& next, int block, int end) {
        barrier_wait(shared.k_full[keys.stage], keys.parity);
        wait_turn();
        wgmma_fence();
        start_scores();
        barrier_wait(shared.v_full[values.stage], values.parity);
        if (block == end - 2) zero_tail(end);
        wgmma_fence();
        start_values(weight);
        end_turn();
        wgmma_wait<1>();
        have_scores();
        mask_scores(block);
        bool made = false;
        if constexpr (Traits::kLazy) {
            made = rows.weigh(score, next);
        } else {
            rows.softmax(score);
        }
        wgmma_wait<0>();
        have_values();
        if (!made) {
            if (Traits::kLazy) rows.softmax(score);
            rows.pack(score, next);
            rows.rescale(acc);
        }
    }
    __device__ __forceinline__ void end_blocks(const Weights& weight, int first, int end) {
        release(shared.q_empty);
        barrier_wait(shared.v_full[values.stage], values.parity);
        if (end - first == 1) zero_tail(end);
        wgmma_fence();
        start_values(weight);
        wgmma_wait<0>();
        have_values();
    }
    __device__ __forceinline__ void zero_tail(int end) {
        if (Traits::kFloat8) return;
        const int left = tile.length - (end - 1) * kKeys;
        if (left < kKeys && (p.positions != nullptr || p.k_starts != nullptr)) zero_values(left);
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
        if (threadIdx.x < 32) flash_produce<Traits>(p, shared);
    } else {
        take_registers<Traits::kConsumerRegisters>();
        FlashConsumer<Traits, kGeneral>(p, shared).run();
    }
}

}  // namespace gpk::kernels

// A file for each head size: they compile side by side.
#define GPK_FLASH_SM90_KERNEL(D, suffix, T, options, kGeneral)                                   \
    extern "C" __global__ void __launch_bounds__(::gpk::kernels::FlashTraits<T, D>::kThreads, 1) \
        flash_attention_##suffix##_d##D##options##_sm90(                                         \
            const __grid_constant__ ::gpk::kernels::FlashAttentionParams p) {                    \
        ::gpk::kernels::flash_attention<::gpk::kernels::FlashTraits<T, D>, kGeneral>(p);         \
    }
#define GPK_FLASH_SM90_KERNELS(D)                                 \
    GPK_FLASH_SM90_KERNEL(D, f16, ::gpk::float16, , false)        \
    GPK_FLASH_SM90_KERNEL(D, f16, ::gpk::float16, _options, true) \
    GPK_FLASH_SM90_KERNEL(D, bf16, ::gpk::bfloat16, , false)      \
    GPK_FLASH_SM90_KERNEL(D, bf16, ::gpk::bfloat16, _options, true)
#define GPK_FLASH_FLOAT8_KERNELS(D)                             \
    GPK_FLASH_SM90_KERNEL(D, e4m3, ::gpk::float8_e4m3, , false) \
    GPK_FLASH_SM90_KERNEL(D, e4m3, ::gpk::float8_e4m3, _options, true)
