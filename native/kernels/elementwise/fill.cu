#include "kernels/elementwise/fill.hpp"

#include "kernels/device.cuh"

namespace gpk::kernels {

template <class W>
__device__ __forceinline__ void fill_loop(const FillParams& p) {
    W value;
    memcpy(&value, p.value, sizeof(W));
    for (std::int64_t i = global_thread(); i < p.layout.count; i += grid_threads()) {
        std::int64_t at[1];
        p.layout.offsets(i, at);
        static_cast<W*>(p.to)[at[0]] = value;
    }
}

extern "C" __global__ void fill_strided(const __grid_constant__ FillParams p) {
    wait_for_predecessor();
    switch (p.element_bytes) {
        case 1: fill_loop<std::uint8_t>(p); break;
        case 2: fill_loop<std::uint16_t>(p); break;
        case 4: fill_loop<std::uint32_t>(p); break;
        case 8: fill_loop<uint2>(p); break;
        case 16: fill_loop<uint4>(p); break;
    }
}

}  // namespace gpk::kernels
