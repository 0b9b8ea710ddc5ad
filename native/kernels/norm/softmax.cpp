#include "kernels/norm/softmax.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/host.hpp"

namespace gpk {
extern const Image image_softmax;
}

namespace gpk::kernels {

namespace {

template <class T>
void softmax_host(const SoftmaxParams& p) {
    parallel_for(p.rows, 1 + 4096 / (p.n + 1), [&](std::int64_t begin, std::int64_t end) {
        std::vector<float> numerators(static_cast<std::size_t>(p.n));
        for (std::int64_t row = begin; row < end; ++row) {
            const T* x = static_cast<const T*>(p.x) + row * p.n;
            T* y = static_cast<T*>(p.y) + row * p.n;
            float highest = -INFINITY;
            for (std::int64_t i = 0; i < p.n; ++i) {
                const float value = static_cast<float>(x[i]);
                highest = value > highest || std::isnan(value) ? value : highest;
                if (std::isnan(highest)) break;
            }
            double sum = 0;
            for (std::int64_t i = 0; i < p.n; ++i) {
                const auto at = static_cast<std::size_t>(i);
                numerators[at] = std::exp(static_cast<float>(x[i]) - highest);
                sum += numerators[at];
            }
            for (std::int64_t i = 0; i < p.n; ++i) {
                y[i] = T(numerators[static_cast<std::size_t>(i)] / static_cast<float>(sum));
            }
        }
    });
}

const RowVariant variants[] = {
#define X(suffix, dtype, T, elements, accesses)                     \
    {Kernel(KernelDef{.name = "softmax_" #suffix,                   \
                      .image = &image_softmax,                      \
                      .twin = twin<SoftmaxParams, softmax_host<T>>, \
                      .waits_for_predecessor = true}),              \
     DType::dtype, elements, accesses},
    GPK_ROW_VARIANTS(X)
#undef X
};

}  // namespace

RowPlan softmax(const RowShape& shape) { return plan_rows(variants, shape, {2, 512, kMostRowThreads}); }

}  // namespace gpk::kernels
