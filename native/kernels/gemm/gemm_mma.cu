#include "kernels/gemm/gemm_mma.cuh"

namespace gpk::kernels {

#define GPK_X(symbol, T, tile, a_along_k, b_along_k)                                         \
    extern "C" __global__ void __launch_bounds__(mma_threads(tile), tile == 128 ? 2 : 3)     \
        symbol(const __grid_constant__ GemmProblem p) {                                      \
        wait_for_predecessor();                                                              \
        gemm_mma<T, tile, a_along_k, b_along_k>(                                             \
            p, tile_of_block(blockIdx.x, (p.m + tile - 1) / tile, (p.n + tile - 1) / tile)); \
    }
GPK_GEMM_MMA_KERNELS(GPK_X)
#undef GPK_X

}  // namespace gpk::kernels
