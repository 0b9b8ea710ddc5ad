#include "kernels/attention/kv_append.hpp"

#include "kernels/attention/rope.cuh"
#include "kernels/device.cuh"
#include "kernels/floats.hpp"

namespace gpk::kernels {

template <class T>
__device__ __forceinline__ void kv_append_kernel(const KvAppendParams& p) {
    wait_for_predecessor();
    const std::int64_t units = p.d / 2, rows = p.heads + 2 * p.kv_heads;
    const std::int64_t base = *p.position;
    for (std::int64_t i = global_thread(); i < p.tokens * rows * units; i += grid_threads()) {
        const std::int64_t token = i / (rows * units), unit = i % units;
        std::int64_t row = i / units % rows;
        const std::int64_t position = base + token;
        if (row < p.heads) {
            T* q = static_cast<T*>(p.q) + token * p.q_stride + row * p.d;
            rotate_pair(q, q, unit, p.rope, static_cast<float>(position));
            continue;
        }
        if (position < 0 || position >= p.capacity) continue;
        row -= p.heads;
        if (row < p.kv_heads) {
            const T* k = static_cast<const T*>(p.k) + token * p.k_stride + row * p.d;
            T* key = static_cast<T*>(p.keys) + row * p.key_head_stride + position * p.d;
            rotate_pair(k, key, unit, p.rope, static_cast<float>(position));
        } else {
            row -= p.kv_heads;
            const T* v = static_cast<const T*>(p.v) + token * p.v_stride + row * p.d;
            T* value = static_cast<T*>(p.values) + row * p.value_head_stride + position * p.d;
            value[2 * unit] = v[2 * unit];
            value[2 * unit + 1] = v[2 * unit + 1];
        }
    }
}

#define X(suffix, T)                                                                          \
    extern "C" __global__ void kv_append_##suffix(const __grid_constant__ KvAppendParams p) { \
        kv_append_kernel<T>(p);                                                               \
    }
GPK_FLOAT_TYPES(X)
#undef X

}  // namespace gpk::kernels
