// How the threads of a reduction find their outputs and join what they have.
#pragma once

#include <cstdint>

#include "kernels/reduce/layout.hpp"

namespace gpk::kernels {

struct ReduceThread {
    int lane, slot;  // of `lanes` and of the block's outputs
    int slots;
    int lane_step;  // threads between two lanes of one output

    __device__ __forceinline__ explicit ReduceThread(const ReduceLayout& layout) {
        const int t = threadIdx.x;
        slots = kReduceThreads / layout.lanes;
        lane = layout.along_lanes ? t % layout.lanes : t / slots;
        slot = layout.along_lanes ? t / layout.lanes : t % slots;
        lane_step = layout.along_lanes ? 1 : slots;
    }

    // Calls body(output, part) for each that this thread works on. Every thread of the block makes the
    // same calls; the output may lie past the end.
    template <class Body>
    __device__ __forceinline__ void for_each(const ReduceLayout& layout, Body body) const {
        const std::int64_t groups = (layout.outputs + slots - 1) / slots;
        for (std::int64_t part = blockIdx.y; part < layout.parts; part += gridDim.y) {
            for (std::int64_t group = blockIdx.x; group < groups; group += gridDim.x) {
                body(group * slots + slot, part);
            }
        }
    }

    // Afterwards lane 0's entry holds the join of all lanes', always in the same order. `join(i, j)` makes
    // entry i the join of the entries i and j of shared memory, which are numbered as threads.
    template <class Join>
    __device__ __forceinline__ void join_lanes(const ReduceLayout& layout, Join join) const {
        __syncthreads();
        for (int step = layout.lanes / 2; step > 0; step /= 2) {
            if (lane < step)
                join(static_cast<int>(threadIdx.x), static_cast<int>(threadIdx.x) + step * lane_step);
            __syncthreads();
        }
    }
};

}  // namespace gpk::kernels
