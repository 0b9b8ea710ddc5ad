#include "kernels/sampling/penalize.hpp"

#include "kernels/floats.hpp"
#include "kernels/host.hpp"

namespace gpk {
extern const Image image_penalize;
}

namespace gpk::kernels {

namespace {

template <class T>
void penalize_host(const PenalizeParams& p) {
    parallel_for(p.rows, 1 + 16384 / (p.n + 1), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t row = begin; row < end; ++row) {
            const Penalties penalties(p, row);
            const T* logits = static_cast<const T*>(p.logits) + row * p.pitch;
            for (std::int64_t i = 0; i < p.n; ++i) {
                const std::int64_t at = row * p.n + i;
                float logit = convert<float>(logits[i]);
                if (p.bias != nullptr) logit += p.bias[row * p.bias_pitch + i];
                const std::int32_t count = p.counts != nullptr ? p.counts[at] : 0;
                p.out[at] = penalties.apply(logit, count, p.prompt != nullptr && p.prompt[at]);
            }
        }
    });
}

#define X(suffix, T)                                                 \
    Kernel(KernelDef{.name = "penalize_" #suffix,                    \
                     .image = &image_penalize,                       \
                     .twin = twin<PenalizeParams, penalize_host<T>>, \
                     .waits_for_predecessor = true}),
const Kernel kKernels[] = {GPK_FLOAT_TYPES(X)};
#undef X

}  // namespace

const Kernel& penalize(DType dtype) { return kKernels[float_index(dtype)]; }

}  // namespace gpk::kernels
