#include "kernels/gemm/gemm.cuh"

namespace gpk::kernels {

#define GPK_X(symbol, T, tile)                                                                              \
    extern "C" __global__ void __launch_bounds__(kGemmThreads, 2)                                           \
        symbol(const __grid_constant__ GemmProblem p) {                                                     \
        wait_for_predecessor();                                                                             \
        gemm_tile<T, tile>(p, tile_of_block(blockIdx.x, (p.m + tile - 1) / tile, (p.n + tile - 1) / tile)); \
    }
GPK_GEMM_KERNELS(GPK_X)
#undef GPK_X

}  // namespace gpk::kernels
