#include "kernels/norm/rms_norm.hpp"

#include <cmath>

#include "kernels/norm/rows_host.hpp"

namespace gpk {
extern const Image image_rms_norm;
}

namespace gpk::kernels {

namespace {

template <class T>
void rms_norm_host(const NormParams& p) {
    for_host_rows<T>(p, [&](const T* source, const T* weight, T* y) {
        double squares = 0;
        for (std::int64_t i = 0; i < p.n; ++i) {
            squares += static_cast<double>(static_cast<float>(source[i])) * static_cast<float>(source[i]);
        }
        const float mean = static_cast<float>(squares / static_cast<double>(p.n));
        const float scale = 1.0f / std::sqrt(mean + p.eps);
        for (std::int64_t i = 0; i < p.n; ++i) {
            const float normal = static_cast<float>(source[i]) * scale;
            y[i] = T(weight == nullptr ? normal : normal * static_cast<float>(weight[i]));
        }
    });
}

#define GPK_VARIANT(name_, dtype, T, elements, accesses)          \
    {Kernel(KernelDef{.name = #name_,                             \
                      .image = &image_rms_norm,                   \
                      .twin = twin<NormParams, rms_norm_host<T>>, \
                      .waits_for_predecessor = true}),            \
     DType::dtype, elements, accesses},
const RowVariant variants[] = {
#define X(suffix, dtype, T, elements, accesses) GPK_VARIANT(rms_norm_##suffix, dtype, T, elements, accesses)
    GPK_ROW_VARIANTS(X) GPK_LONG_ROW_VARIANTS(X)
#undef X
};
const RowVariant residual_variants[] = {
#define X(suffix, dtype, T, elements, accesses) \
    GPK_VARIANT(rms_norm_residual_##suffix, dtype, T, elements, accesses)
    GPK_ROW_VARIANTS(X) GPK_LONG_ROW_VARIANTS(X)
#undef X
};
#undef GPK_VARIANT

}  // namespace

RowPlan rms_norm(const RowShape& shape, bool residual) {
    return residual ? plan_rows(residual_variants, shape, {2, 512, kMostResidualThreads})
                    : plan_rows(variants, shape, {2, 512, kMostRowThreads});
}

}  // namespace gpk::kernels
