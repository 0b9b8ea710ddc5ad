#include "kernels/norm/rms_norm.hpp"

#include <cmath>

#include "kernels/floats.hpp"
#include "kernels/host.hpp"

namespace gpk {
extern const Image image_rms_norm;
}

namespace gpk::kernels {

namespace {

template <class T>
void rms_norm_host(const RmsNormParams& p) {
    parallel_for(p.rows, 1 + 16384 / (p.n + 1), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t row = begin; row < end; ++row) {
            const T* x = static_cast<const T*>(p.x) + row * p.n;
            T* residual = p.residual == nullptr ? nullptr : static_cast<T*>(p.residual) + row * p.n;
            const T* weight = static_cast<const T*>(p.weight);
            T* y = static_cast<T*>(p.y) + row * p.n;
            double squares = 0;
            for (std::int64_t i = 0; i < p.n; ++i) {
                float value = static_cast<float>(x[i]);
                if (residual != nullptr) {
                    residual[i] = T(value + static_cast<float>(residual[i]));
                    value = static_cast<float>(residual[i]);
                }
                squares += static_cast<double>(value) * value;
            }
            const float mean = static_cast<float>(squares / static_cast<double>(p.n));
            const float scale = 1.0f / std::sqrt(mean + p.eps);
            const T* source = residual != nullptr ? residual : x;
            for (std::int64_t i = 0; i < p.n; ++i) {
                y[i] = T(static_cast<float>(source[i]) * scale * static_cast<float>(weight[i]));
            }
        }
    });
}

#define X(suffix, T)                                                \
    Kernel(KernelDef{.name = "rms_norm_" #suffix,                   \
                     .image = &image_rms_norm,                      \
                     .twin = twin<RmsNormParams, rms_norm_host<T>>, \
                     .waits_for_predecessor = true}),
const Kernel kKernels[] = {GPK_FLOAT_TYPES(X)};
#undef X

}  // namespace

const Kernel& rms_norm(DType dtype) { return kKernels[float_index(dtype)]; }

}  // namespace gpk::kernels
