#include "kernels/experts/combine_experts.hpp"

#include <cmath>
#include <vector>

#include "kernels/floats.hpp"
#include "kernels/host.hpp"

namespace gpk {
extern const Image image_combine_experts;
}

namespace gpk::kernels {

namespace {

template <class T>
void combine_experts_host(const CombineExpertsParams& p) {
    parallel_for(p.tokens, 1, [&](std::int64_t begin, std::int64_t end) {
        std::vector<float> sums(static_cast<std::size_t>(p.n));
        for (std::int64_t token = begin; token < end; ++token) {
            std::fill(sums.begin(), sums.end(), 0.0f);
            for (std::int32_t i = 0; i < p.top; ++i) {
                const std::int64_t row = p.places[token * p.top + i];
                if (row < 0 || row >= p.rows) continue;
                const float weight = p.weights[token * p.top + i];
                const T* y = static_cast<const T*>(p.y) + row * p.n;
                for (std::size_t j = 0; j < sums.size(); ++j)
                    sums[j] = std::fma(weight, convert<float>(y[j]), sums[j]);
            }
            T* out = static_cast<T*>(p.out) + token * p.n;
            const T* residual = static_cast<const T*>(p.residual);
            for (std::size_t j = 0; j < sums.size(); ++j) {
                const float add = residual == nullptr
                                      ? 0
                                      : convert<float>(residual[token * p.n + static_cast<std::int64_t>(j)]);
                out[j] = convert<T>(sums[j] + add);
            }
        }
    });
}

#define X(suffix, T)                                                              \
    Kernel(KernelDef{.name = "combine_experts_" #suffix,                          \
                     .image = &image_combine_experts,                             \
                     .twin = twin<CombineExpertsParams, combine_experts_host<T>>, \
                     .waits_for_predecessor = true}),
const Kernel kKernels[] = {GPK_FLOAT_TYPES(X)};
#undef X

}  // namespace

const Kernel& combine_experts(DType dtype) { return kKernels[float_index(dtype)]; }

}  // namespace gpk::kernels
