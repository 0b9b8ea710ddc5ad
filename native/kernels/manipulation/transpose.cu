#include "kernels/manipulation/transpose.hpp"

#include "kernels/elementwise/access.cuh"

namespace gpk::kernels {

namespace {

// Where this block's tile is.
struct Tile {
    std::int64_t row, column, from, to;

    __device__ __forceinline__ Tile(const TransposeParams& p, int rows, int columns) {
        const std::uint32_t rest = blockIdx.x / p.column_tiles, batch = rest / p.row_tiles;
        column = static_cast<std::int64_t>(blockIdx.x - rest * p.column_tiles) * columns;
        row = static_cast<std::int64_t>(rest - batch * p.row_tiles) * rows;
        std::int64_t at[2];
        p.batches.offsets(batch, at);
        to = at[0];
        from = at[1];
    }
};

// A piece turns in registers on its way into shared memory, whose rows are then runs along r. Which vector of
// a row is where depends on c, so that neighbouring threads never meet in a bank.
template <class T, int kPiece, int kRows, int kColumns>
__device__ __forceinline__ void transpose_pieces(const TransposeParams& p) {
    using Vec = Vector<T, kPiece>;
    constexpr int kAcrossRows = kRows / kPiece, kAcrossColumns = kColumns / kPiece;
    constexpr int kSwizzle = kAcrossRows < 8 ? kAcrossRows : 8;
    __shared__ Vec memory[kColumns][kAcrossRows];
    const Tile tile(p, kRows, kColumns);
    {
        const int column = threadIdx.x % kAcrossColumns, row = threadIdx.x / kAcrossColumns;
        const std::int64_t r = tile.row + row * kPiece, c = tile.column + column * kPiece;
        if (r < p.rows && c < p.columns) {
            const T* from = static_cast<const T*>(p.from) + tile.from + r * p.from_stride + c;
            Vec lines[kPiece];
#pragma unroll
            for (int k = 0; k < kPiece; ++k) {
                lines[k] = *reinterpret_cast<const Vec*>(from + k * p.from_stride);
            }
#pragma unroll
            for (int j = 0; j < kPiece; ++j) {
                Vec turned;
#pragma unroll
                for (int k = 0; k < kPiece; ++k) turned.values[k] = lines[k].values[j];
                memory[column * kPiece + j][row ^ (column % kSwizzle)] = turned;
            }
        }
    }
    __syncthreads();
    const int row = threadIdx.x % kAcrossRows;
    const std::int64_t r = tile.row + row * kPiece;
    if (r >= p.rows) return;
#pragma unroll
    for (int k = 0; k < kPiece; ++k) {
        const int column = threadIdx.x / kAcrossRows + k * kAcrossColumns;
        const std::int64_t c = tile.column + column;
        if (c >= p.columns) continue;
        T* to = static_cast<T*>(p.to) + tile.to + c * p.to_stride + r;
        *reinterpret_cast<Vec*>(to) = memory[column][row ^ (column / kPiece % kSwizzle)];
    }
}

// Element by element, for sizes and addresses that have no vectors.
template <class T, int kRows, int kColumns>
__device__ __forceinline__ void transpose_elements(const TransposeParams& p) {
    static_assert(kRows == kColumns);
    constexpr int kStep = kTransposeThreads / kColumns, kEach = kRows / kStep;
    __shared__ T memory[kRows][kColumns + 1];
    const Tile tile(p, kRows, kColumns);
    const int across = threadIdx.x % kColumns, down = threadIdx.x / kColumns;
    {
        const std::int64_t c = tile.column + across;
        const T* from = static_cast<const T*>(p.from) + tile.from + c;
        T own[kEach];
#pragma unroll
        for (int k = 0; k < kEach; ++k) {
            const std::int64_t r = tile.row + down + k * kStep;
            if (r < p.rows && c < p.columns) own[k] = from[r * p.from_stride];
        }
#pragma unroll
        for (int k = 0; k < kEach; ++k) memory[down + k * kStep][across] = own[k];
    }
    __syncthreads();
    const std::int64_t r = tile.row + across;
    T* to = static_cast<T*>(p.to) + tile.to + r;
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
        const std::int64_t c = tile.column + down + k * kStep;
        if (r < p.rows && c < p.columns) to[c * p.to_stride] = memory[across][down + k * kStep];
    }
}

template <int kBytes, int kPiece, int kRows, int kColumns>
__device__ __forceinline__ void transpose(const TransposeParams& p) {
    wait_for_predecessor();
    using T = typename Word<kBytes>::type;
    if constexpr (kPiece > 1) {
        transpose_pieces<T, kPiece, kRows, kColumns>(p);
    } else {
        transpose_elements<T, kRows, kColumns>(p);
    }
}

}  // namespace

#define X(bytes, piece, rows, columns)                                                    \
    extern "C" __global__ void __launch_bounds__(transpose_threads(piece, rows, columns)) \
        transpose_##bytes##_##piece(const __grid_constant__ TransposeParams p) {          \
        transpose<bytes, piece, rows, columns>(p);                                        \
    }
GPK_TRANSPOSE_VARIANTS(X)
#undef X

}  // namespace gpk::kernels
