// The tiles of products by expert, from offsets that only the device knows: of each expert's rows in turn,
// and of these a few tile rows together, column by column, which then share their operands in the L2 cache.
#pragma once

#include "kernels/gemm/gemm_grouped.hpp"

namespace gpk::kernels {

// Tiles of up to kRows rows; an expert's are of one size, in whole kStep but for its end, so that the last
// one is not a small rest that costs nearly as much as a whole one. All threads of a warp call, with numbers
// that never fall.
template <int kRows, int kStep, int kColumns>
class GroupedTiles {
   public:
    int expert, rows;  // of the expert whose tile was found, and the rows that it has
    int row, column;   // of c, where the tile begins

    __device__ __forceinline__ explicit GroupedTiles(const GroupedProblem& p)
        : p_(p), columns_(static_cast<int>((p.n + kColumns - 1) / kColumns)) {
        load();
    }

    // Rows of the tile that are the expert's.
    __device__ __forceinline__ int tile_rows() const { return min(end_ - row, height_); }

    // Whether there is a tile of this number.
    __device__ __forceinline__ bool find(int id) {
        for (;; first_ += 32 * kEach, load()) {
            const int all = __shfl_sync(kAll, upto_, 31);
            if (id < before_ + all) break;
            if (first_ + 32 * kEach >= p_.experts) return false;
            before_ += all;
        }
        const int lane = __ffs(__ballot_sync(kAll, id < before_ + upto_)) - 1;
        // Of that lane's experts the one whose tile it is.
        int inside = id - before_ - __shfl_sync(kAll, upto_ - tiles_, lane), begin = 0;
        bool found = false;
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
            const int its_begin = __shfl_sync(kAll, begin_[i], lane),
                      its_rows = __shfl_sync(kAll, rows_[i], lane);
            const int its_tiles = tile_rows_of(its_rows) * columns_;
            if (!found && inside < its_tiles) {
                found = true;
                expert = first_ + lane * kEach + i, begin = its_begin, rows = its_rows;
            } else if (!found) {
                inside -= its_tiles;
            }
        }
        constexpr int kGroup = kGroupedOrderRows / kRows;
        const int down = tile_rows_of(rows);
        height_ = ((rows + down - 1) / down + kStep - 1) / kStep * kStep;
        end_ = begin + rows;
        const int group = inside / (kGroup * columns_), in_group = inside - group * (kGroup * columns_);
        const int in_column = min(down - group * kGroup, kGroup), across = in_group / in_column;
        row = begin + (group * kGroup + in_group - across * in_column) * height_;
        column = across * kColumns;
        return true;
    }

   private:
    static constexpr unsigned kAll = 0xffffffffu;
    static constexpr int kEach = 4;  // experts of a lane, whose offsets come at once

    __device__ __forceinline__ static int tile_rows_of(int rows) { return (rows + kRows - 1) / kRows; }

    // Offsets that do not rise, or lie outside, give an expert no rows that are not there.
    __device__ __forceinline__ void load() {
        const int mine = first_ + static_cast<int>(threadIdx.x % 32) * kEach,
                  last = static_cast<int>(p_.rows);
        int offsets[kEach + 1];
#pragma unroll
        for (int i = 0; i <= kEach; ++i) {
            offsets[i] = p_.offsets == nullptr    ? (mine + i == 0 ? 0 : last)
                         : mine + i <= p_.experts ? p_.offsets[mine + i]
                                                  : 0;
        }
        tiles_ = 0;
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
            begin_[i] = min(max(offsets[i], 0), last);
            rows_[i] = mine + i < p_.experts ? min(max(offsets[i + 1], begin_[i]), last) - begin_[i] : 0;
            tiles_ += tile_rows_of(rows_[i]) * columns_;
        }
        upto_ = tiles_;
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const int other = __shfl_up_sync(kAll, upto_, step);
            if (static_cast<int>(threadIdx.x % 32) >= step) upto_ += other;
        }
    }

    const GroupedProblem& p_;
    int columns_;                     // tiles of all columns
    int first_ = 0, before_ = 0;      // of the experts at hand, and the tiles before theirs
    int begin_[kEach], rows_[kEach];  // of this lane's experts
    int tiles_, upto_;                // of them all, and with those of the lanes before
    int height_, end_;
};

}  // namespace gpk::kernels
