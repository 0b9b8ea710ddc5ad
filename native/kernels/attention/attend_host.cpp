#include "kernels/attention/attend_host.hpp"

#include "kernels/floats.hpp"
#include "kernels/host.hpp"

namespace gpk::kernels {

namespace {

constexpr int kLanes = 16;  // partial sums of a dot product, so that it runs in vectors

template <class T>
[[gnu::always_inline]] inline void score_each(const KeyRange<T>& keys, const T* q, float scale,
                                              float* scores) {
    for (std::int64_t key = 0; key < keys.count; ++key) {
        const T* k = keys.keys + key * keys.key_stride;
        float partial[kLanes] = {};
        std::int64_t i = 0;
        for (; i + kLanes <= keys.d; i += kLanes) {
            for (int lane = 0; lane < kLanes; ++lane) {
                partial[lane] += static_cast<float>(q[i + lane]) * static_cast<float>(k[i + lane]);
            }
        }
        float dot = 0;
        for (; i < keys.d; ++i) dot += static_cast<float>(q[i]) * static_cast<float>(k[i]);
        for (int lane = 0; lane < kLanes; ++lane) dot += partial[lane];
        scores[key] = dot * scale;
    }
}

template <class T>
[[gnu::always_inline]] inline void add_each(const KeyRange<T>& keys, const float* weights, float* acc) {
    for (std::int64_t key = 0; key < keys.count; ++key) {
        const T* v = keys.values + key * keys.value_stride;
        const float weight = weights[key];
        for (std::int64_t i = 0; i < keys.d; ++i) acc[i] += weight * static_cast<float>(v[i]);
    }
}

}  // namespace

#define X(suffix, T)                                                                                     \
    GPK_SIMD void score_keys_##suffix(const KeyRange<T>& keys, const T* q, float scale, float* scores) { \
        score_each<T>(keys, q, scale, scores);                                                           \
    }                                                                                                    \
    GPK_SIMD void add_values_##suffix(const KeyRange<T>& keys, const float* weights, float* acc) {       \
        add_each<T>(keys, weights, acc);                                                                 \
    }                                                                                                    \
    template <>                                                                                          \
    void score_keys<T>(const KeyRange<T>& keys, const T* q, float scale, float* scores) {                \
        score_keys_##suffix(keys, q, scale, scores);                                                     \
    }                                                                                                    \
    template <>                                                                                          \
    void add_values<T>(const KeyRange<T>& keys, const float* weights, float* acc) {                      \
        add_values_##suffix(keys, weights, acc);                                                         \
    }
GPK_FLOAT_TYPES(X)
#undef X

}  // namespace gpk::kernels
