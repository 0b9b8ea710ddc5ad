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
    const std::int64_t rows = p.batch * p.tokens;
    parallel_for(rows, 1 + 4096 / (p.heads * p.d + 1), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t row = begin; row < end; ++row) {
            const std::int64_t batch = row / p.tokens, token = row % p.tokens;
            const RopeAngles angles(p.table, rope_position(p, token));
            const T* x = static_cast<const T*>(p.x) + batch * p.x_batch_stride + token * p.x_token_stride;
            T* y = static_cast<T*>(p.y) + batch * p.y_batch_stride + token * p.y_token_stride;
            for (std::int64_t head = 0; head < p.heads; ++head)
                rotate_head(x + head * p.x_head_stride, y + head * p.y_head_stride, p.d, angles);
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
