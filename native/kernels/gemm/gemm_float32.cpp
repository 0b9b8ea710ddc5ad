#include "kernels/gemm/gemm_float32.hpp"

#include "kernels/gemm/gemm_host.hpp"
#include "kernels/host.hpp"
#include "runtime/kernel.hpp"

namespace gpk {

extern const Image image_gemm_float32;

const Kernel& gemm_kernel(GemmFloat32Kernel which) {
#define GPK_X(symbol, a, b)                                                \
    Kernel({.name = #symbol,                                               \
            .image = &image_gemm_float32,                                  \
            .twin = kernels::twin<GemmProblem, kernels::gemm_host<float>>, \
            .max_shared_bytes = kGemmFloat32SharedBytes,                   \
            .waits_for_predecessor = true}),
    static const Kernel table[] = {GPK_GEMM_FLOAT32_KERNELS(GPK_X)};
#undef GPK_X
    return table[static_cast<int>(which)];
}

}  // namespace gpk
