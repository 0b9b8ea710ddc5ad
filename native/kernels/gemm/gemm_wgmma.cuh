// A block has one warpgroup that feeds and two that multiply. The first keeps a ring of stages in shared
// memory filled, each with 128 bytes of k of both operands, and runs ahead over the tiles of a block that
// stays; the others multiply what has come, and store c while the next tile's operands are on their way.
#pragma once

#include "kernels/gemm/gemm_wgmma_across.cuh"
#include "kernels/gemm/gemm_wgmma_store.cuh"
#include "kernels/overlap.cuh"

namespace gpk::kernels {

struct Ring {
    int stage = 0;
    std::uint32_t phase = 0;
    template <int kStages, int kBy = 1>
    __device__ __forceinline__ void step() {
        stage += kBy;
        if (stage >= kStages) stage -= kStages, phase ^= 1;
    }
    template <int kStages>
    __device__ __forceinline__ void skip(int count) {
        stage += count;
        phase ^= stage / kStages & 1;
        stage %= kStages;
    }
};

// This block's parts of k.
template <class W>
struct Span {
    int begin, end;
    __device__ __forceinline__ Span(const GemmProblem& p, int share) {
        const int parts = static_cast<int>((p.k + W::kDepth - 1) / W::kDepth);
        begin = W::kSplit > 1 ? parts * share / W::kSplit : 0;
        end = W::kSplit > 1 ? parts * (share + 1) / W::kSplit : parts;
    }
};

// One operand's part of a stage, from `line` of m or n on: a box of the map's lines along k, else `kLines`;
// for all the blocks in `mask` where those are more.
template <class W, int kLines, bool kAlongK, bool kShared>
__device__ __forceinline__ void load_part(unsigned char* to, const TensorMap& map, Barrier& barrier,
                                          std::uint16_t mask, int line, int k, int batch0, int batch1) {
    static_assert(kAlongK || kLines % W::kBoxLines == 0);
    const auto load = [&](unsigned char* box, int x, int y) {
        if constexpr (kShared) {
            tma_multicast(box, map, barrier, mask, CachePolicy::normal, x, y, batch0, batch1);
        } else {
            tma_load(box, map, barrier, CachePolicy::normal, x, y, batch0, batch1);
        }
    };
    if constexpr (kAlongK) {
        load(to, k, line);
    } else {
#pragma unroll
        for (int i = 0; i < kLines / W::kBoxLines; ++i)
            load(to + i * W::kBoxBytes, line + i * W::kBoxLines, k);
    }
}

template <class W>
__device__ __forceinline__ void feed(const GemmWgmmaParams& p, unsigned char* stages, Barrier* full,
                                     Barrier* empty) {
    const GemmProblem& g = p.problem;
    const Tiles<W> tiles(g);
    const int block = W::kBlocks > 1 ? static_cast<int>(cluster_rank()) : 0;
    const int rank = block % W::kTiles, share = block / W::kTiles;
    const Span<W> span(g, share);
    // What this block brings of a for those beside it, and of b for those below and above.
    constexpr int kShareA = W::kRows / W::kBeside, kShareB = W::kColumns / W::kBelow;
    const int below = rank % W::kBelow, beside = W::kBeside > 1 ? rank / W::kBelow : 0;
    const bool a_turns = W::kAAlongK && W::kBeside > 1 && p.a_lines.by_turns,
               b_turns = W::kBAlongK && W::kBelow > 1 && p.b_lines.by_turns;
    const int share_a = a_turns ? 0 : beside * (W::kAAlongK ? p.a_lines.count : kShareA),
              share_b = b_turns ? 0 : below * (W::kBAlongK ? p.b_lines.count : kShareB);
    std::uint16_t of_a = 0, of_b = 0;
    for (int i = 0; i < W::kBeside; ++i) of_a |= static_cast<std::uint16_t>(1 << (i * W::kBelow + below));
    for (int i = 0; i < W::kBelow; ++i) of_b |= static_cast<std::uint16_t>(1 << (beside * W::kBelow + i));
    of_a = static_cast<std::uint16_t>(of_a << share * W::kTiles);
    of_b = static_cast<std::uint16_t>(of_b << share * W::kTiles);
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
            barrier_expect(arrived, p.stage_bytes);
            if (!a_turns || ring.stage % W::kBeside == beside) {
                load_part<W, kShareA, W::kAAlongK, (W::kBeside > 1)>(a + share_a * kWgmmaDepthBytes, p.a,
                                                                     arrived, of_a, at.row + share_a,
                                                                     part * W::kDepth, a0, a1);
            }
            if (!b_turns || ring.stage % W::kBelow == below) {
                load_part<W, kShareB, W::kBAlongK, (W::kBelow > 1)>(
                    a + W::kABytes + share_b * kWgmmaDepthBytes, p.b, arrived, of_b, at.column + share_b,
                    part * W::kDepth, b0, b1);
            }
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
__device__ __forceinline__ void exchange(unsigned char* received, Barrier& came, int rank, int share,
                                         const typename W::Sum (&sums)[W::kParts][W::kSums],
                                         typename W::Sum (&own)[W::kParts][W::kOwnSums]) {
    static_assert(W::kOwnSums % 4 == 0);
    constexpr int kThreads = kWgmmaConsumers * kWarpgroup, kFours = W::kOwnSums / 4;
    const int thread = threadIdx.x - kWarpgroup;
    const auto slot = [&](int from, int i, int four) {
        return (((from * W::kParts + i) * kFours + four) * kThreads + thread) * 16;
    };
#pragma unroll
    for (int owner = 0; owner < W::kSplit; ++owner) {
        if (owner == share) {
#pragma unroll
            for (int i = 0; i < W::kParts; ++i) {
#pragma unroll
                for (int j = 0; j < W::kOwnSums; ++j) own[i][j] = sums[i][owner * W::kOwnSums + j];
            }
            continue;
        }
        const int block = owner * W::kTiles + rank;
        const std::uint32_t to = address_in_block(shared_address(received), block);
        const int from = share < owner ? share : share - 1;
#pragma unroll
        for (int i = 0; i < W::kParts; ++i) {
#pragma unroll
            for (int four = 0; four < kFours; ++four) {
                store_in_block(to + slot(from, i, four), sums[i] + owner * W::kOwnSums + four * 4);
            }
        }
        __syncwarp();
        if (thread % 32 == 0) barrier_arrive_at(came, block);
    }
    barrier_wait_cluster(came, 0);
    // In the order of k: the last tiles overlap, and an element's two writers must agree on its bits.
#pragma unroll
    for (int i = 0; i < W::kParts; ++i) {
#pragma unroll
        for (int four = 0; four < kFours; ++four) {
            typename W::Sum* mine = own[i] + four * 4;
            const auto part = [&](int of) {
                using Four = Vector<typename W::Sum, 4>;
                if (of == share) return Four{mine[0], mine[1], mine[2], mine[3]};
                return *reinterpret_cast<const Four*>(received + slot(of < share ? of : of - 1, i, four));
            };
            auto total = part(0);
#pragma unroll
            for (int of = 1; of < W::kSplit; ++of) {
                const auto add = part(of);
#pragma unroll
                for (int j = 0; j < 4; ++j) total.values[j] += add.values[j];
            }
#pragma unroll
            for (int j = 0; j < 4; ++j) mine[j] = total.values[j];
        }
    }
}

// Adds up what the two warpgroups have summed over their stages: each gives the other its half of the
// columns, each warp to the one of its number, where that stages c.
template <class W>
__device__ __forceinline__ void join(unsigned char* staging, int consumer,
                                     const typename W::Sum (&sums)[W::kParts][W::kSums],
                                     typename W::Sum (&own)[W::kParts][W::kOwnSums]) {
    static_assert(W::kOwnSums % 4 == 0);
    using Four = Vector<typename W::Sum, 4>;
    constexpr int kFours = W::kOwnSums / 4;
    static_assert(W::kParts * kFours * 32 * sizeof(Four) <= W::kStagingBytes);
    const int warp = threadIdx.x % kWarpgroup / 32, lane = threadIdx.x % 32;
    const auto slot = [&](int owner, int i, int four) -> Four& {
        auto* given = reinterpret_cast<Four*>(staging + (owner * 4 + warp) * W::kStagingBytes);
        return given[(i * kFours + four) * 32 + lane];
    };
    if (lane == 0) tma_store_wait<0>();
    named_barrier_sync(kTurnBarrier, kWgmmaConsumers * kWarpgroup);  // what was there has been read
#pragma unroll
    for (int owner = 0; owner < kWgmmaConsumers; ++owner) {
#pragma unroll
        for (int i = 0; i < W::kParts; ++i) {
#pragma unroll
            for (int j = 0; j < W::kOwnSums; j += 4) {
                const auto* four = sums[i] + owner * W::kOwnSums + j;
                if (owner == consumer) {
#pragma unroll
                    for (int l = 0; l < 4; ++l) own[i][j + l] = four[l];
                } else {
                    slot(owner, i, j / 4) = {four[0], four[1], four[2], four[3]};
                }
            }
        }
    }
    named_barrier_sync(kTurnBarrier, kWgmmaConsumers * kWarpgroup);
#pragma unroll
    for (int i = 0; i < W::kParts; ++i) {
#pragma unroll
        for (int j = 0; j < W::kOwnSums; j += 4) {
            const Four add = slot(consumer, i, j / 4);
#pragma unroll
            for (int l = 0; l < 4; ++l) own[i][j + l] += add.values[l];
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
    const int block = W::kBlocks > 1 ? static_cast<int>(cluster_rank()) : 0;
    const int rank = block % W::kTiles, share = block / W::kTiles;
    const Span<W> span(p.problem, share);
    const int count = span.end - span.begin;
    const int thread = threadIdx.x % kWarpgroup;
    const int part_row = W::kPingPong || W::kDividesK || W::kCutsColumns ? 0 : consumer * W::kPartRows;
    const int part_column = W::kCutsColumns ? consumer * W::kPartColumns : 0;

    // The blocks that bring something to this one, itself included: those below each other, and those beside
    // it.
    const int below = rank % W::kBelow, beside = rank / W::kBelow;
    const int which = thread % W::kReleasing, other = which - W::kBelow;
    const int giver =
        share * W::kTiles +
        (which < W::kBelow ? beside * W::kBelow + which : (other + (other >= beside)) * W::kBelow + below);
    const auto release = [&](int stage) {
        if constexpr (W::kSharing > 1) {
            if (thread % W::kReleasing < W::kSharing) barrier_free_at(empty[stage], giver);
        } else {
            if (thread % W::kReleasing == 0) barrier_arrive(empty[stage]);
        }
    };
    // The matrices of a stage, from a line that is a multiple of 64 (along k: of 8) on; those of other
    // stages, steps of k and 64 lines lie so many 16 bytes on.
    const auto matrix = [](const unsigned char* part, bool along_k, int line) {
        return along_k
                   ? wgmma_matrix(part + line * 128, 16, 1024)
                   : wgmma_matrix(part + line / 64 * kWgmmaBoxBytes + line % 64 * 2, kWgmmaBoxBytes, 1024);
    };
    const auto offset = [](bool along_k, int lines_of_64, int step) {
        return static_cast<std::uint32_t>(lines_of_64 * kWgmmaBoxBytes + step * (along_k ? 32 : 2048)) / 16;
    };
    // The address is in the low word, and nothing carries out of it.
    const auto moved = [](std::uint64_t from, std::uint32_t by) {
        return from >> 32 << 32 | (static_cast<std::uint32_t>(from) + by);
    };
    const Across<W> across(stages, part_row);
    const std::uint64_t first_a = matrix(stages, W::kAAlongK, part_row),
                        first_b = matrix(stages + W::kABytes, W::kBAlongK, part_column);

    Ring ring;
    int turn = 0;
    for (int id = blockIdx.x / W::kBlocks; id < tiles.count; id += gridDim.x / W::kBlocks, ++turn) {
        if (W::kPingPong && turn % kWgmmaConsumers != consumer) {
            ring.template skip<W::kStages>(count);
            continue;
        }
        // Not before the other has met the end of its part of the ring: a barrier tells of two phases only.
        if (W::kPingPong && turn > 0)
            named_barrier_sync(kTurnBarrier + consumer, kWgmmaConsumers * kWarpgroup);
        typename W::Sum sums[W::kParts][W::kSums];
        const Place at = tiles.place(p, id, rank);
        const Finish<W> finish(p.problem, at.row + part_row + thread / 32 * 16 + thread % 32 / 4);
        if constexpr (W::kFinishes)
            ask_for_residual<W>(p.problem, at.row + part_row, at.column + part_column);
        const auto multiply = [&](typename W::Sum(&to)[W::kParts][W::kSums], bool add) {
            const std::uint32_t stage = ring.stage * (W::kStageBytes / 16);
            barrier_wait(full[ring.stage], ring.phase);
            wgmma_fence();
#pragma unroll
            for (int step = 0; step < kWgmmaDepthBytes / 32; ++step) {
#pragma unroll
                for (int i = 0; i < W::kParts; ++i) {
                    const std::uint64_t left = moved(first_a, stage + offset(W::kAAlongK, i, step));
                    const std::uint64_t right = moved(first_b, stage + offset(W::kBAlongK, 0, step));
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
        if constexpr (W::kFromRegisters) {
            static_assert(W::kHow == WgmmaSums::direct && !W::kDividesK && !W::kPingPong);
            // Of half a stage, so that one half is on its way while the other is multiplied.
            std::uint32_t lines[2][W::kParts][W::kSteps / 2][4];
            int last = 0;
            for (int done = 0; done < count; ++done) {
                barrier_wait(full[ring.stage], ring.phase);
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    across.load(lines[half], ring.stage, half);
                    wgmma_fence();
#pragma unroll
                    for (int step = 0; step < W::kSteps / 2; ++step) {
                        const std::uint64_t right =
                            moved(first_b, ring.stage * (W::kStageBytes / 16) +
                                               offset(true, 0, half * (W::kSteps / 2) + step));
#pragma unroll
                        for (int i = 0; i < W::kParts; ++i) {
                            wgmma<Instruction, W::kPartColumns>(sums[i], lines[half][i][step], right,
                                                                done + half + step > 0);
                        }
                    }
                    wgmma_commit();
                    wgmma_wait<1>();  // the half before is done
                    if (half == 0 && done > 0) release(last);
                }
                last = ring.stage;
                ring.template step<W::kStages>();
            }
            finished(sums);
            release(last);
        } else if constexpr (W::kHow == WgmmaSums::direct) {
            constexpr int kTurns = W::kDividesK ? kWgmmaConsumers : 1;
            const int first = W::kDividesK ? consumer : 0;
            int last = 0;
            const Ring begin = ring;
            if (W::kDividesK) ring.template skip<W::kStages>(first);
            for (int done = first; done < count; done += kTurns) {
                multiply(sums, done > first);
                if (done > first) {  // the products before these are done
                    wgmma_wait<1>();
                    release(last);
                }
                last = ring.stage;
                ring.template step<W::kStages, kTurns>();
            }
            if (W::kDividesK) {
                ring = begin;
                ring.template skip<W::kStages>(count);
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
                     staging + (consumer * 4 + thread / 32) * W::kStagingBytes};
        const auto store = [&](const typename W::Sum(&own)[W::kParts][W::kOwnSums]) {
            if constexpr (W::kFromRegisters) return store_pairs<W>(p, part, at, own);
            if constexpr (W::kMapsResult) {
                if (p.store == WgmmaStore::map) {
                    if (W::kFinishes && finish.needed)
                        return store_by_map<W, W::kFinishes>(p, part, at, finish, own);
                    return store_by_map<W, false>(p, part, at, finish, own);
                }
            }
            if constexpr (W::kTurnsResult) {
                if (p.store == WgmmaStore::turned) return store_turned<W>(p, part, at, own);
            }
            store_rows<W>(p, part, at, own);
        };
        if constexpr (W::kDividesK) {
            typename W::Sum own[W::kParts][W::kOwnSums];
            join<W>(staging, consumer, sums, own);
            part.column += consumer * W::kOwnColumns;
            store(own);
        } else if constexpr (W::kSplit > 1) {
            typename W::Sum own[W::kParts][W::kOwnSums];
            exchange<W>(received, *came, rank, share, sums, own);
            part.column += share * W::kOwnColumns;
            store(own);
        } else {
            store(sums);
        }
    }
    if (thread % 32 == 0) tma_store_wait<0>();
}

template <class W>
__device__ __forceinline__ void gemm_wgmma(const GemmWgmmaParams& p) {
    extern __shared__ __align__(1024) unsigned char shared[];
    unsigned char* staging = shared + W::kStages * W::kStageBytes;
    unsigned char* received = staging + kWgmmaConsumers * 4 * W::kStagingBytes;
    auto* full = reinterpret_cast<Barrier*>(received + W::kReceivedBytes);
    Barrier* empty = full + W::kStages;
    Barrier* came = empty + W::kStages;
    // The same in all threads of a warp, and known to be.
    const int warpgroup = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / kWarpgroup, 0);
    if (threadIdx.x == 0) {
        for (int i = 0; i < W::kStages; ++i) {
            barrier_init(full[i], 1);
            barrier_init(empty[i], W::kSharing * (W::kPingPong || W::kDividesK ? 1 : kWgmmaConsumers) *
                                       (kWarpgroup / W::kReleasing));
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
    if (p.successor_may_come) launch_dependents();
    if (warpgroup == 0) {
        give_registers<W::kFeedRegisters>();
        if (threadIdx.x == 0) feed<W>(p, shared, full, empty);
    } else {
        take_registers<W::kSumRegisters>();
        multiply_tiles<W>(p, warpgroup - 1, shared, staging, received, full, empty, came);
    }
    if constexpr (W::kSharing > 1) {  // the others may still write to this block, or arrive in it
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
