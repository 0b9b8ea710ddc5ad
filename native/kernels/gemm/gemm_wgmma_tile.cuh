// What a kernel of gemm_wgmma is made of, and where its tiles lie.
#pragma once

#include <type_traits>

#include "kernels/device.cuh"
#include "kernels/gemm/gemm_wgmma.hpp"
#include "kernels/wgmma.cuh"

namespace gpk::kernels {

constexpr int kWarpgroup = 128;  // threads
constexpr int kTurnBarrier = 1;  // named barrier, of the first consumer

template <class T_, class Out_, WgmmaTile kTile, bool kAAlongK_, bool kBAlongK_,
          WgmmaSums kHow_ = WgmmaSums::direct>
struct Wgmma {
    using T = T_;
    using Instruction = std::conditional_t<std::is_same_v<T, float>, Tf32, T>;  // its name for T
    using Out = Out_;
    using Sum = std::conditional_t<std::is_integral_v<T>, int, float>;
    static constexpr WgmmaSums kHow = kHow_;
    static constexpr int kDepth = kWgmmaDepthBytes / static_cast<int>(sizeof(T));  // of k in a stage
    static constexpr int kRows = kTile.rows, kColumns = kTile.columns, kStages = kTile.stages;
    static constexpr int kBelow = kTile.below, kBeside = kTile.beside, kSplit = kTile.split;
    static constexpr int kTiles = kBelow * kBeside;        // of a cluster
    static constexpr int kBlocks = kTiles * kSplit;        // those of the first part of k come first
    static constexpr int kSharing = kBelow + kBeside - 1;  // blocks that bring to one, itself included
    // Of the feeding and the multiplying threads: what a multiprocessor has, shared out.
    static constexpr int kFeedRegisters = kTile.per_sm == 1 ? 40 : 24,
                         kSumRegisters = kTile.per_sm == 1 ? 232 : 104;
    static constexpr bool kPingPong = kTile.turns == WgmmaTurns::tiles,
                          kDividesK = kTile.turns == WgmmaTurns::k, kAAlongK = kAAlongK_,
                          kBAlongK = kBAlongK_;
    // Lines of an operand across k that a row of 128 bytes holds: those of a box, with a stage of k.
    static constexpr int kBoxLines = kWgmmaDepthBytes / static_cast<int>(sizeof(T)),
                         kBoxBytes = kDepth * kWgmmaDepthBytes;
    // Only of 16 bits does the instruction read shared memory across k.
    static constexpr bool kFromRegisters = wgmma_from_registers(kAAlongK, sizeof(T));
    static_assert(kBAlongK || sizeof(T) == 2);
    static constexpr int kSteps = kWgmmaDepthBytes / 32;  // of a stage: instructions, one after the other
    // Who frees a stage: one thread of those that read it by instructions of a warpgroup, or of a warp.
    static constexpr int kReleasing = kFromRegisters ? 32 : kWarpgroup;
    // What one consumer makes of a tile.
    static constexpr bool kCutsColumns = wgmma_cuts_columns(kTile);  // else rows
    static constexpr int kPartRows = kPingPong || kDividesK || kCutsColumns ? kRows : kRows / kWgmmaConsumers;
    static constexpr int kPartColumns = wgmma_part_columns(kTile);
    static constexpr int kParts = kPartRows / 64;                  // instructions for a step of k
    static constexpr int kSums = kPartColumns / 2;                 // of a thread, in each
    static constexpr int kOwnSums = wgmma_own_columns(kTile) / 2;  // of those that it stores
    static constexpr int kOwnColumns = wgmma_own_columns(kTile);
    static constexpr int kABytes = kRows * kWgmmaDepthBytes, kStageBytes = wgmma_stage_bytes(kTile);
    static constexpr int kStagingBytes = wgmma_staging_bytes(kTile);  // of a warp
    static constexpr int kBoxes = wgmma_boxes(kTile);                 // of a warp, in it
    static constexpr bool kFinishes = wgmma_finishes(kTile) && std::is_same_v<Sum, float>;
    static constexpr bool kMapsResult = wgmma_maps_result(kTile, sizeof(Out));
    static constexpr bool kTurnsResult =
        wgmma_turns_result(kTile, kAAlongK&& kBAlongK, sizeof(T), sizeof(Out));
    static constexpr int kReceivedBytes = wgmma_received_bytes(kTile);
    static_assert(kSplit == 1 || kTile.turns == WgmmaTurns::none);
};

// Where a tile lies. Groups of tile rows are taken together, column by column, so that blocks that run at one
// time share their operands in the L2 cache.
struct Place {
    int row, column;          // elements of c
    int own_row, own_column;  // the first that no other tile makes
    int batch[2];             // the innermost first
};

template <class W>
struct Tiles {
    int rows, columns, count;
    __device__ __forceinline__ explicit Tiles(const GemmProblem& p)
        : rows(static_cast<int>((p.m + W::kRows * W::kBelow - 1) / (W::kRows * W::kBelow))),
          columns(static_cast<int>((p.n + W::kColumns * W::kBeside - 1) / (W::kColumns * W::kBeside))),
          count(rows * columns * static_cast<int>(p.batches)) {}

    // Of block `rank` of those that share a part of k. The last tiles move back to where all their lines
    // exist and make some elements once more, with the same bits: the copy engine takes long to make lines
    // that are not there.
    __device__ __forceinline__ Place place(const GemmWgmmaParams& p, int id, int rank) const {
        const int in_matrix = rows * columns, batch = id / in_matrix, inside = id - batch * in_matrix;
        const int group = inside / (p.group * columns), first = group * p.group;
        const int in_group = inside - first * columns, height = min(rows - first, p.group);
        const int column = in_group / height, row = first + in_group - column * height;
        const int inner = static_cast<int>(
            p.problem.batch_rank > 0 ? p.problem.batch_extents[p.problem.batch_rank - 1] : 1);
        Place place;
        place.row = (row * W::kBelow + (W::kBelow > 1 ? rank % W::kBelow : 0)) * W::kRows;
        place.column = (column * W::kBeside + (W::kBeside > 1 ? rank / W::kBelow : 0)) * W::kColumns;
        place.own_row = place.row, place.own_column = place.column;
        if (W::kHow == WgmmaSums::direct) {
            const int m = static_cast<int>(p.problem.m), n = static_cast<int>(p.problem.n);
            if (W::kAAlongK) place.row = max(min(place.row, m - W::kRows), 0);
            if (W::kBAlongK) place.column = max(min(place.column, n - W::kColumns), 0);
        }
        place.batch[1] = batch / inner;
        place.batch[0] = batch - place.batch[1] * inner;
        return place;
    }
};

// A stride of c or an operand over batch dimension `i`, the innermost being 0; 0 where there is none.
__device__ __forceinline__ std::int64_t batch_stride(const std::int64_t* strides, int rank, int i) {
    return i < rank ? strides[rank - 1 - i] : 0;
}

}  // namespace gpk::kernels
