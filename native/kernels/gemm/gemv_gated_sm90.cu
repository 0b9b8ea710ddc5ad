#include "kernels/gemm/gemv_gated.hpp"

#include "kernels/gemm/gate.cuh"
#include "kernels/gemm/gemv_bulk.cuh"

namespace gpk::kernels {

namespace {

template <class T>
struct GatedSource : RowsSource<T> {
    __device__ __forceinline__ void load(std::uint32_t stage, std::uint32_t tile, std::uint32_t step,
                                         std::uint32_t barrier) const {
        bulk_expect(barrier, RowsSource<T>::kStageBytes);
        asm volatile(
            "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
            "[%0], [%1, {%4, %5, %4, %4, %6}], [%2], %3;" ::"r"(stage),
            "l"(&this->weights), "r"(barrier), "l"(static_cast<std::uint64_t>(CachePolicy::evict_first)),
            "r"(0), "r"(step / 2), "r"(tile)
            : "memory");
    }
};

// Half a warp has the sums of 8 gates, then of their ups.
template <class T>
__device__ __forceinline__ void store_gated(const GemvGatedParams& params, std::uint32_t row,
                                            std::uint32_t column, float sum) {
    const GemmProblem& p = params.problem;
    const float up = __shfl_xor_sync(0xffffu << (threadIdx.x & 16), sum, 8);
    if (column % 16 >= 8) return;
    static_cast<T*>(p.c)[row * p.c_row + column / 16 * 8 + column % 8] =
        convert<T>(gated<T>(params.glu, sum, up));
}

}  // namespace

#define GPK_X(T, type, tiles)                                                                         \
    extern "C" __global__ void __launch_bounds__(kBulkThreads, tiles == 1 ? 2 : 1)                    \
        gemv_gated_##type##_tiles##tiles(const __grid_constant__ GemvGatedParams params) {            \
        const GemmProblem& p = params.problem;                                                        \
        gemv_bulk<GatedSource<T>, tiles>(                                                             \
            {{params.weights, static_cast<const T*>(p.a), p.a_row, static_cast<std::uint32_t>(p.k)}}, \
            static_cast<std::uint32_t>(p.m), static_cast<std::uint32_t>(2 * p.n), 0,                  \
            [&](std::uint32_t row, std::uint32_t column, float sum) {                                 \
                store_gated<T>(params, row, column, sum);                                             \
            });                                                                                       \
    }
GPK_GEMV_GATED(GPK_X)
#undef GPK_X

}  // namespace gpk::kernels
