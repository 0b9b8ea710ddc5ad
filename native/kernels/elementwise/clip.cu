#include "kernels/device.cuh"
#include "kernels/elementwise/clip_value.hpp"

namespace gpk::kernels {

#define GPK_KERNEL(name, C)                                                                      \
    extern "C" __global__ void clip_##name(const __grid_constant__ ClipParams p) {               \
        wait_for_predecessor();                                                                  \
        const Bounds<C> bounds(p);                                                               \
        for (std::int64_t i = global_thread(); i < p.layout.count; i += grid_threads()) {        \
            std::int64_t at[2];                                                                  \
            p.layout.offsets(i, at);                                                             \
            store_same<C>(p.dtype, p.out, at[0], bounds.apply(p, load<C>(p.dtype, p.x, at[1]))); \
        }                                                                                        \
    }
GPK_COMPUTE_TYPES(GPK_KERNEL)

}  // namespace gpk::kernels
