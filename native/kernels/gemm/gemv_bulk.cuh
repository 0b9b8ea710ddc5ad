// Products of few rows where the copy engine brings the weights (SM 90): one warp of a block keeps it busy,
// 16 KiB at a time into a ring of shared memory, the others multiply. Blocks stay and take tile after tile
// of 16 columns of c, so that the stream of weights never stops while sums are added up.
#pragma once

#include "kernels/gemm/gemv_bulk.hpp"
#include "kernels/gemm/gemv_quantized.cuh"
#include "kernels/hopper.cuh"
#include "kernels/overlap.cuh"

namespace gpk::kernels {

namespace {

// As in hopper.cuh, of addresses that stay in registers.
__device__ __forceinline__ void bulk_wait(std::uint32_t barrier, std::uint32_t parity) {
    std::uint32_t done;
    do {
        asm volatile(
            "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, "
            "p;\n}\n"
            : "=r"(done)
            : "r"(barrier), "r"(parity)
            : "memory");
    } while (done == 0);
}
__device__ __forceinline__ void bulk_arrive(std::uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void bulk_expect(std::uint32_t barrier, std::uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}
__device__ __forceinline__ void bulk_load(std::uint32_t to, const void* from, std::uint32_t bytes,
                                          std::uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, "
        "[%3], %4;" ::"r"(to),
        "l"(from), "r"(bytes), "r"(barrier), "l"(static_cast<std::uint64_t>(CachePolicy::evict_first))
        : "memory");
}
__device__ __forceinline__ void bulk_load_box(std::uint32_t to, const TensorMap& map, std::uint32_t barrier,
                                              int x, int y, int z) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
        "[%0], "
        "[%1, {%4, %5, %6}], [%2], %3;" ::"r"(to),
        "l"(&map), "r"(barrier), "l"(static_cast<std::uint64_t>(CachePolicy::evict_first)), "r"(x), "r"(y),
        "r"(z)
        : "memory");
}
__device__ __forceinline__ void bulk_prefetch(const void* from, std::uint32_t bytes) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void bulk_prefetch_box(const TensorMap& map, int x, int y, int z) {
    asm volatile("cp.async.bulk.prefetch.tensor.3d.L2.global.tile [%0, {%1, %2, %3}];" ::"l"(&map), "r"(x),
                 "r"(y), "r"(z)
                 : "memory");
}
// What the compiler should keep rather than make again in every round.
__device__ __forceinline__ std::uint32_t opaque(std::uint32_t value) {
    asm volatile("mov.b32 %0, %0;" : "+r"(value));
    return value;
}
__device__ __forceinline__ uint4 load_shared(std::uint32_t address) {
    uint4 words;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
                 : "r"(address));
    return words;
}
__device__ __forceinline__ void load_shared_pair(std::uint32_t address, float (&pair)[2]) {
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(pair[0]), "=f"(pair[1]) : "r"(address));
}
__device__ __forceinline__ std::uint32_t load_shared_word(std::uint32_t address) {
    std::uint32_t word;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(address));
    return word;
}
__device__ __forceinline__ std::uint32_t load_shared_half(std::uint32_t address) {
    std::uint16_t half;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(half) : "r"(address));
    return half;
}
__device__ __forceinline__ std::uint32_t load_shared_byte(std::uint32_t address) {
    std::uint32_t byte;
    asm volatile("ld.shared.u8 %0, [%1];" : "=r"(byte) : "r"(address));
    return byte;
}
__device__ __forceinline__ void store_shared(std::uint32_t address, const uint4& words) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(words.x), "r"(words.y),
                 "r"(words.z), "r"(words.w)
                 : "memory");
}

// Where a block's part of x goes: for each unit of 32 of k, each row, four chunks of 16 bytes.
struct BulkX {
    std::uint32_t begin, m, chunks;
    std::uint32_t group_sums;  // [groups][rows up to 8 (16)] float32

    __device__ __forceinline__ std::uint32_t place(std::uint32_t chunk, std::uint32_t row) const {
        return begin + (chunk / 4 * m + row) * 64 + chunk % 4 * 16;
    }
};
// Eight of a row of x; zeros past its end.
template <class T>
__device__ __forceinline__ uint4 bulk_x(const T* row, std::uint32_t chunk, std::uint32_t k) {
    const std::uint32_t column = chunk * 8;
    if (column >= k) return {};
    return column + 8 <= k ? *reinterpret_cast<const uint4*>(row + column)
                           : load_some(row + column, 1, k - column);
}

// All threads that multiply; a barrier of them follows. What is stored is ordered(words, chunk).
template <class T, class Order>
__device__ __forceinline__ void bulk_take_x(const BulkX& to, const T* x, std::int64_t x_row, std::uint32_t k,
                                            std::uint32_t thread, Order ordered) {
    constexpr std::uint32_t kAhead = 4;
    for (std::uint32_t row = 0; row < to.m; row += kAhead) {
        for (std::uint32_t chunk = thread; chunk < to.chunks; chunk += 32 * kBulkWarps) {
            uint4 words[kAhead];
#pragma unroll
            for (std::uint32_t i = 0; i < kAhead; ++i) {
                words[i] = row + i < to.m ? bulk_x(x + (row + i) * x_row, chunk, k) : uint4{};
            }
#pragma unroll
            for (std::uint32_t i = 0; i < kAhead; ++i) {
                if (row + i < to.m) store_shared(to.place(chunk, row + i), ordered(words[i], chunk));
            }
        }
    }
}

// Weights of T that are contiguous along k: whole 64 of k. The map has them as [n][k / 64][64], and its box
// is a stage: 16 rows of 1 KiB.
template <class T>
struct RowsSource {
    static constexpr int kUnits = 1;         // of 32 weights, in a step
    static constexpr int kColumnGroups = 1;  // of 16, in a stage: a warp has one of them
    static constexpr int kRounds = 1;        // steps of it that a warp has
    static constexpr int kStageBytes = kBulkPlainStageBytes;
    static constexpr int kGroup = 0, kGroupSumsStep = 0;

    const TensorMap& weights;
    const T* x;  // rows x_row elements apart, 16-byte aligned
    std::int64_t x_row;
    std::uint32_t k;

    __device__ __forceinline__ std::uint32_t steps() const { return k / 32; }
    __device__ __forceinline__ void take_x(const BulkX& to, std::uint32_t thread) const {
        bulk_take_x(to, x, x_row, k, thread, [](const uint4& words, std::uint32_t) { return words; });
    }
    __device__ __forceinline__ float of_row(std::uint32_t, float sum) const { return sum; }
    // By one thread. What lies outside comes as zeros.
    __device__ __forceinline__ void load(std::uint32_t stage, std::uint32_t tile, std::uint32_t step,
                                         std::uint32_t barrier) const {
        bulk_expect(barrier, kStageBytes);
        bulk_load_box(stage, weights, barrier, 0, step / 2, tile * 16);
    }
    __device__ __forceinline__ void prefetch(std::uint32_t tile, std::uint32_t step) const {
        bulk_prefetch_box(weights, 0, step / 2, tile * 16);
    }
    // Where in a stage this lane's part of its warp's step lies.
    struct Place {
        std::uint32_t data;
        __device__ __forceinline__ Place(const RowsSource&, int warp, int lane)
            : data(opaque(warp * 64 + lane / 4 * 1024 + lane % 4 * 16)) {}
    };
    template <int kTiles>
    struct Step {
        uint4 low, high;
        __device__ __forceinline__ Step(const Place& place, std::uint32_t stage, int)
            : low(load_shared(stage + place.data)), high(load_shared(stage + place.data + 8 * 1024)) {}
        // x_of(u, i): of unit u this lane's x of the rows 8 i to 8 i + 7.
        template <class X>
        __device__ __forceinline__ void multiply(const X& x_of, std::uint32_t, float (&sums)[kTiles][4]) {
#pragma unroll
            for (int i = 0; i < kTiles; ++i) {
                const uint4 x = x_of(0, i);
                multiply_add<T>(sums[i], low.x, high.x, low.y, high.y, x.x, x.y);
                multiply_add<T>(sums[i], low.z, high.z, low.w, high.w, x.z, x.w);
            }
        }
    };
    __device__ __forceinline__ float factor(std::uint32_t) const { return 1; }
};

// Weights of T that are contiguous along n. The map has them as [1][k][n], its box is a stage: 128 of k by 64
// columns, swizzled. ldmatrix turns 8 x 8 of them; which 8 of k is free, and chosen so that their places
// differ by the swizzle: of a unit of 32, in turn j = 0 to 3, 8 t + 2 ((t + j) % 4) and the one after it, of
// t = 0 to 3. So x's chunks are turned by their t.
template <class T>
struct ColumnsSource {
    static constexpr int kUnits = 1, kColumnGroups = 4, kRounds = 1;
    static constexpr int kStageBytes = kBulkPlainStageBytes;
    static constexpr int kGroup = 0, kGroupSumsStep = 0;

    const TensorMap& weights;
    const T* x;
    std::int64_t x_row;
    std::uint32_t k;

    __device__ __forceinline__ std::uint32_t steps() const { return (k + 31) / 32; }
    __device__ __forceinline__ void take_x(const BulkX& to, std::uint32_t thread) const {
        bulk_take_x(to, x, x_row, k, thread, [](const uint4& w, std::uint32_t chunk) {
            const std::uint32_t t = chunk % 4;
            return t == 0   ? w
                   : t == 1 ? uint4{w.y, w.z, w.w, w.x}
                   : t == 2 ? uint4{w.z, w.w, w.x, w.y}
                            : uint4{w.w, w.x, w.y, w.z};
        });
    }
    __device__ __forceinline__ float of_row(std::uint32_t, float sum) const { return sum; }
    __device__ __forceinline__ float factor(std::uint32_t) const { return 1; }
    __device__ __forceinline__ void load(std::uint32_t stage, std::uint32_t tile, std::uint32_t step,
                                         std::uint32_t barrier) const {
        bulk_expect(barrier, kStageBytes);
        bulk_load_box(stage, weights, barrier, tile * 64, step * 32, 0);
    }
    __device__ __forceinline__ void prefetch(std::uint32_t tile, std::uint32_t step) const {
        bulk_prefetch_box(weights, tile * 64, step * 32, 0);
    }
    // Of the lane's row of each of two times four matrices: j 0 and 1, then 2 and 3; of each, columns 0 to 7
    // and 8 to 15.
    struct Place {
        std::uint32_t data[2];
        __device__ __forceinline__ Place(const ColumnsSource&, int warp, int lane) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int t = lane % 8 / 2, j = 2 * i + lane / 16;
                const int row = warp / kColumnGroups * 32 + 8 * t + 2 * ((t + j) % 4) + lane % 2;
                const int chunk = warp % kColumnGroups * 2 + lane / 8 % 2;
                data[i] = opaque(row * 128 + (chunk ^ row % 8) * 16);
            }
        }
    };
    template <int kTiles>
    struct Step {
        std::uint32_t a[2][4];
        __device__ __forceinline__ Step(const Place& place, std::uint32_t stage, int) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                             : "=r"(a[i][0]), "=r"(a[i][1]), "=r"(a[i][2]), "=r"(a[i][3])
                             : "r"(stage + place.data[i]));
            }
        }
        template <class X>
        __device__ __forceinline__ void multiply(const X& x_of, std::uint32_t, float (&sums)[kTiles][4]) {
#pragma unroll
            for (int i = 0; i < kTiles; ++i) {
                const uint4 x = x_of(0, i);
                multiply_add<T>(sums[i], a[0][0], a[0][1], a[0][2], a[0][3], x.x, x.y);
                multiply_add<T>(sums[i], a[1][0], a[1][1], a[1][2], a[1][3], x.z, x.w);
            }
        }
    };
};

// store(row, column, sum) is given each sum once. `prefetched`: stages that the L2 cache is asked for early.
//
// Shared memory holds the ring, then x as the tensor cores want it: for each unit of 32 of k,
// each row, each t the 16 bytes at 8 t; then as many zeros as one step has of x, for the rows up to 8 (16)
// that are not there; then the sums of x for each group.
template <class Source, int kTiles, class Store>
__device__ __forceinline__ void gemv_bulk(const Source& source, std::uint32_t m, std::uint32_t n,
                                          std::uint32_t prefetched, Store store) {
    constexpr int kUnits = Source::kUnits, kElements = 16 * 8 * kTiles, kThreads = 32 * kBulkWarps;
    constexpr std::uint32_t kEmpty = 8 * kBulkStages;
    constexpr int kSteps = kBulkWarps / Source::kColumnGroups, kColumns = 16 * Source::kColumnGroups;
    extern __shared__ __align__(1024) unsigned char dynamic[];
    __shared__ float parts[2][kBulkWarps][kElements];
    __shared__ Barrier barriers[2 * kBulkStages];  // stages that are full, then those that are empty
    std::uint32_t shared_bytes, thread;
    asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(shared_bytes));
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));  // once: not in every round

    const std::uint32_t tiles = (n + kColumns - 1) / kColumns, steps = source.steps(), units = steps * kUnits;
    const std::uint32_t ring = shared_address(dynamic);
    const std::uint32_t stages =
        (shared_bytes - static_cast<std::uint32_t>(bulk_beside_bytes(m, units, kUnits, Source::kGroup))) /
        Source::kStageBytes;
    const std::uint32_t x_begin = ring + stages * Source::kStageBytes, zeros = x_begin + 64 * m * units;
    const int warp = static_cast<int>(thread / 32), lane = static_cast<int>(thread % 32), g = lane / 4,
              t = lane % 4;

    if (thread < stages) {
        barrier_init(barriers[thread], 1);
        barrier_init(barriers[kBulkStages + thread], kBulkWarps);
        barrier_init_fence();
    }
    if (warp == kBulkWarps && lane == 0) {
        // The first weights come to the L2 cache while the kernel before still runs: whatever it writes, that
        // is only a hint.
        for (std::uint32_t stage = 0; stage < prefetched && blockIdx.x < tiles; ++stage) {
            if (stage * kSteps * Source::kRounds < steps) {
                source.prefetch(blockIdx.x, stage * kSteps * Source::kRounds);
            }
        }
    }
    for (std::uint32_t i = thread; i < 4 * m * kUnits; i += kBulkThreads)
        store_shared(zeros + i * 16, uint4{});
    __syncthreads();
    wait_for_predecessor();
    // The next kernel may take its place and wait there.
    launch_dependents();

    const std::uint32_t first_barrier = opaque(shared_address(barriers)),
                        last_barrier = first_barrier + 8 * stages;
    std::uint32_t barrier = first_barrier, stage_begin = ring, parity = 0;
    const auto next_stage = [&] {
        barrier += 8;
        stage_begin += Source::kStageBytes;
        if (barrier == last_barrier) barrier = first_barrier, stage_begin = ring, parity ^= 1;
    };
    if (warp == kBulkWarps) {
        if (lane != 0) return;
        for (std::uint32_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
            for (std::uint32_t step = 0; step < steps; step += kSteps * Source::kRounds) {
                bulk_wait(barrier + kEmpty, parity ^ 1);
                source.load(stage_begin, tile, step, barrier);
                next_stage();
            }
        }
        return;
    }

    // Meanwhile x comes.
    const BulkX at{x_begin, m, 4 * units, zeros + 64 * m * kUnits};
    source.take_x(at, thread);
    named_barrier_sync(1, kThreads);

    const int warp_step = warp / Source::kColumnGroups;
    const typename Source::Place place(source, warp, lane);
    // This lane's x for the first unit of its warp's step, and how far it is to the next unit.
    std::uint32_t x_from[kTiles], x_unit[kTiles];
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
        const std::uint32_t row = 8 * i + g;
        x_unit[i] = opaque(row < m ? m * 64 : 0);
        x_from[i] = opaque((row < m ? x_begin + row * 64 : zeros) + t * 16 + warp_step * kUnits * x_unit[i]);
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
    for (std::uint32_t tile = blockIdx.x; tile < tiles; tile += gridDim.x, buffer ^= 1) {
        float sums[kTiles][4] = {};
        std::uint32_t x_at[kTiles], sums_at = sums_from;
#pragma unroll
        for (int i = 0; i < kTiles; ++i) x_at[i] = x_from[i];
        for (std::uint32_t step = warp_step; step < steps + warp_step; step += kSteps * Source::kRounds) {
            bulk_wait(barrier, parity);
#pragma unroll
            for (int round = 0; round < Source::kRounds; ++round) {
                if (step + round * kSteps < steps) {
                    typename Source::template Step<kTiles> part(place, stage_begin, round);
                    const auto x_of = [&](int u, int i) { return load_shared(x_at[i] + u * x_unit[i]); };
                    part.multiply(x_of, sums_at, sums);
                }
#pragma unroll
                for (int i = 0; i < kTiles; ++i) x_at[i] += kSteps * kUnits * x_unit[i];
                sums_at += kSteps * Source::kGroupSumsStep * kTiles;
            }
            __syncwarp();
            if (lane == 0) bulk_arrive(barrier + kEmpty);
            next_stage();
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
            const std::uint32_t row = element / kColumns, column = element % kColumns;
            float sum = 0;
#pragma unroll
            for (int other = 0; other < kSteps; ++other) {
                sum += parts[buffer][other * Source::kColumnGroups + column / 16][row * 16 + column % 16];
            }
            sum = source.of_row(row, sum);
            if (tile * kColumns + column < n) {
                store(row, tile * kColumns + column, sum * source.factor(tile * kColumns + column));
            }
        }
    }
}

}  // namespace

#define GPK_GEMV_BULK_SYMBOL(T, type, Out, suffix, form, Source, tiles)                                   \
    extern "C" __global__ void __launch_bounds__(kBulkThreads, tiles == 1 ? 2 : 1)                        \
        gemv_bulk_##type##suffix##_##form##_tiles##tiles(const __grid_constant__ GemvBulkParams params) { \
        const GemmProblem& p = params.problem;                                                            \
        gemv_bulk<Source<T>, tiles>(                                                                      \
            {params.weights, static_cast<const T*>(p.a), p.a_row, static_cast<std::uint32_t>(p.k)},       \
            static_cast<std::uint32_t>(p.m), static_cast<std::uint32_t>(p.n), params.prefetched,          \
            [&](std::uint32_t row, std::uint32_t column, float sum) {                                     \
                static_cast<Out*>(p.c)[row * p.c_row + column * p.c_col] = convert<Out>(sum);             \
            });                                                                                           \
    }

}  // namespace gpk::kernels
