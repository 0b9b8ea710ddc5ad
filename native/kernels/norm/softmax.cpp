#include "kernels/norm/softmax.hpp"

#include <cmath>

#include "kernels/floats.hpp"
#include "kernels/host.hpp"

namespace gpk {
extern const Image image_softmax;
}

namespace gpk::kernels {

namespace {

template <class T>
void softmax_host(const SoftmaxParams& p) {
    parallel_for(p.rows, 1 + 4096 / (p.n + 1), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t row = begin; row < end; ++row) {
            const T* x = static_cast<const T*>(p.x) + row * p.n;
            T* y = static_cast<T*>(p.y) + row * p.n;
            float highest = -INFINITY;
            for (std::int64_t i = 0; i < p.n; ++i) {
                const float value = static_cast<float>(x[i]);
                if (!(value <= highest)) highest = value;
                if (std::isnan(highest)) break;
            }
            double sum = 0;
            for (std::int64_t i = 0; i < p.n; ++i) sum += std::exp(static_cast<float>(x[i]) - highest);
            for (std::int64_t i = 0; i < p.n; ++i) {
                const float numerator = std::exp(static_cast<float>(x[i]) - highest);
                y[i] = T(numerator / static_cast<float>(sum));
            }
        }
    });
}

#define X(suffix, T)                                               \
    Kernel(KernelDef{.name = "softmax_" #suffix,                   \
                     .image = &image_softmax,                      \
                     .twin = twin<SoftmaxParams, softmax_host<T>>, \
                     .waits_for_predecessor = true}),
const Kernel kKernels[] = {GPK_FLOAT_TYPES(X)};
#undef X

}  // namespace

const Kernel& softmax(DType dtype) { return kKernels[float_index(dtype)]; }

}  // namespace gpk::kernels
