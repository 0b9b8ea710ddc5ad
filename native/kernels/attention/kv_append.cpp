#include "kernels/attention/kv_append.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <vector>

#include "kernels/attention/kv_append_host.hpp"
#include "kernels/attention/rope_host.hpp"
#include "kernels/floats.hpp"
#include "kernels/host.hpp"

namespace gpk {
extern const Image image_kv_append;
}

namespace gpk::kernels {

namespace {

// The head as it was, or normalised.
template <class T>
std::vector<float> normalized(const KvAppendParams& p, const T* x, const T* weights) {
    std::vector<float> y(x, x + p.d);
    if (weights == nullptr) return y;
    float squares = 0;
    for (const float each : y) squares += each * each;
    const float scale = 1.0f / std::sqrt(squares / static_cast<float>(p.d) + p.norm_eps);
    for (std::size_t i = 0; i < y.size(); ++i) y[i] *= scale * static_cast<float>(weights[i]);
    return y;
}

template <class T, class Stored>
void append_token(const KvAppendParams& p, std::int64_t batch, std::int64_t token) {
    const std::int64_t position = std::int64_t{p.positions[batch]} + token;
    const RopeAngles angles(p.rope, static_cast<float>(position));
    for (std::int64_t head = 0; head < p.heads; ++head) {
        T* q = static_cast<T*>(p.q) + batch * p.q_batch_stride + token * p.q_token_stride + head * p.d;
        rotate_head(normalized(p, q, static_cast<const T*>(p.q_norm)).data(), q, p.d, angles);
    }
    if (position < 0 || position >= p.capacity) return;
    const std::int64_t k_token = batch * p.k_batch_stride + token * p.k_token_stride;
    const std::int64_t v_token = batch * p.v_batch_stride + token * p.v_token_stride;
    for (std::int64_t head = 0; head < p.kv_heads; ++head) {
        const T* k = static_cast<const T*>(p.k) + k_token + head * p.d;
        Stored* key = static_cast<Stored*>(p.keys) + batch * p.key_batch_stride + head * p.key_head_stride +
                      position * p.d;
        std::vector<float> turned = normalized(p, k, static_cast<const T*>(p.k_norm));
        rotate_head(turned.data(), turned.data(), p.d, angles);
        std::transform(turned.begin(), turned.end(), key, to_cache<Stored>);
        Stored* value = static_cast<Stored*>(p.values) + batch * p.value_batch_stride +
                        head * p.value_head_stride + position * p.d;
        const T* v = static_cast<const T*>(p.v) + v_token + head * p.d;
        std::transform(v, v + p.d, value, [](T x) { return to_cache<Stored>(static_cast<float>(x)); });
    }
}

}  // namespace

template <class T, class Stored>
void kv_append_host(const KvAppendParams& p) {
    parallel_for(p.batch * p.tokens, 8, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) append_token<T, Stored>(p, i / p.tokens, i % p.tokens);
    });
}
#define X(suffix, T, stored, Stored) template void kv_append_host<T, Stored>(const KvAppendParams& p);
GPK_KV_APPEND(X)
#undef X

namespace {

#define X(suffix, T, stored, Stored)                                          \
    Kernel(KernelDef{.name = "kv_append_" #suffix #stored,                    \
                     .image = &image_kv_append,                               \
                     .twin = twin<KvAppendParams, kv_append_host<T, Stored>>, \
                     .waits_for_predecessor = true}),
const Kernel kKernels[] = {GPK_KV_APPEND(X)};
#undef X

}  // namespace

const Kernel& kv_append(DType dtype, DType cache) {
    constexpr int kTypes = std::size(kKernels) / 2;
    return kKernels[float_index(dtype) + (cache == dtype ? 0 : kTypes)];
}

}  // namespace gpk::kernels
