#include "kernels/attention/kv_append.hpp"

#include <algorithm>

#include "kernels/attention/rope_host.hpp"
#include "kernels/floats.hpp"
#include "kernels/host.hpp"

namespace gpk {
extern const Image image_kv_append;
}

namespace gpk::kernels {

namespace {

template <class T>
void append_token(const KvAppendParams& p, std::int64_t token) {
    const std::int64_t position = *p.position + token;
    const RopeAngles angles(p.rope, static_cast<float>(position));
    for (std::int64_t head = 0; head < p.heads; ++head) {
        T* q = static_cast<T*>(p.q) + token * p.q_stride + head * p.d;
        rotate_head(q, q, p.d, angles);
    }
    if (position < 0 || position >= p.capacity) return;
    for (std::int64_t head = 0; head < p.kv_heads; ++head) {
        rotate_head(static_cast<const T*>(p.k) + token * p.k_stride + head * p.d,
                    static_cast<T*>(p.keys) + head * p.key_head_stride + position * p.d, p.d, angles);
        std::copy_n(static_cast<const T*>(p.v) + token * p.v_stride + head * p.d, p.d,
                    static_cast<T*>(p.values) + head * p.value_head_stride + position * p.d);
    }
}

template <class T>
void kv_append_host(const KvAppendParams& p) {
    parallel_for(p.tokens, 8, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t token = begin; token < end; ++token) append_token<T>(p, token);
    });
}

#define X(suffix, T)                                                  \
    Kernel(KernelDef{.name = "kv_append_" #suffix,                    \
                     .image = &image_kv_append,                       \
                     .twin = twin<KvAppendParams, kv_append_host<T>>, \
                     .waits_for_predecessor = true}),
const Kernel kKernels[] = {GPK_FLOAT_TYPES(X)};
#undef X

}  // namespace

const Kernel& kv_append(DType dtype) { return kKernels[float_index(dtype)]; }

}  // namespace gpk::kernels
