// What device code shares: waiting for the previous kernel, vectors, warp and block reductions.
#pragma once

#include <cstdint>

#include "base/float_types.hpp"

namespace gpk::kernels {

// First statement of every prebuilt kernel (see DESIGN in docs/architecture.md, "Launching"): what the
// previous kernel on the stream wrote is visible after it.
__device__ __forceinline__ void wait_for_predecessor() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// N elements moved as one access; the address must be aligned to the size.
template <class T, int N>
struct alignas(sizeof(T) * N) Vector {
    T values[N];
};

__device__ __forceinline__ std::int64_t global_thread() {
    return static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ __forceinline__ std::int64_t grid_threads() {
    return static_cast<std::int64_t>(gridDim.x) * blockDim.x;
}

template <class T, class Op>
__device__ __forceinline__ T warp_reduce(T value, Op op) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) value = op(value, __shfl_xor_sync(0xffffffffu, value, step));
    return value;
}

// Every thread of the block gets the result. `shared` holds 32 values; all threads must call.
template <class T, class Op>
__device__ __forceinline__ T block_reduce(T value, Op op, T identity, T* shared) {
    value = warp_reduce(value, op);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    __syncthreads();  // `shared` may still be read from a call before
    if (lane == 0) shared[warp] = value;
    __syncthreads();
    value = lane < static_cast<int>(blockDim.x / 32) ? shared[lane] : identity;
    return warp_reduce(value, op);
}

}  // namespace gpk::kernels
