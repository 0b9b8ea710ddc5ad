#include "kernels/gemm/gemm_mma.hpp"

#include "kernels/gemm/gemm_host.hpp"
#include "kernels/host.hpp"
#include "runtime/kernel.hpp"

namespace gpk {

extern const Image image_gemm_mma;

// The twin of a tf32 kernel multiplies in full float32: it may be more exact, never less.
const Kernel& gemm_kernel(GemmMmaKernel which) {
#define GPK_X(symbol, T, tile, a_along_k, b_along_k)                   \
    Kernel({.name = #symbol,                                           \
            .image = &image_gemm_mma,                                  \
            .twin = kernels::twin<GemmProblem, kernels::gemm_host<T>>, \
            .max_shared_bytes = mma_shared_bytes(tile),                \
            .waits_for_predecessor = true}),
    static const Kernel table[] = {GPK_GEMM_MMA_KERNELS(GPK_X)};
#undef GPK_X
    return table[static_cast<int>(which)];
}

}  // namespace gpk
