#include "kernels/gemm/gemv_gated.hpp"

#include <vector>

#include "kernels/gemm/gate_host.hpp"
#include "kernels/gemm/gemv_host.hpp"
#include "kernels/host.hpp"
#include "runtime/kernel.hpp"

namespace gpk {

extern const Image image_gemv_gated_sm90;

namespace {

template <class T>
void gemv_gated_host(const GemvGatedParams& params) {
    std::vector<T> rows;
    const GemmProblem p = kernels::normalized(params.problem, rows);
    GemmProblem both = p;
    std::vector<float> sums(static_cast<std::size_t>(p.m * 2 * p.n));
    both.n = 2 * p.n;
    both.c = sums.data();
    both.c_row = both.n, both.c_col = 1;
    kernels::gemv_rows_host<T, float>(both);
    kernels::gate_rows(params.glu, sums.data(), p.m, p.n, static_cast<T*>(p.c), p.c_row);
}

}  // namespace

const Kernel& gemm_kernel(GemvGatedKernel which) {
#define GPK_X(T, type, form, tiles, held)                               \
    Kernel({.name = "gemv_gated_" #type "_" #form,                      \
            .image = &image_gemv_gated_sm90,                            \
            .twin = kernels::twin<GemvGatedParams, gemv_gated_host<T>>, \
            .max_shared_bytes = kAllSharedBytes,                        \
            .waits_for_predecessor = true}),
    static const Kernel table[] = {GPK_GEMV_GATED(GPK_X)};
#undef GPK_X
    return table[static_cast<int>(which)];
}

}  // namespace gpk
