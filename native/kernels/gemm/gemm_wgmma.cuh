// A block has one warpgroup that feeds and two that multiply. The first keeps a ring of stages in shared
// memory filled, each with 128 bytes of k of both operands, and runs ahead over the tiles of a block that
// stays; the others multiply what has come, and store c while the next tile's operands are on their way.
#pragma once

#include "kernels/gemm/gemm_wgmma_store.cuh"

namespace gpk::kernels {

struct Ring {
    int stage = 0;
    std::uint32_t phase = 0;
    template <int kStages>
    __device__ __forceinline__ void step(int by = 1) {
        stage += by;
        if (stage >= kStages) {
            phase ^= stage / kStages & 1;
            stage %= kStages;
        }
    }
};

// This block's parts of k.
template <class W>
struct Span {
    int begin, end;
    __device__ __forceinline__ Span(const GemmProblem& p, int rank) {
        const int parts = static_cast<int>((p.k + W::kDepth - 1) / W::kDepth);
        begin = W::kSplit > 1 ? parts * rank / W::kSplit : 0;
        end = W::kSplit > 1 ? parts * (rank + 1) / W::kSplit : parts;
    }
};

// One operand's part of a stage: `kLines` of m or n, from `line` on; for all blocks of the cluster where
// kShared.
template <int kLines, bool kAlongK, bool kShared, int kCluster>
__device__ __forceinline__ void load_part(unsigned char* to, const TensorMap& map, Barrier& barrier, int line,
                                          int k, int batch0, int batch1) {
    constexpr auto kAll = static_cast<std::uint16_t>((1 << kCluster) - 1);
    static_assert(kAlongK ? kLines % 8 == 0 : kLines % 64 == 0);
    const auto load = [&](unsigned char* box, int x, int y) {
        if constexpr (kShared && kCluster > 1) {
            tma_multicast(box, map, barrier, kAll, CachePolicy::normal, x, y, batch0, batch1);
        } else {
            tma_load(box, map, barrier, CachePolicy::normal, x, y, batch0, batch1);
        }
    };
    if constexpr (kAlongK) {
        load(to, k, line);
    } else {
#pragma unroll
        for (int i = 0; i < kLines / 64; ++i) load(to + i * kWgmmaBoxBytes, line + i * 64, k);
    }
}

template <class W>
__device__ __forceinline__ void feed(const GemmWgmmaParams& p, unsigned char* stages, Barrier* full,
                                     Barrier* empty) {
    const GemmProblem& g = p.problem;
    const Tiles<W> tiles(g);
    const int rank = W::kBlocks > 1 ? static_cast<int>(cluster_rank()) : 0;
    const Span<W> span(g, rank);
    constexpr int kShare = W::kColumns / W::kCluster;  // of b's columns, that this block brings for all
    const int share = W::kCluster > 1 ? rank * kShare : 0;
    bool batched_a[2], batched_b[2];
    for (int i = 0; i < 2; ++i) {
        batched_a[i] = batch_stride(g.a_batch, g.batch_rank, i) != 0;
        batched_b[i] = batch_stride(g.b_batch, g.batch_rank, i) != 0;
    }
    Ring ring;
    for (int id = blockIdx.x / W::kBlocks; id < tiles.count; id += gridDim.x / W::kBlocks) {
        const Place at = tiles.place(p, id, rank);
        const int a0 = batched_a[0] ? at.batch[0] : 0, a1 = batched_a[1] ? at.batch[1] : 0;
        const int b0 = batched_b[0] ? at.batch[0] : 0, b1 = batched_b[1] ? at.batch[1] : 0;
        for (int part = span.begin; part < span.end; ++part) {
            unsigned char* a = stages + ring.stage * W::kStageBytes;
            Barrier& arrived = full[ring.stage];
            barrier_wait(empty[ring.stage], ring.phase ^ 1);
            barrier_expect(arrived, W::kStageBytes);
            load_part<W::kRows, W::kAAlongK, false, W::kCluster>(a, p.a, arrived, at.row, part * W::kDepth,
                                                                 a0, a1);
            load_part<kShare, W::kBAlongK, true, W::kCluster>(a + W::kABytes + share * kWgmmaDepthBytes, p.b,
                                                              arrived, at.column + share, part * W::kDepth,
                                                              b0, b1);
            ring.template step<W::kStages>();
        }
    }
}

// Shared memory of another block of the cluster.
__device__ __forceinline__ std::uint32_t address_in_block(std::uint32_t address, int block) {
    std::uint32_t there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(block));
    return there;
}
template <class Sum>
__device__ __forceinline__ void store_in_block(std::uint32_t to, const Sum* four) {
    const auto word = [&](int i) { return ::gpk::detail::bit_cast<std::uint32_t>(four[i]); };
    asm volatile("st.shared::cluster.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(word(0)), "r"(word(1)),
                 "r"(word(2)), "r"(word(3))
                 : "memory");
}

// Adds up what the blocks of a cluster have summed over their parts of k: each block sends the others their
// columns and gets its own of all.
template <class W>
__device__ __forceinline__ void exchange(unsigned char* received, Barrier& came,
                                         const typename W::Sum (&sums)[W::kParts][W::kSums],
                                         typename W::Sum (&own)[W::kParts][W::kOwnSums]) {
    static_assert(W::kOwnSums % 4 == 0);
    constexpr int kThreads = kWgmmaConsumers * kWarpgroup, kFours = W::kOwnSums / 4;
    const int rank = static_cast<int>(cluster_rank()), thread = threadIdx.x - kWarpgroup;
    const auto slot = [&](int from, int i, int four) {
        return (((from * W::kParts + i) * kFours + four) * kThreads + thread) * 16;
    };
#pragma unroll
    for (int owner = 0; owner < W::kSplit; ++owner) {
        if (owner == rank) {
#pragma unroll
            for (int i = 0; i < W::kParts; ++i) {
#pragma unroll
                for (int j = 0; j < W::kOwnSums; ++j) own[i][j] = sums[i][owner * W::kOwnSums + j];
            }
            continue;
        }
        const std::uint32_t to = address_in_block(shared_address(received), owner);
        const int from = rank < owner ? rank : rank - 1;
#pragma unroll
        for (int i = 0; i < W::kParts; ++i) {
#pragma unroll
            for (int four = 0; four < kFours; ++four) {
                store_in_block(to + slot(from, i, four), sums[i] + owner * W::kOwnSums + four * 4);
            }
        }
        __syncwarp();
        if (thread % 32 == 0) barrier_arrive_at(came, owner);
    }
    barrier_wait_cluster(came, 0);
#pragma unroll
    for (int from = 0; from < W::kSplit - 1; ++from) {
#pragma unroll
        for (int i = 0; i < W::kParts; ++i) {
#pragma unroll
            for (int four = 0; four < kFours; ++four) {
                const auto add =
                    *reinterpret_cast<const Vector<typename W::Sum, 4>*>(received + slot(from, i, four));
#pragma unroll
                for (int j = 0; j < 4; ++j) own[i][four * 4 + j] += add.values[j];
            }
        }
    }
}

// What a stage's sums are multiplied by: the scale of this thread's row of a and that of the column's block
// of b, of which a tile meets two at most. Those of the next stage are on their way while this one is
// multiplied.
template <class W>
struct BlockScales {
    static_assert(W::kPartColumns % 64 == 0 && W::kPartColumns <= 2 * kGemmScaleBlock);
    std::int64_t a_step, b_step;
    const float* a[W::kParts][2];
    const float* b[2];
    int boundary;  // columns of the tile in the first block
    float next_a[W::kParts][2], next_b[2];
    float now[2][W::kParts][2];  // of block, part, half

    __device__ __forceinline__ BlockScales(const GemmProblem& p, int row, int column) {
        const GemmBlockScales& s = p.scales;
        a_step = s.a_col, b_step = s.b_col;
        const int thread = threadIdx.x % kWarpgroup, first = row + thread / 32 * 16 + thread % 32 / 4;
#pragma unroll
        for (int i = 0; i < W::kParts; ++i) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int line = min(first + i * 64 + half * 8, static_cast<int>(p.m) - 1);
                a[i][half] = s.a + line * s.a_row;
            }
        }
        const int block = column / kGemmScaleBlock, last = (static_cast<int>(p.n) - 1) / kGemmScaleBlock;
        boundary = (block + 1) * kGemmScaleBlock - column;
        b[0] = s.b + min(block, last) * s.b_row;
        b[1] = s.b + min(block + 1, last) * s.b_row;
    }
    __device__ __forceinline__ void fetch() {
#pragma unroll
        for (int i = 0; i < W::kParts; ++i) {
#pragma unroll
            for (int half = 0; half < 2; ++half) next_a[i][half] = *a[i][half], a[i][half] += a_step;
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) next_b[i] = *b[i], b[i] += b_step;
    }
    __device__ __forceinline__ void use() {
#pragma unroll
        for (int i = 0; i < W::kParts; ++i) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                now[0][i][half] = next_a[i][half] * next_b[0];
                now[1][i][half] = next_a[i][half] * next_b[1];
            }
        }
    }
    __device__ __forceinline__ float of(int i, int sum) const {
        const int half = sum / 2 % 2;
        return sum / 4 * 8 < boundary ? now[0][i][half] : now[1][i][half];
    }
};

template <class W>
__device__ __forceinline__ void multiply_tiles(const GemmWgmmaParams& p, int consumer, unsigned char* stages,
                                               unsigned char* staging, unsigned char* received, Barrier* full,
                                               Barrier* empty, Barrier* came) {
    using Instruction = typename W::Instruction;
    const Tiles<W> tiles(p.problem);
    const int rank = W::kBlocks > 1 ? static_cast<int>(cluster_rank()) : 0;
    const Span<W> span(p.problem, rank);
    const int count = span.end - span.begin;
    const int thread = threadIdx.x % kWarpgroup;
    const int part_row = W::kPingPong || W::kCutsColumns ? 0 : consumer * W::kPartRows;
    const int part_column = W::kCutsColumns ? consumer * W::kPartColumns : 0;

    const auto release = [&](int stage) {
        if constexpr (W::kCluster > 1) {
            if (thread < W::kCluster) barrier_free_at(empty[stage], thread);
        } else {
            if (thread == 0) barrier_arrive(empty[stage]);
        }
    };
    // Of the 16 of k at `step`, and the 64 lines at a multiple of 64 (along k: at any multiple of 8).
    const auto matrix = [](const unsigned char* part, bool along_k, int line, int step) {
        return along_k ? wgmma_matrix(part + line * 128 + step * 32, 16, 1024)
                       : wgmma_matrix(part + line / 64 * kWgmmaBoxBytes + line % 64 * 2 + step * 2048,
                                      kWgmmaBoxBytes, 1024);
    };

    Ring ring;
    int turn = 0;
    for (int id = blockIdx.x / W::kBlocks; id < tiles.count; id += gridDim.x / W::kBlocks, ++turn) {
        if (W::kPingPong && turn % kWgmmaConsumers != consumer) {
            ring.template step<W::kStages>(count);
            continue;
        }
        // Not before the other has met the end of its part of the ring: a barrier tells of two phases only.
        if (W::kPingPong && turn > 0)
            named_barrier_sync(kTurnBarrier + consumer, kWgmmaConsumers * kWarpgroup);
        typename W::Sum sums[W::kParts][W::kSums];
        const Place at = tiles.place(p, id, rank);
        const auto multiply = [&](typename W::Sum(&to)[W::kParts][W::kSums], bool add) {
            const unsigned char* a = stages + ring.stage * W::kStageBytes;
            const unsigned char* b = a + W::kABytes;
            barrier_wait(full[ring.stage], ring.phase);
            wgmma_fence();
#pragma unroll
            for (int step = 0; step < kWgmmaDepthBytes / 32; ++step) {
#pragma unroll
                for (int i = 0; i < W::kParts; ++i) {
                    const std::uint64_t left = matrix(a, W::kAAlongK, part_row + i * 64, step);
                    const std::uint64_t right = matrix(b, W::kBAlongK, part_column, step);
                    if constexpr (sizeof(typename W::T) == 2) {
                        wgmma<Instruction, W::kPartColumns, !W::kAAlongK, !W::kBAlongK>(to[i], left, right,
                                                                                        add || step > 0);
                    } else {
                        wgmma<Instruction, W::kPartColumns>(to[i], left, right, add || step > 0);
                    }
                }
            }
            wgmma_commit();
        };
        const auto finished = [&](typename W::Sum(&of)[W::kParts][W::kSums]) {
            wgmma_wait<0>();
#pragma unroll
            for (int i = 0; i < W::kParts; ++i) wgmma_hold(of[i]);
        };
        if constexpr (W::kHow == WgmmaSums::direct) {
            int last = 0;
            for (int done = 0; done < count; ++done) {
                multiply(sums, done > 0);
                if (done > 0) {  // the products before these are done
                    wgmma_wait<1>();
                    release(last);
                }
                last = ring.stage;
                ring.template step<W::kStages>();
            }
            if (W::kPingPong && id + static_cast<int>(gridDim.x) / W::kBlocks < tiles.count)
                named_barrier_arrive(kTurnBarrier + (consumer ^ 1), kWgmmaConsumers * kWarpgroup);
            finished(sums);
            release(last);
        } else {
            static_assert(!W::kPingPong && W::kSplit == 1);
            BlockScales<W> scales(p.problem, at.row + part_row, at.column + part_column);
            scales.fetch();
            typename W::Sum stage_sums[W::kParts][W::kSums];
#pragma unroll
            for (int i = 0; i < W::kParts; ++i) {
#pragma unroll
                for (int j = 0; j < W::kSums; ++j) sums[i][j] = 0;
            }
            for (int done = 0; done < count; ++done) {
                multiply(stage_sums, false);
                scales.use();
                if (done + 1 < count) scales.fetch();
                finished(stage_sums);
                release(ring.stage);
                ring.template step<W::kStages>();
#pragma unroll
                for (int i = 0; i < W::kParts; ++i) {
#pragma unroll
                    for (int j = 0; j < W::kSums; ++j) sums[i][j] += scales.of(i, j) * stage_sums[i][j];
                }
            }
        }
        Part part = {consumer, at.row + part_row, at.column + part_column,
                     staging + consumer * W::kStagingBytes};
        if constexpr (W::kSplit > 1) {
            typename W::Sum own[W::kParts][W::kOwnSums];
            exchange<W>(received, *came, sums, own);
            part.column += rank * W::kOwnColumns;
            store_rows<W>(p, part, at, own);
        } else {
            if constexpr (sizeof(typename W::Out) == 2 && W::kPartColumns % 16 == 0) {
                if (p.store_by_map) {
                    store_by_map<W>(p, part, at, sums);
                    continue;
                }
            }
            store_rows<W>(p, part, at, sums);
        }
    }
    if (thread == 0) tma_store_wait<0>();
}

template <class W>
__device__ __forceinline__ void gemm_wgmma(const GemmWgmmaParams& p) {
    extern __shared__ __align__(1024) unsigned char shared[];
    unsigned char* staging = shared + W::kStages * W::kStageBytes;
    unsigned char* received = staging + kWgmmaConsumers * W::kStagingBytes;
    auto* full = reinterpret_cast<Barrier*>(received + W::kReceivedBytes);
    Barrier* empty = full + W::kStages;
    Barrier* came = empty + W::kStages;
    const int warpgroup = threadIdx.x / kWarpgroup;
    if (threadIdx.x == 0) {
        for (int i = 0; i < W::kStages; ++i) {
            barrier_init(full[i], 1);
            barrier_init(empty[i], W::kCluster * (W::kPingPong ? 1 : kWgmmaConsumers));
        }
        if constexpr (W::kSplit > 1)
            barrier_init(*came, (W::kSplit - 1) * kWgmmaConsumers * (kWarpgroup / 32));
        barrier_init_fence();
        tma_prefetch(p.a);
        tma_prefetch(p.b);
    }
    if constexpr (W::kBlocks > 1) {
        cluster_sync();
    } else {
        __syncthreads();
    }
    wait_for_predecessor();  // what came before touches no memory that the kernel before may write
    if (warpgroup == 0) {
        give_registers<W::kFeedRegisters>();
        if (threadIdx.x == 0) feed<W>(p, shared, full, empty);
    } else {
        take_registers<W::kSumRegisters>();
        multiply_tiles<W>(p, warpgroup - 1, shared, staging, received, full, empty, came);
    }
    if constexpr (W::kCluster > 1) {  // the others may still write to this block, or arrive in it
        __syncwarp();
        cluster_sync();
    }
}

}  // namespace gpk::kernels

#define GPK_WGMMA_SYMBOL(T, type, tile, layout, a_along_k, b_along_k, Out, suffix, sums)           \
    extern "C" __global__ void __launch_bounds__(kWgmmaThreads, wgmma_tile_##tile.per_sm)          \
        gemm_wgmma_##type##_##tile##_##layout##suffix(const __grid_constant__ GemmWgmmaParams p) { \
        gemm_wgmma<Wgmma<T, Out, wgmma_tile_##tile, a_along_k, b_along_k, WgmmaSums::sums>>(p);    \
    }
