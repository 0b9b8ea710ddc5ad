#include "kernels/gemm/gemm_grouped.hpp"

#include <algorithm>
#include <vector>

#include "kernels/gemm/gate_host.hpp"
#include "kernels/gemm/gemm_host.hpp"
#include "kernels/gemm/gemm_mma.hpp"
#include "kernels/host.hpp"
#include "runtime/kernel.hpp"

namespace gpk {

extern const Image image_gemm_grouped, image_gemm_grouped_bfloat16_sm90, image_gemm_grouped_float16_sm90;

namespace {

// One expert after the other.
template <class T>
void grouped_host(const GroupedProblem& p) {
    const std::int64_t weight_rows = p.gated != 0 ? 2 * p.n : p.n;
    std::vector<float> both;
    for (std::int64_t expert = 0; expert < p.experts; ++expert) {
        const auto inside = [&](std::int64_t offset, std::int64_t least) {
            return std::min(std::max(offset, least), p.rows);
        };
        const std::int64_t begin = p.offsets == nullptr ? 0 : inside(p.offsets[expert], 0);
        const std::int64_t end = p.offsets == nullptr ? p.rows : inside(p.offsets[expert + 1], begin);
        if (begin == end) continue;
        GemmProblem part = {};
        part.a = static_cast<const T*>(p.a) + begin * p.a_row;
        part.b = static_cast<const T*>(p.weight) + expert * weight_rows * p.k;
        part.m = end - begin, part.n = weight_rows, part.k = p.k;
        part.a_row = p.a_row, part.a_col = 1;
        part.b_row = 1, part.b_col = p.k;
        part.c_row = weight_rows, part.c_col = 1;
        part.batches = 1;
        T* c = static_cast<T*>(p.c) + begin * p.n;
        if (p.gated == 0) {
            part.c = c;
            kernels::gemm_host<T>(part);
        } else {
            both.resize(static_cast<std::size_t>(part.m * weight_rows));
            part.c = both.data();
            kernels::gemm_host<T, float>(part);
            kernels::gate_rows(p.glu, both.data(), part.m, p.n, c, p.n);
        }
    }
}

template <class T>
void wgmma_twin(const GemmGroupedParams& p) {
    grouped_host<T>(p.problem);
}

}  // namespace

const Kernel& gemm_kernel(GroupedWgmmaKernel which) {
#define GPK_X(T, type, tile, gated, suffix)                                \
    Kernel({.name = "gemm_grouped_wgmma_" #type "_" #tile #suffix,         \
            .image = &image_gemm_grouped_##type##_sm90,                    \
            .twin = kernels::twin<GemmGroupedParams, wgmma_twin<T>>,       \
            .max_shared_bytes = grouped_shared_bytes(grouped_tile_##tile), \
            .waits_for_predecessor = true}),
    static const Kernel table[] = {GPK_GROUPED_BFLOAT16(GPK_X) GPK_GROUPED_FLOAT16(GPK_X)};
#undef GPK_X
    return table[static_cast<int>(which)];
}

const Kernel& gemm_kernel(GroupedKernel which) {
#define GPK_X(symbol, T, tile, ...)                                                            \
    Kernel({.name = #symbol,                                                                   \
            .image = &image_gemm_grouped,                                                      \
            .twin = kernels::twin<GroupedProblem, grouped_host<T>> __VA_OPT__(, ) __VA_ARGS__, \
            .waits_for_predecessor = true}),
#define GPK_MMA(symbol, T, tile) GPK_X(symbol, T, tile, .max_shared_bytes = mma_shared_bytes(tile))
    static const Kernel table[] = {GPK_GROUPED_MMA(GPK_MMA) GPK_GROUPED_PLAIN(GPK_X)};
#undef GPK_MMA
#undef GPK_X
    return table[static_cast<int>(which)];
}

}  // namespace gpk
