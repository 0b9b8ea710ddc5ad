#include "kernels/attention/rope.cuh"
#include "kernels/device.cuh"
#include "kernels/floats.hpp"

namespace gpk::kernels {

template <class T>
__device__ __forceinline__ void rope_kernel(const RopeParams& p) {
    wait_for_predecessor();
    const std::int64_t units = p.d / 2;
    const std::int32_t position = *p.position;
    for (std::int64_t i = global_thread(); i < p.tokens * p.heads * units; i += grid_threads()) {
        const std::int64_t token = i / (p.heads * units), head = i / units % p.heads;
        const T* x = static_cast<const T*>(p.x) + token * p.x_token_stride + head * p.x_head_stride;
        T* y = static_cast<T*>(p.y) + token * p.y_token_stride + head * p.y_head_stride;
        rotate_pair(x, y, i % units, p.table, static_cast<float>(position + token));
    }
}

#define X(suffix, T) \
    extern "C" __global__ void rope_##suffix(const __grid_constant__ RopeParams p) { rope_kernel<T>(p); }
GPK_FLOAT_TYPES(X)
#undef X

}  // namespace gpk::kernels
