#include "kernels/attention/rope.cuh"
#include "kernels/device.cuh"
#include "kernels/floats.hpp"

namespace gpk::kernels {

// 16 bytes of either half of a head at a time.
template <class T>
__device__ __forceinline__ void rope_vectors(const RopeParams& p) {
    constexpr int N = 16 / sizeof(T);
    using Vec = Vector<T, N>;
    const std::int64_t units = p.table.pairs / N,
                       groups = (p.heads + p.heads_per_thread - 1) / p.heads_per_thread;
    for (std::int64_t i = global_thread(); i < p.batch * p.tokens * groups * units; i += grid_threads()) {
        const std::int64_t first = i % units * N, row = i / units / groups;
        const std::int64_t batch = row / p.tokens, token = row % p.tokens;
        const float position = rope_position(p, token);
        float sine[N], cosine[N];
#pragma unroll
        for (int j = 0; j < N; ++j) {
            sincosf(position * p.table.inv_freq[first + j], &sine[j], &cosine[j]);
            sine[j] *= p.table.factor;
            cosine[j] *= p.table.factor;
        }
        const T* x = static_cast<const T*>(p.x) + batch * p.x_batch_stride + token * p.x_token_stride + first;
        T* y = static_cast<T*>(p.y) + batch * p.y_batch_stride + token * p.y_token_stride + first;
        const std::int64_t begin = i / units % groups * p.heads_per_thread;
        const std::int64_t end = begin + p.heads_per_thread < p.heads ? begin + p.heads_per_thread : p.heads;
#pragma unroll 4
        for (std::int64_t head = begin; head < end; ++head) {
            const T* from = x + head * p.x_head_stride;
            T* to = y + head * p.y_head_stride;
            Vec a = *reinterpret_cast<const Vec*>(from),
                b = *reinterpret_cast<const Vec*>(from + p.table.pairs);
#pragma unroll
            for (int j = 0; j < N; ++j) {
                const float u = float(a.values[j]), v = float(b.values[j]);
                a.values[j] = T(u * cosine[j] - v * sine[j]);
                b.values[j] = T(v * cosine[j] + u * sine[j]);
            }
            *reinterpret_cast<Vec*>(to) = a;
            *reinterpret_cast<Vec*>(to + p.table.pairs) = b;
        }
    }
}

template <class T>
__device__ __forceinline__ void rope_kernel(const RopeParams& p) {
    wait_for_predecessor();
    if (p.heads_per_thread > 0) return rope_vectors<T>(p);
    const std::int64_t units = p.d / 2;
    for (std::int64_t i = global_thread(); i < p.batch * p.tokens * p.heads * units; i += grid_threads()) {
        const std::int64_t row = i / (p.heads * units), head = i / units % p.heads;
        const std::int64_t batch = row / p.tokens, token = row % p.tokens;
        const T* x = static_cast<const T*>(p.x) + batch * p.x_batch_stride + token * p.x_token_stride +
                     head * p.x_head_stride;
        T* y = static_cast<T*>(p.y) + batch * p.y_batch_stride + token * p.y_token_stride +
               head * p.y_head_stride;
        rotate_pair(x, y, i % units, p.table, rope_position(p, token));
    }
}

#define X(suffix, T) \
    extern "C" __global__ void rope_##suffix(const __grid_constant__ RopeParams p) { rope_kernel<T>(p); }
GPK_FLOAT_TYPES(X)
#undef X

}  // namespace gpk::kernels
