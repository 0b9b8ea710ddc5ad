#include "kernels/manipulation/take.hpp"

#include "kernels/device.cuh"

namespace gpk::kernels {

template <class W>
__device__ __forceinline__ void take_row(const TakeParams& p) {
    constexpr int kInFlight = 4;
    const int lane = threadIdx.x % p.lanes, slots = kTakeThreads / p.lanes;
    const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * slots + threadIdx.x / p.lanes;
    if (row >= p.outer * p.count) return;
    const std::int64_t o = p.outer == 1 ? 0 : row / p.count, place = axis_place(p, row - o * p.count);
    const W* x = static_cast<const W*>(p.x) + (o * p.extent + place) * p.inner;
    W* out = static_cast<W*>(p.out) + row * p.inner;
    if (place < 0) {
        for (std::int64_t i = lane; i < p.inner; i += p.lanes) out[i] = W{};
        return;
    }
    std::int64_t i = lane;
    for (; i + (kInFlight - 1) * p.lanes < p.inner; i += kInFlight * p.lanes) {
        W units[kInFlight];
#pragma unroll
        for (int k = 0; k < kInFlight; ++k) units[k] = x[i + k * p.lanes];
#pragma unroll
        for (int k = 0; k < kInFlight; ++k) out[i + k * p.lanes] = units[k];
    }
    for (; i < p.inner; i += p.lanes) out[i] = x[i];
}

extern "C" __global__ void __launch_bounds__(kTakeThreads) take_rows(const __grid_constant__ TakeParams p) {
    wait_for_predecessor();
    switch (p.unit_bytes) {
        case 1: take_row<std::uint8_t>(p); break;
        case 2: take_row<std::uint16_t>(p); break;
        case 4: take_row<std::uint32_t>(p); break;
        case 8: take_row<uint2>(p); break;
        case 16: take_row<uint4>(p); break;
    }
}

}  // namespace gpk::kernels
