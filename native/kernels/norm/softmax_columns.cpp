#include "kernels/norm/softmax_columns.hpp"

#include <algorithm>
#include <cmath>

#include "kernels/floats.hpp"
#include "kernels/host.hpp"

namespace gpk {
extern const Image image_softmax_columns;
}

namespace gpk::kernels {

namespace {

// Some neighbouring columns at a time, so that whole cache lines are used.
template <class T>
void softmax_columns_host(const SoftmaxColumnsParams& p) {
    constexpr std::int64_t kWidth = 64;
    const std::int64_t across = (p.inner + kWidth - 1) / kWidth;
    parallel_for(p.outer * across, 1 + 4096 / (p.n * kWidth), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t id = begin; id < end; ++id) {
            const std::int64_t column = id % across * kWidth, width = std::min(kWidth, p.inner - column);
            const std::int64_t first = id / across * p.n * p.inner + column;
            const T* x = static_cast<const T*>(p.x) + first;
            T* y = static_cast<T*>(p.y) + first;
            float highest[kWidth];
            double sum[kWidth] = {};
            std::fill_n(highest, width, -INFINITY);
            for (std::int64_t k = 0; k < p.n; ++k) {
                for (std::int64_t i = 0; i < width; ++i) {
                    const float value = static_cast<float>(x[k * p.inner + i]);
                    highest[i] = value > highest[i] || std::isnan(value) ? value : highest[i];
                }
            }
            for (std::int64_t k = 0; k < p.n; ++k) {
                for (std::int64_t i = 0; i < width; ++i) {
                    sum[i] += std::exp(static_cast<float>(x[k * p.inner + i]) - highest[i]);
                }
            }
            for (std::int64_t k = 0; k < p.n; ++k) {
                for (std::int64_t i = 0; i < width; ++i) {
                    const float numerator = std::exp(static_cast<float>(x[k * p.inner + i]) - highest[i]);
                    y[k * p.inner + i] = T(numerator / static_cast<float>(sum[i]));
                }
            }
        }
    });
}

#define X(suffix, T)                                                              \
    Kernel(KernelDef{.name = "softmax_columns_" #suffix,                          \
                     .image = &image_softmax_columns,                             \
                     .twin = twin<SoftmaxColumnsParams, softmax_columns_host<T>>, \
                     .waits_for_predecessor = true}),
const Kernel kKernels[] = {GPK_FLOAT_TYPES(X)};
#undef X

}  // namespace

const Kernel& softmax_columns(DType dtype) { return kKernels[float_index(dtype)]; }

}  // namespace gpk::kernels
