#include "kernels/gemm/gemv_gated.hpp"

#include "kernels/gemm/gate.cuh"
#include "kernels/gemm/gemv_bulk.cuh"

namespace gpk::kernels {

namespace {

template <class T, int kHeldUnits>
struct GatedSource : RowsSource<T, kHeldUnits> {
    using Rows = RowsSource<T, kHeldUnits>;
    __device__ __forceinline__ explicit GatedSource(const GemvGatedParams& params) : Rows(Rows::of(params)) {}
    __device__ __forceinline__ void load_weights(std::uint32_t stage, std::uint32_t tile, std::uint32_t step,
                                                 std::uint32_t barrier) const {
        bulk_expect(barrier, Rows::kStageBytes);
        asm volatile(
            "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
            "[%0], [%1, {%4, %5, %4, %4, %6}], [%2], %3;" ::"r"(stage),
            "l"(&this->weights), "r"(barrier), "l"(static_cast<std::uint64_t>(CachePolicy::evict_first)),
            "r"(0), "r"(step / 2), "r"(tile)
            : "memory");
    }
    __device__ __forceinline__ void prefetch(std::uint32_t tile, std::uint32_t step) const {
        asm volatile("cp.async.bulk.prefetch.tensor.5d.L2.global.tile [%0, {%1, %2, %1, %1, %3}];" ::"l"(
                         &this->weights),
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

#define GPK_X(T, type, form, tiles, held)                                                                 \
    extern "C" __global__ void __launch_bounds__(kBulkThreads, tiles == 1 && held <= 4 ? 2 : 1)           \
        gemv_gated_##type##_##form(const __grid_constant__ GemvGatedParams params) {                      \
        const GemmProblem& p = params.problem;                                                            \
        gemv_bulk<GatedSource<T, held>, tiles>(                                                           \
            GatedSource<T, held>(params), static_cast<std::uint32_t>(p.m),                                \
            static_cast<std::uint32_t>(2 * p.n), BulkStart{p.b_settled, params.prefetched, params.turns}, \
            [](std::uint32_t, std::uint32_t) { return 0.0f; },                                            \
            [&](std::uint32_t row, std::uint32_t column, float sum, float) {                              \
                store_gated<T>(params, row, column, sum);                                                 \
            });                                                                                           \
    }
GPK_GEMV_GATED(GPK_X)
#undef GPK_X

}  // namespace gpk::kernels
