#include "kernels/gemm/gemm_wgmma.hpp"

#include "kernels/gemm/gemm_host.hpp"
#include "kernels/host.hpp"
#include "runtime/kernel.hpp"

namespace gpk {

extern const Image image_gemm_wgmma_bfloat16_sm90, image_gemm_wgmma_float16_sm90, image_gemm_wgmma_tf32_sm90,
    image_gemm_wgmma_int8_sm90, image_gemm_wgmma_e4m3_sm90, image_gemm_wgmma_e5m2_sm90;

namespace {

template <class T, class Out>
void twin(const GemmWgmmaParams& p) {
    kernels::gemm_host<T, Out>(p.problem);
}

}  // namespace

const Kernel& gemm_kernel(GemmWgmmaKernel which) {
#define GPK_X(T, type, tile, layout, a, b, Out, suffix, sums)          \
    Kernel({.name = "gemm_wgmma_" #type "_" #tile "_" #layout #suffix, \
            .image = &image_gemm_wgmma_##type##_sm90,                  \
            .twin = kernels::twin<GemmWgmmaParams, twin<T, Out>>,      \
            .max_shared_bytes = wgmma_shared_bytes(wgmma_tile_##tile), \
            .waits_for_predecessor = true}),
    static const Kernel table[] = {GPK_WGMMA_KERNELS(GPK_X)};
#undef GPK_X
    return table[static_cast<int>(which)];
}

}  // namespace gpk
