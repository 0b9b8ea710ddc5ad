// Products by expert before SM 90, and of float32: tiles of the kernels that gemm_mma and gemm have, found
// from the offsets.
#include "kernels/gemm/gemm.cuh"
#include "kernels/gemm/gemm_mma.cuh"
#include "kernels/gemm/grouped_tiles.cuh"

namespace gpk::kernels {

namespace {

// Calls multiply(problem) with the part of the product that is this block's tile.
template <class T, int kTile, class Multiply>
__device__ __forceinline__ void grouped(const GroupedProblem& p, Multiply multiply) {
    GroupedTiles<kTile, kTile, kTile> tiles(p);
    if (!tiles.find(static_cast<int>(blockIdx.x))) return;
    GemmProblem part = {};
    part.a = static_cast<const T*>(p.a) + tiles.row * p.a_row;
    part.b = static_cast<const T*>(p.weight) + (tiles.expert * p.n + tiles.column) * p.k;
    part.c = static_cast<T*>(p.c) + tiles.row * p.n + tiles.column;
    part.m = tiles.tile_rows(), part.n = p.n - tiles.column, part.k = p.k;
    part.a_row = p.a_row, part.a_col = 1;
    part.b_row = 1, part.b_col = p.k;
    part.c_row = p.n, part.c_col = 1;
    part.batches = 1;
    multiply(part);
}

}  // namespace

#define GPK_X(symbol, T, tile)                                                                         \
    extern "C" __global__ void __launch_bounds__(mma_threads(tile), tile == 128 ? 2 : 3)               \
        symbol(const __grid_constant__ GroupedProblem p) {                                             \
        wait_for_predecessor();                                                                        \
        grouped<T, tile>(p, [](const GemmProblem& part) { gemm_mma<T, tile, true, true>(part, {}); }); \
    }
GPK_GROUPED_MMA(GPK_X)
#undef GPK_X

#define GPK_X(symbol, T, tile)                                                              \
    extern "C" __global__ void __launch_bounds__(kGemmThreads, 2)                           \
        symbol(const __grid_constant__ GroupedProblem p) {                                  \
        wait_for_predecessor();                                                             \
        grouped<T, tile>(p, [](const GemmProblem& part) { gemm_tile<T, tile>(part, {}); }); \
    }
GPK_GROUPED_PLAIN(GPK_X)
#undef GPK_X

}  // namespace gpk::kernels
