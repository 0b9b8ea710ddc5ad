// The order in which blocks take the tiles of c.
#pragma once

#include <cstdint>

namespace gpk::kernels {

struct Tile {
    std::int64_t row, column;  // in tiles
};

// Eight tile rows together, column by column, so that blocks that run at one time share their inputs in L2.
__device__ __forceinline__ Tile tile_of_block(std::int64_t id, std::int64_t tile_rows,
                                              std::int64_t tile_columns) {
    constexpr int kGroup = 8;
    const std::int64_t group_tiles = kGroup * tile_columns;
    const std::int64_t first = id / group_tiles * kGroup, inside = id % group_tiles;
    const std::int64_t rows = tile_rows - first < kGroup ? tile_rows - first : kGroup;
    return {first + inside % rows, inside / rows};
}

}  // namespace gpk::kernels
