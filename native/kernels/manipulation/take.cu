#include "kernels/manipulation/take.hpp"

#include "kernels/device.cuh"

namespace gpk::kernels {

template <class W>
__device__ __forceinline__ void take_loop(const TakeParams& p) {
    for (std::int64_t i = global_thread(); i < p.layout.count; i += grid_threads()) {
        std::int64_t at[2];
        p.layout.offsets(i, at);
        const std::int64_t place = axis_place(p.index_dtype, p.indices, at[1], p.extent);
        static_cast<W*>(p.out)[i] = place >= 0 ? static_cast<const W*>(p.x)[at[0] + place * p.inner] : W{};
    }
}

extern "C" __global__ void take_elements(const __grid_constant__ TakeParams p) {
    wait_for_predecessor();
    switch (p.unit_bytes) {
        case 1: take_loop<std::uint8_t>(p); break;
        case 2: take_loop<std::uint16_t>(p); break;
        case 4: take_loop<std::uint32_t>(p); break;
        case 8: take_loop<uint2>(p); break;
        case 16: take_loop<uint4>(p); break;
    }
}

}  // namespace gpk::kernels
