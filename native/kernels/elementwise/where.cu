#include "kernels/elementwise/where.hpp"

#include "kernels/device.cuh"

namespace gpk::kernels {

template <class W>
__device__ __forceinline__ void where_loop(const WhereParams& p) {
    const W a_value = static_cast<W>(p.a_bits), b_value = static_cast<W>(p.b_bits);
    const W *a = static_cast<const W*>(p.a), *b = static_cast<const W*>(p.b);
    for (std::int64_t i = global_thread(); i < p.layout.count; i += grid_threads()) {
        std::int64_t at[4];
        p.layout.offsets(i, at);
        W value;
        if (p.condition[at[1]] != 0) {
            value = a != nullptr ? a[at[2]] : a_value;
        } else {
            value = b != nullptr ? b[at[3]] : b_value;
        }
        static_cast<W*>(p.out)[at[0]] = value;
    }
}

extern "C" __global__ void where_strided(const __grid_constant__ WhereParams p) {
    wait_for_predecessor();
    switch (p.element_bytes) {
        case 1: where_loop<std::uint8_t>(p); break;
        case 2: where_loop<std::uint16_t>(p); break;
        case 4: where_loop<std::uint32_t>(p); break;
        case 8: where_loop<std::uint64_t>(p); break;
    }
}

}  // namespace gpk::kernels
