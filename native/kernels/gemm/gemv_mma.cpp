#include "kernels/gemm/gemv_mma.hpp"

#include "kernels/gemm/gemv_bulk.hpp"
#include "kernels/gemm/gemv_host.hpp"
#include "kernels/host.hpp"
#include "runtime/kernel.hpp"

namespace gpk {

extern const Image image_gemv_mma, image_gemv_bulk_bfloat16_sm90, image_gemv_bulk_float16_sm90;

namespace {

template <void (*host)(const GemmProblem&)>
void bulk_twin(const GemvBulkParams& p) {
    host(p.problem);
}

}  // namespace

const Kernel& gemm_kernel(GemvMmaKernel which) {
#define GPK_X(T, type, Out, suffix, tiles)                                              \
    Kernel({.name = "gemv_mma_" #type #suffix "_rows_tiles" #tiles,                     \
            .image = &image_gemv_mma,                                                   \
            .twin = kernels::twin<GemmProblem, kernels::gemv_rows_host<T, Out>>,        \
            .waits_for_predecessor = true}),                                            \
        Kernel({.name = "gemv_mma_" #type #suffix "_columns_tiles" #tiles,              \
                .image = &image_gemv_mma,                                               \
                .twin = kernels::twin<GemmProblem, kernels::gemv_columns_host<T, Out>>, \
                .waits_for_predecessor = true}),
    static const Kernel table[] = {GPK_GEMV_MMA_ALL(GPK_X)};
#undef GPK_X
    return table[static_cast<int>(which)];
}

const Kernel& gemm_kernel(GemvBulkKernel which) {
#define GPK_X(T, type, Out, suffix, form, Source, tiles)                                           \
    Kernel({.name = "gemv_bulk_" #type #suffix "_" #form "_tiles" #tiles,                          \
            .image = &image_gemv_bulk_##type##_sm90,                                               \
            .twin = kernels::twin<GemvBulkParams, bulk_twin<kernels::gemv_##form##_host<T, Out>>>, \
            .max_shared_bytes = kAllSharedBytes,                                                   \
            .waits_for_predecessor = true}),
    static const Kernel table[] = {GPK_GEMV_BULK_BFLOAT16(GPK_X) GPK_GEMV_BULK_FLOAT16(GPK_X)};
#undef GPK_X
    return table[static_cast<int>(which)];
}

}  // namespace gpk
