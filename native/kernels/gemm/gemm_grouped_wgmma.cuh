// Products by expert on SM 90. A block has one warp that feeds and two warpgroups that multiply, each 64 rows
// of the weight by all rows of a in the tile; so c comes out transposed. Blocks stay, and find tile after
// tile from the offsets.
#pragma once

#include "kernels/device.cuh"
#include "kernels/gemm/gate.cuh"
#include "kernels/gemm/gemm_grouped.hpp"
#include "kernels/gemm/grouped_tiles.cuh"
#include "kernels/hopper.cuh"
#include "kernels/wgmma.cuh"

namespace gpk::kernels {

template <class T_, GroupedTile kTile, bool kGated_>
struct Grouped {
    using T = T_;
    static constexpr bool kGated = kGated_;
    static constexpr int kRows = kTile.rows, kStages = kTile.stages, kCluster = kTile.cluster;
    static constexpr int kStep = kRows / 8;                                 // of a's rows
    static constexpr int kColumns = kGroupedWeightRows / (kGated ? 2 : 1);  // of c, of a block's tile
    static constexpr int kPartColumns = kColumns / 2;                       // and of a warpgroup's
    static constexpr int kWeightBytes = kGroupedWeightRows * kGroupedDepth * 2;
    static constexpr int kStageBytes = grouped_stage_bytes(kTile);
    // Parts of a block are in whole 8, as the swizzle is.
    static_assert(kStep / kCluster % 8 == 0 && kRows / kCluster % kGroupedBox == 0);
};

struct GroupedRing {
    int stage = 0;
    std::uint32_t phase = 0;
    template <int kStages>
    __device__ __forceinline__ void step() {
        if (++stage == kStages) stage = 0, phase ^= 1;
    }
};

template <class W>
__device__ __forceinline__ void grouped_feed(const GemmGroupedParams& p, unsigned char* stages, Barrier* full,
                                             Barrier* empty) {
    const int rank = W::kCluster > 1 ? static_cast<int>(cluster_rank()) : 0;
    const int parts = static_cast<int>((p.problem.k + kGroupedDepth - 1) / kGroupedDepth);
    GroupedTiles<W::kRows, W::kStep, W::kColumns * W::kCluster> tiles(p.problem);
    GroupedRing ring;
    for (int id = blockIdx.x / W::kCluster; tiles.find(id); id += gridDim.x / W::kCluster) {
        if (threadIdx.x != 0) continue;
        const int column = tiles.column + rank * W::kColumns;
        // What one tile alone reads need not stay.
        const auto policy = tiles.rows <= W::kRows ? CachePolicy::evict_first : CachePolicy::normal;
        // In whole smaller boxes: what is too much of one block's part is the other's, or never looked at.
        const int own = (tiles.tile_rows() + W::kStep - 1) / W::kStep * (W::kStep / W::kCluster);
        const int first = rank * own, count = (own + kGroupedRest - 1) / kGroupedRest * kGroupedRest;
        for (int part = 0; part < parts; ++part) {
            unsigned char* weight = stages + ring.stage * W::kStageBytes;
            Barrier& arrived = full[ring.stage];
            barrier_wait(empty[ring.stage], ring.phase ^ 1);
            barrier_expect(arrived, W::kWeightBytes + W::kCluster * count * kGroupedDepth * 2);
            if constexpr (W::kGated) {
                tma_load(weight, p.weight, arrived, policy, part * kGroupedDepth, 0, 0, column / 8,
                         tiles.expert);
            } else {
                tma_load(weight, p.weight, arrived, policy, part * kGroupedDepth, column, tiles.expert);
            }
            const auto load_rows = [&](const TensorMap& map, int row) {
                unsigned char* to = weight + W::kWeightBytes + row * kGroupedDepth * 2;
                if constexpr (W::kCluster > 1) {
                    tma_multicast(to, map, arrived, static_cast<std::uint16_t>((1 << W::kCluster) - 1),
                                  CachePolicy::normal, part * kGroupedDepth, tiles.row + row);
                } else {
                    tma_load(to, map, arrived, CachePolicy::normal, part * kGroupedDepth, tiles.row + row);
                }
            };
            int row = first;
            for (; row + kGroupedBox <= first + count; row += kGroupedBox) load_rows(p.a, row);
            if (row < first + count) load_rows(p.a_rest, row);
            ring.template step<W::kStages>();
        }
    }
}

// Transposes 8x8 matrices on their way: a lane's two values are neighbouring rows of a.
__device__ __forceinline__ void store_transposed(std::uint32_t to, std::uint32_t first) {
    asm volatile("stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [%0], {%1};" ::"r"(to), "r"(first)
                 : "memory");
}
__device__ __forceinline__ void store_transposed(std::uint32_t to, std::uint32_t first,
                                                 std::uint32_t second) {
    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(to), "r"(first),
                 "r"(second)
                 : "memory");
}
template <class T>
__device__ __forceinline__ std::uint32_t grouped_pair(float first, float second) {
    const Vector<T, 2> both = {convert<T>(first), convert<T>(second)};
    return *reinterpret_cast<const std::uint32_t*>(&both);
}

// Of every four sums, two rows' gates and then their ups, the first two become the results. The function is
// chosen once: its code for each of them, for every size of a tile, did not fit the caches of instructions.
template <class T, class F, int kSums>
__device__ __forceinline__ void gate_sums(float (&sums)[kSums]) {
#pragma unroll
    for (int i = 0; i < kSums; i += 4) {
        sums[i] = unary_apply<F, T>(sums[i]) * sums[i + 2];
        sums[i + 1] = unary_apply<F, T>(sums[i + 1]) * sums[i + 3];
    }
}
template <class T, int kSums>
__device__ __forceinline__ void gate_sums(GluOp op, float (&sums)[kSums]) {
    switch (op) {
#define GPK_CASE(name, function) \
    case GluOp::name: return gate_sums<T, unary_functors::function>(sums);
        GPK_GLU_OPS(GPK_CASE)
#undef GPK_CASE
    }
}

// Sums of 64 rows of the weight by kRows rows of a, some rows at a time through shared memory.
template <class W, int kRows, class Tiles>
__device__ __forceinline__ void grouped_store(const GroupedProblem& p, const Tiles& tiles, int consumer,
                                              int column, unsigned char* staging,
                                              const float (&sums)[kRows / 2]) {
    constexpr int kBatch = kRows % 64 == 0   ? 64
                           : kRows % 32 == 0 ? 32
                                             : 16,
                  kPieces = W::kPartColumns / 8;  // of 16 bytes, in a row
    static_assert(kRows % kBatch == 0 && kBatch * kPieces * 16 <= kGroupedStaging);
    const int thread = threadIdx.x % 128, warp = thread / 32, lane = thread % 32;
    // Permuted so that 8 rows of a piece lie in different banks.
    const auto place = [&](int row, int piece) {
        const int turned = kPieces == 8 ? piece ^ row % 8 : piece ^ row / 2 % 4;
        return staging + row * (kPieces * 16) + turned * 16;
    };
    const int rows = tiles.tile_rows();
    const std::int64_t columns = p.n - column;
#pragma unroll
    for (int first = 0; first < kRows; first += kBatch) {
        named_barrier_sync(1 + consumer, 128);  // what was there has been read
#pragma unroll
        for (int j = 0; j < kBatch / 8; ++j) {
            const float* d = sums + (first / 8 + j) * 4;
            if constexpr (W::kGated) {
                store_transposed(shared_address(place(j * 8 + lane % 8, warp)),
                                 grouped_pair<typename W::T>(d[0], d[1]));
            } else {
                store_transposed(shared_address(place(j * 8 + lane % 8, warp * 2 + lane / 8 % 2)),
                                 grouped_pair<typename W::T>(d[0], d[1]),
                                 grouped_pair<typename W::T>(d[2], d[3]));
            }
        }
        named_barrier_sync(1 + consumer, 128);
        auto* c = static_cast<typename W::T*>(p.c) + (tiles.row + first) * p.n + column;
#pragma unroll
        for (int id = thread; id < kBatch * kPieces; id += 128) {
            const int row = id / kPieces, piece = id % kPieces;
            if (first + row < rows && piece * 8 < columns)
                *reinterpret_cast<uint4*>(c + row * p.n + piece * 8) =
                    *reinterpret_cast<const uint4*>(place(row, piece));
        }
    }
}

template <class W, int kRows, class Tiles>
__device__ __forceinline__ void grouped_tile(const GroupedProblem& p, const Tiles& tiles, int consumer,
                                             int rank, int parts, GroupedRing& ring, unsigned char* stages,
                                             unsigned char* staging, Barrier* full, Barrier* empty) {
    const int thread = threadIdx.x % 128;
    const auto release = [&](int stage) {
        if constexpr (W::kCluster > 1) {
            if (thread < W::kCluster) barrier_free_at(empty[stage], thread);
        } else {
            if (thread == 0) barrier_arrive(empty[stage]);
        }
    };
    // Zeros, not the instruction's way to begin anew: registers that begin undefined would be held by the
    // cases of all sizes at once.
    float sums[kRows / 2];
#pragma unroll
    for (float& sum : sums) sum = 0;
    int last = 0;
    for (int part = 0; part < parts; ++part) {
        const unsigned char* weight = stages + ring.stage * W::kStageBytes;
        barrier_wait(full[ring.stage], ring.phase);
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < kGroupedDepth / 16; ++step) {
            wgmma<typename W::T, kRows>(
                sums, wgmma_matrix(weight + consumer * 64 * kGroupedDepth * 2 + step * 32, 16, 1024),
                wgmma_matrix(weight + W::kWeightBytes + step * 32, 16, 1024), true);
        }
        wgmma_commit();
        if (part > 0) {  // the products before these are done
            wgmma_wait<1>();
            release(last);
        }
        last = ring.stage;
        ring.template step<W::kStages>();
    }
    wgmma_wait<0>();
    wgmma_hold(sums);
    release(last);
    if constexpr (W::kGated) gate_sums<typename W::T>(p.glu, sums);
    grouped_store<W, kRows>(p, tiles, consumer,
                            tiles.column + rank * W::kColumns + consumer * W::kPartColumns, staging, sums);
}

template <class W>
__device__ __forceinline__ void grouped_multiply(const GroupedProblem& p, int consumer, unsigned char* stages,
                                                 unsigned char* staging, Barrier* full, Barrier* empty) {
    const int rank = W::kCluster > 1 ? static_cast<int>(cluster_rank()) : 0;
    const int parts = static_cast<int>((p.k + kGroupedDepth - 1) / kGroupedDepth);
    GroupedTiles<W::kRows, W::kStep, W::kColumns * W::kCluster> tiles(p);
    GroupedRing ring;
    for (int id = blockIdx.x / W::kCluster; tiles.find(id); id += gridDim.x / W::kCluster) {
        const auto make = [&]<int kSteps>() {
            grouped_tile<W, W::kStep * kSteps>(p, tiles, consumer, rank, parts, ring, stages,
                                               staging + consumer * kGroupedStaging, full, empty);
        };
        switch ((tiles.tile_rows() + W::kStep - 1) / W::kStep) {
            case 1: make.template operator()<1>(); break;
            case 2: make.template operator()<2>(); break;
            case 3: make.template operator()<3>(); break;
            case 4: make.template operator()<4>(); break;
            case 5: make.template operator()<5>(); break;
            case 6: make.template operator()<6>(); break;
            case 7: make.template operator()<7>(); break;
            default: make.template operator()<8>(); break;
        }
    }
}

template <class W>
__device__ __forceinline__ void gemm_grouped(const GemmGroupedParams& p) {
    extern __shared__ __align__(1024) unsigned char shared[];
    unsigned char* staging = shared + W::kStages * W::kStageBytes;
    auto* full = reinterpret_cast<Barrier*>(staging + 2 * kGroupedStaging);
    Barrier* empty = full + W::kStages;
    const int warpgroup = threadIdx.x / 128;
    if (threadIdx.x == 0) {
        for (int i = 0; i < W::kStages; ++i) {
            barrier_init(full[i], 1);
            barrier_init(empty[i], W::kCluster * 2);
        }
        barrier_init_fence();
        tma_prefetch(p.a);
        tma_prefetch(p.a_rest);
        tma_prefetch(p.weight);
    }
    if constexpr (W::kCluster > 1) {
        cluster_sync();
    } else {
        __syncthreads();
    }
    wait_for_predecessor();  // what came before touches no memory that the kernel before may write
    if (warpgroup == 0) {
        give_registers<64>();
        if (threadIdx.x < 32) grouped_feed<W>(p, shared, full, empty);
    } else {
        take_registers<216>();
        grouped_multiply<W>(p.problem, warpgroup - 1, shared, staging, full, empty);
    }
    if constexpr (W::kCluster > 1) {  // the other may still write to this block, or arrive in it
        __syncwarp();
        cluster_sync();
    }
}

}  // namespace gpk::kernels

#define GPK_GROUPED_SYMBOL(T, type, tile, gated, suffix)                                          \
    extern "C" __global__ void __launch_bounds__(kGroupedThreads, 1)                              \
        gemm_grouped_wgmma_##type##_##tile##suffix(const __grid_constant__ GemmGroupedParams p) { \
        gemm_grouped<Grouped<T, grouped_tile_##tile, gated>>(p);                                  \
    }
