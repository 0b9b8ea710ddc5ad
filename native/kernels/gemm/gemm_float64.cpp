#include "kernels/gemm/gemm_float64.hpp"

#include "kernels/gemm/gemm_host.hpp"
#include "kernels/host.hpp"
#include "runtime/kernel.hpp"

namespace gpk {

extern const Image image_gemm_float64;

const Kernel& gemm_float64() {
    static const Kernel kernel({.name = "gemm_float64",
                                .image = &image_gemm_float64,
                                .twin = kernels::twin<GemmProblem, kernels::gemm_host<double>>,
                                .max_shared_bytes = kGemmFloat64SharedBytes,
                                .waits_for_predecessor = true});
    return kernel;
}

}  // namespace gpk
