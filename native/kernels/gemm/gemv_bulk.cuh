// Products of few rows where the copy engine brings the weights (SM 90): one warp of a block keeps it busy,
// 16 KiB at a time into a ring of shared memory, the others multiply. Blocks stay and take tile after tile
// of 16 columns of c, so that the stream of weights never stops while sums are added up.
#pragma once

#include "kernels/gemm/gemv_bulk_sources.cuh"

namespace gpk::kernels {

namespace {

// What is done before the wait: the weights are read, or that many stages of them are asked for. `turns`: see
// GemvBulkParams.
struct BulkStart {
    bool settled;
    std::uint32_t prefetched;
    std::uint32_t* turns;
};

// Up by one, and back to 0 after `last`.
__device__ __forceinline__ std::uint32_t take_turn(std::uint32_t* turns, std::uint32_t last) {
    std::uint32_t turn;
    asm volatile("atom.relaxed.gpu.global.inc.u32 %0, [%1], %2;"
                 : "=r"(turn)
                 : "l"(turns), "r"(last)
                 : "memory");
    return turn;
}

// store(row, column, sum, early(row, column)) is given each sum once; early() is called before the sum is
// known.
//
// Shared memory holds the ring, then x as the tensor cores want it: for each unit of 32 of k,
// each row, each t the 16 bytes at 8 t; then as many zeros as one step has of x, for the rows up to 8 (16)
// that are not there; then the sums of x for each group.
template <class Source, int kTiles, class Early, class Store>
__device__ __forceinline__ void gemv_bulk(const Source& source, std::uint32_t m, std::uint32_t n,
                                          const BulkStart& start, Early early, Store store) {
    constexpr int kUnits = Source::kUnits, kElements = 16 * 8 * kTiles, kThreads = 32 * kBulkWarps;
    constexpr std::uint32_t kEmpty = 8 * kBulkStages;
    constexpr int kSteps = kBulkWarps / Source::kColumnGroups, kColumns = 16 * Source::kColumnGroups;
    extern __shared__ __align__(1024) unsigned char dynamic[];
    __shared__ float parts[2][kBulkWarps][kElements];
    __shared__ Barrier barriers[2 * kBulkStages];  // stages that are full, then those that are empty
    constexpr std::uint32_t kTaken = 16;           // more tiles than are under way
    static_assert(kTaken > kBulkStages);
    // Of settled weights the block's tiles, then one that is not there. Of others, where none takes turns,
    // they are known: to ask for them costs each block a round trip through shared memory.
    const bool told = Source::kTurns && start.settled;
    __shared__ std::uint32_t taken[kTaken];
    std::uint32_t shared_bytes, thread;
    asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(shared_bytes));
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));  // once: not in every round

    const std::uint32_t columns = source.columns();  // of a tile
    const std::uint32_t tiles = (n + columns - 1) / columns, steps = source.steps(), units = steps * kUnits;
    const std::uint32_t ring = shared_address(dynamic);
    constexpr bool kHolds = Source::kInput == BulkInput::held,
                   kStreams = Source::kInput == BulkInput::streamed;
    constexpr bool kShares = !kHolds && !kStreams;
    static_assert(!kHolds ||
                  (kTiles == 1 && kUnits == 1 && Source::kColumnGroups == 1 && Source::kRounds == 1));
    const auto beside =
        !kShares ? 0u : static_cast<std::uint32_t>(bulk_beside_bytes(m, units, kUnits, Source::kGroup));
    const std::uint32_t stages = (shared_bytes - beside) / Source::kStageBytes;
    const std::uint32_t x_begin = ring + stages * Source::kStageBytes, zeros = x_begin + 64 * m * units;
    const int warp = static_cast<int>(thread / 32), lane = static_cast<int>(thread % 32), g = lane / 4,
              t = lane % 4;

    if (thread < stages) {
        barrier_init(barriers[thread], 1);
        barrier_init(barriers[kBulkStages + thread], kBulkWarps);
        barrier_init_fence();
    }
    const std::uint32_t first_barrier = opaque(shared_address(barriers)),
                        last_barrier = first_barrier + 8 * stages;
    std::uint32_t barrier = first_barrier, stage_begin = ring, parity = 0;
    const auto next_stage = [&] {
        barrier += 8;
        stage_begin += Source::kStageBytes;
        if (barrier == last_barrier) barrier = first_barrier, stage_begin = ring, parity ^= 1;
    };
    if constexpr (kShares) {
        for (std::uint32_t i = thread; i < 4 * m * kUnits; i += kBulkThreads)
            store_shared(zeros + i * 16, uint4{});
    }
    __syncthreads();
    if (warp == kBulkWarps) {
        if (lane != 0) return wait_for_predecessor();
        constexpr std::uint32_t kStageSteps = kSteps * Source::kRounds, kAskedAhead = 3;  // stages
        if constexpr (!Source::kTurns) {
            std::uint32_t tile = blockIdx.x, step = 0;
            const auto advance = [&] {
                step += kStageSteps;
                if (step >= steps) step = 0, tile += gridDim.x;
            };
            wait_for_predecessor();
            launch_dependents();
            for (; tile < tiles; advance(), next_stage()) {
                bulk_wait(barrier + kEmpty, parity ^ 1);
                source.load_weights(stage_begin, tile, step, barrier);
            }
            return;
        }
        const std::uint32_t of_tile = (steps + kStageSteps - 1) / kStageSteps;
        // Each block has so many tiles whatever comes: turns can be had after the wait only.
        const std::uint32_t filled = start.settled ? stages : 0, own = told ? filled / of_tile + 1 : 0;
        const bool turns = told && start.turns != nullptr && tiles > own * gridDim.x;
        const std::uint32_t tiles_at = opaque(shared_address(taken));
        std::uint32_t done = 0, count = 0;
        bool waited = false;
        const auto wait = [&] {
            if (waited) return;
            waited = true;
            wait_for_predecessor();
            launch_dependents();
            if constexpr (kStreams) {
                std::uint32_t x_step = 0;
                for (std::uint32_t stage = 0; stage < done; ++stage) {
                    source.load_x(ring + stage * Source::kStageBytes, x_step, first_barrier + 8 * stage);
                    x_step = x_step + kSteps < steps ? x_step + kSteps : 0;
                }
            }
        };
        if constexpr (kHolds) {
            if (source.norm.weight != nullptr) bulk_prefetch(source.norm.weight, 2 * source.k);
        }
        if (!start.settled) {
            // The L2 cache is asked for the first ones: whatever that kernel writes, that is only a hint.
            for (std::uint32_t stage = 0; stage < start.prefetched && stage < of_tile; ++stage)
                source.prefetch(blockIdx.x, stage * kStageSteps);
            wait();
        }
        for (std::uint32_t tile = blockIdx.x; tile < tiles; ++count) {
            std::uint32_t next = tile + gridDim.x;
            bool asked = !turns || count + 1 < own;
            for (std::uint32_t part = 0; part < of_tile; ++part, next_stage()) {
                // Of settled weights the ring is filled while the kernel before still runs.
                if (done >= filled) wait();
                bulk_wait(barrier + kEmpty, parity ^ 1);
                if (told && part == 0) store_shared_word(tiles_at + 4 * (count % kTaken), tile);
                source.load_weights(stage_begin, tile, part * kStageSteps, barrier);
                if constexpr (kStreams) {
                    if (waited) source.load_x(stage_begin, part * kStageSteps, barrier);
                }
                // Late, so that blocks that are slow take fewer, but before the answer is needed.
                if (++done >= filled && !asked && part + kAskedAhead >= of_tile) {
                    wait();
                    asked = true;
                    next = own * gridDim.x + take_turn(start.turns, tiles - own * gridDim.x + gridDim.x - 1);
                }
            }
            tile = next;
        }
        wait();
        if (!told) return;
        bulk_wait(barrier + kEmpty, parity ^ 1);
        store_shared_word(tiles_at + 4 * (count % kTaken), 0xffffffffu);
        bulk_arrive(barrier);
        return;
    }
    wait_for_predecessor();
    // The next kernel may take its place and wait there.
    launch_dependents();

    // Meanwhile x comes.
    const BulkX at{x_begin, m, 4 * units, zeros + 64 * m * kUnits};
    uint4 held[kHolds ? Source::kHeld : 1];
    if constexpr (kHolds) source.take_x(held, m, warp, lane, parts[1][0]);
    if constexpr (kShares) {
        source.take_x(at, thread);
        named_barrier_sync(1, kThreads);
    }

    const int warp_step = warp / Source::kColumnGroups;
    const typename Source::Place place(source, warp, lane);
    // This lane's x for the first unit of its warp's step (in each stage, where it streams), and how far it
    // is to the next unit.
    std::uint32_t x_from[kTiles], x_unit[kTiles];
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
        const std::uint32_t row = 8 * i + g;
        x_unit[i] = opaque(row < m ? m * 64 : 0);
        x_from[i] = opaque((row < m ? x_begin + row * 64 : zeros) + t * 16 + warp_step * kUnits * x_unit[i]);
        if constexpr (kStreams)
            x_from[i] = opaque(kBulkPlainStageBytes + (warp_step * 8 + row) * 64 + t * 16);
    }
    const std::uint32_t sums_from =
        opaque(at.group_sums + 8 * t + warp_step * Source::kGroupSumsStep * kTiles);
    if constexpr (Source::kGroup != 0) {
        for (std::uint32_t step = warp_step; source.wants_group_sums() && step < steps; step += kSteps) {
            const auto x_of = [&](int u, int i) {
                return load_shared(x_from[i] + (u + (step - warp_step) * kUnits) * x_unit[i]);
            };
            Source::sum_x(x_of, sums_from + (step - warp_step) * Source::kGroupSumsStep * kTiles);
        }
        __syncwarp();
    }
    int buffer = 0;
    std::uint32_t taken_at = told ? opaque(shared_address(taken)) : 0;
    const std::uint32_t taken_end = taken_at + 4 * kTaken;
    for (std::uint32_t tile = blockIdx.x;; buffer ^= 1) {
        if (told) {
            bulk_wait(barrier, parity);
            tile = load_shared_word(taken_at);
            if ((taken_at += 4) == taken_end) taken_at -= 4 * kTaken;
        }
        if (tile >= tiles) break;
        float sums[kTiles][4] = {};
        const auto early_of = [&](std::uint32_t element) {
            const std::uint32_t in_tile = element % kColumns, column = tile * columns + in_tile;
            return element < kColumns * m && in_tile < columns && column < n
                       ? early(element / kColumns, column)
                       : 0.0f;
        };
        const float first_early = early_of(thread);
        std::uint32_t x_at[kTiles], sums_at = sums_from;
#pragma unroll
        for (int i = 0; i < kTiles; ++i) x_at[i] = x_from[i];
        const auto leave_stage = [&] {
            __syncwarp();
            if (lane == 0) bulk_arrive(barrier + kEmpty);
            next_stage();
        };
        if constexpr (kHolds) {
#pragma unroll
            for (int i = 0; i < Source::kHeld; ++i) {
                if (i * kSteps >= steps) break;
                bulk_wait(barrier, parity);
                if (i * kSteps + warp_step < steps) {
                    typename Source::template Step<kTiles> part(place, stage_begin, 0);
                    part.multiply([&](int, int) { return held[i]; }, sums_at, sums);
                }
                leave_stage();
            }
        } else {
            for (std::uint32_t step = warp_step; step < steps + warp_step; step += kSteps * Source::kRounds) {
                bulk_wait(barrier, parity);
#pragma unroll
                for (int round = 0; round < Source::kRounds; ++round) {
                    if (step + round * kSteps < steps) {
                        typename Source::template Step<kTiles> part(place, stage_begin, round);
                        const auto x_of = [&](int u, int i) {
                            if constexpr (kStreams) return load_shared(stage_begin + x_from[i]);
                            return load_shared(x_at[i] + u * x_unit[i]);
                        };
                        part.multiply(x_of, sums_at, sums);
                    }
#pragma unroll
                    for (int i = 0; i < kTiles; ++i) x_at[i] += kSteps * kUnits * x_unit[i];
                    sums_at += kSteps * Source::kGroupSumsStep * kTiles;
                }
                leave_stage();
            }
        }
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                parts[buffer][warp][(8 * i + 2 * t + e % 2) * 16 + 8 * (e / 2) + g] = sums[i][e];
            }
        }
        named_barrier_sync(1, kThreads);
#pragma unroll 1
        for (std::uint32_t element = thread; element < kColumns * m; element += kThreads) {
            const std::uint32_t row = element / kColumns, in_tile = element % kColumns;
            float sum = 0;
#pragma unroll
            for (int other = 0; other < kSteps; ++other) {
                sum += parts[buffer][other * Source::kColumnGroups + in_tile / 16][row * 16 + in_tile % 16];
            }
            sum = source.of_row(row, sum);
            const std::uint32_t column = tile * columns + in_tile;
            if (in_tile < columns && column < n) {
                store(row, column, sum * source.factor(column),
                      element == thread ? first_early : early_of(element));
            }
        }
        tile += gridDim.x;
    }
}

// The bias and the residual of an element.
template <class Out>
__device__ __forceinline__ float bulk_added(const GemmProblem& p, std::uint32_t row, std::uint32_t column) {
    const GemmEpilogue& e = p.epilogue;
    float added = 0;
    if (e.bias != nullptr) added = convert<float>(static_cast<const Out*>(e.bias)[column]);
    if (e.residual != nullptr) {
        added += convert<float>(
            static_cast<const Out*>(e.residual)[row * e.residual_row + column * e.residual_col]);
    }
    return added;
}

}  // namespace

#define GPK_GEMV_BULK_SYMBOL(T, type, Out, suffix, form, layout, Source, tiles, held)                      \
    extern "C" __global__ void __launch_bounds__(kBulkThreads, tiles == 1 && held <= 4 ? 2 : 1)            \
        gemv_bulk_##type##suffix##_##form##_tiles##tiles(const __grid_constant__ GemvBulkParams params) {  \
        const GemmProblem& p = params.problem;                                                             \
        gemv_bulk<Source<T, held>, tiles>(                                                                 \
            Source<T, held>::of(params), static_cast<std::uint32_t>(p.m), static_cast<std::uint32_t>(p.n), \
            BulkStart{p.b_settled, params.prefetched, params.turns},                                       \
            [&](std::uint32_t row, std::uint32_t column) { return bulk_added<Out>(p, row, column); },      \
            [&](std::uint32_t row, std::uint32_t column, float sum, float added) {                         \
                static_cast<Out*>(p.c)[row * p.c_row + column * p.c_col] = convert<Out>(sum + added);      \
            });                                                                                            \
    }

}  // namespace gpk::kernels
