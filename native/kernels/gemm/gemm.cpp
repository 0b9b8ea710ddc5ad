#include "kernels/gemm/gemm.hpp"

#include "kernels/gemm/gemm_host.hpp"
#include "kernels/host.hpp"
#include "runtime/kernel.hpp"

namespace gpk {

extern const Image image_gemm;

const Kernel& gemm_kernel(GemmKernel which) {
#define GPK_X(symbol, T, tile)                                         \
    Kernel({.name = #symbol,                                           \
            .image = &image_gemm,                                      \
            .twin = kernels::twin<GemmProblem, kernels::gemm_host<T>>, \
            .waits_for_predecessor = true}),
    static const Kernel table[] = {GPK_GEMM_KERNELS(GPK_X)};
#undef GPK_X
    return table[static_cast<int>(which)];
}

}  // namespace gpk
