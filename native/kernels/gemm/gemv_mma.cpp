#include "kernels/gemm/gemv_mma.hpp"

#include <vector>

#include "kernels/gemm/gemv_bulk.hpp"
#include "kernels/gemm/gemv_host.hpp"
#include "kernels/host.hpp"
#include "runtime/kernel.hpp"

namespace gpk {

extern const Image image_gemv_mma, image_gemv_bulk_bfloat16_sm90, image_gemv_bulk_float16_sm90;

namespace {

// `to_float`: the same product with a float32 result.
template <class T, class Out, void (*host)(const GemmProblem&), void (*to_float)(const GemmProblem&)>
void bulk_twin(const GemvBulkParams& params) {
    std::vector<T> rows;
    const GemmProblem p = kernels::normalized(params.problem, rows);
    const GemmEpilogue& e = p.epilogue;
    if (!changes(e)) return host(p);
    std::vector<float> sums(static_cast<std::size_t>(p.m * p.n));
    GemmProblem plain = p;
    plain.c = sums.data(), plain.c_row = p.n, plain.c_col = 1;
    to_float(plain);
    const auto *bias = static_cast<const Out*>(e.bias), *residual = static_cast<const Out*>(e.residual);
    for (std::int64_t i = 0; i < p.m * p.n; ++i) {
        const std::int64_t row = i / p.n, column = i % p.n;
        float sum = sums[static_cast<std::size_t>(i)];
        if (bias != nullptr) sum += convert<float>(bias[column]);
        if (residual != nullptr)
            sum += convert<float>(residual[row * e.residual_row + column * e.residual_col]);
        static_cast<Out*>(p.c)[row * p.c_row + column * p.c_col] = convert<Out>(sum);
    }
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
#define GPK_X(T, type, Out, suffix, form, layout, Source, tiles, held)                                     \
    Kernel({.name = "gemv_bulk_" #type #suffix "_" #form "_tiles" #tiles,                                  \
            .image = &image_gemv_bulk_##type##_sm90,                                                       \
            .twin = kernels::twin<GemvBulkParams, bulk_twin<T, Out, kernels::gemv_##layout##_host<T, Out>, \
                                                            kernels::gemv_##layout##_host<T, float>>>,     \
            .max_shared_bytes = kAllSharedBytes,                                                           \
            .waits_for_predecessor = true}),
    static const Kernel table[] = {GPK_GEMV_BULK_BFLOAT16(GPK_X) GPK_GEMV_BULK_FLOAT16(GPK_X)};
#undef GPK_X
    return table[static_cast<int>(which)];
}

}  // namespace gpk
