#include "kernels/norm/layer_norm.hpp"

#include <cmath>

#include "kernels/norm/rows_host.hpp"

namespace gpk {
extern const Image image_layer_norm;
}

namespace gpk::kernels {

namespace {

template <class T>
void layer_norm_host(const NormParams& p) {
    const T* bias = static_cast<const T*>(p.bias);
    const auto n = static_cast<double>(p.n);
    for_host_rows<T>(p, [&](const T* source, const T* weight, T* y) {
        double sum = 0, squares = 0;
        for (std::int64_t i = 0; i < p.n; ++i) sum += static_cast<float>(source[i]);
        const double mean = sum / n;
        for (std::int64_t i = 0; i < p.n; ++i) {
            const double difference = static_cast<float>(source[i]) - mean;
            squares += difference * difference;
        }
        const float scale = 1.0f / std::sqrt(static_cast<float>(squares / n) + p.eps);
        for (std::int64_t i = 0; i < p.n; ++i) {
            float normal = (static_cast<float>(source[i]) - static_cast<float>(mean)) * scale;
            if (weight != nullptr) normal *= static_cast<float>(weight[i]);
            if (bias != nullptr) normal += static_cast<float>(bias[i]);
            y[i] = T(normal);
        }
    });
}

#define GPK_VARIANT(name_, dtype, T, elements, accesses)            \
    {Kernel(KernelDef{.name = #name_,                               \
                      .image = &image_layer_norm,                   \
                      .twin = twin<NormParams, layer_norm_host<T>>, \
                      .waits_for_predecessor = true}),              \
     DType::dtype, elements, accesses},
const RowVariant variants[] = {
#define X(suffix, dtype, T, elements, accesses) GPK_VARIANT(layer_norm_##suffix, dtype, T, elements, accesses)
    GPK_ROW_VARIANTS(X) GPK_LONG_ROW_VARIANTS(X)
#undef X
};
const RowVariant residual_variants[] = {
#define X(suffix, dtype, T, elements, accesses) \
    GPK_VARIANT(layer_norm_residual_##suffix, dtype, T, elements, accesses)
    GPK_ROW_VARIANTS(X) GPK_LONG_ROW_VARIANTS(X)
#undef X
};
#undef GPK_VARIANT

}  // namespace

RowPlan layer_norm(const RowShape& shape, bool residual) {
    return residual ? plan_rows(residual_variants, shape, {4, 512, kMostResidualThreads})
                    : plan_rows(variants, shape, {4, 512, kMostRowThreads});
}

}  // namespace gpk::kernels
