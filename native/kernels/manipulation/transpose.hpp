// Copies whose innermost dimensions swap: through tiles in shared memory, so that both sides are read and
// written in runs.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/elementwise/layout.hpp"
#include "runtime/kernel.hpp"

namespace gpk::kernels {

// to[b, c, r] = from[b, r, c], where `from` has no gaps along c and `to` none along r.
struct TransposeParams {
    const void* from;
    void* to;
    std::int64_t rows, columns;
    std::int64_t from_stride;  // elements from r to r + 1
    std::int64_t to_stride;    // elements from c to c + 1
    Layout<2> batches;         // to, from: in elements
    std::uint32_t row_tiles, column_tiles;
};

// A thread moves a piece of `piece` x `piece` elements, in accesses of `piece` elements: rows, columns,
// strides and addresses are whole numbers of them. Grid: row_tiles * column_tiles * batches.
struct TransposeVariant {
    Kernel kernel;
    int element_bytes, piece;
    int tile_rows, tile_columns;
    int threads;
};

// X(element bytes, piece, rows and columns of a tile). The first that fits is the fastest.
#define GPK_TRANSPOSE_VARIANTS(X) \
    X(1, 8, 256, 128)             \
    X(1, 4, 128, 128)             \
    X(1, 1, 64, 64)               \
    X(2, 8, 128, 128)             \
    X(2, 4, 128, 64)              \
    X(2, 1, 64, 64)               \
    X(4, 4, 64, 64)               \
    X(4, 1, 64, 64)               \
    X(8, 2, 64, 32)               \
    X(8, 1, 32, 32)               \
    X(16, 1, 32, 32)

// What one thread copies of a tile at most without a piece of its own.
inline constexpr int kTransposeThreads = 256;
constexpr int transpose_threads(int piece, int rows, int columns) {
    return piece > 1 ? rows / piece * (columns / piece) : kTransposeThreads;
}

std::span<const TransposeVariant> transpose_variants();

}  // namespace gpk::kernels
