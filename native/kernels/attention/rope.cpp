#include "kernels/attention/rope.hpp"

#include "kernels/attention/rope_host.hpp"
#include "kernels/floats.hpp"
#include "kernels/host.hpp"

namespace gpk {
extern const Image image_rope;
}

namespace gpk::kernels {

namespace {

template <class T>
void rope_host(const RopeParams& p) {
    parallel_for(p.tokens, 1 + 4096 / (p.heads * p.d + 1), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t token = begin; token < end; ++token) {
            const RopeAngles angles(p.table, static_cast<float>(*p.position + token));
            for (std::int64_t head = 0; head < p.heads; ++head) {
                rotate_head(static_cast<const T*>(p.x) + token * p.x_token_stride + head * p.x_head_stride,
                            static_cast<T*>(p.y) + token * p.y_token_stride + head * p.y_head_stride, p.d,
                            angles);
            }
        }
    });
}

#define X(suffix, T)                                         \
    Kernel(KernelDef{.name = "rope_" #suffix,                \
                     .image = &image_rope,                   \
                     .twin = twin<RopeParams, rope_host<T>>, \
                     .waits_for_predecessor = true}),
const Kernel kKernels[] = {GPK_FLOAT_TYPES(X)};
#undef X

}  // namespace

const Kernel& rope(DType dtype) { return kKernels[float_index(dtype)]; }

}  // namespace gpk::kernels
