// How the threads of a reduction find their outputs, read what is theirs and join what they have.
#pragma once

#include <cstdint>

#include "kernels/device.cuh"
#include "kernels/reduce/layout.hpp"

namespace gpk::kernels {

struct ReduceThread {
    int lane, slot;  // of `lanes` and of the block's outputs
    int slots;
    int lane_step;  // threads between two lanes of one output

    __device__ __forceinline__ explicit ReduceThread(const ReduceLayout& layout) {
        const int t = threadIdx.x, bits = 31 - __clz(layout.lanes);  // powers of two: no divisions
        slots = kReduceThreads >> bits;
        lane = layout.along_lanes ? t & (layout.lanes - 1) : t >> (kReduceThreadBits - bits);
        slot = layout.along_lanes ? t >> bits : t & (slots - 1);
        lane_step = layout.along_lanes ? 1 : slots;
    }

    // The output (the vector of outputs, of columns) that this thread works on; it may lie past the end.
    __device__ __forceinline__ std::int64_t output() const {
        return static_cast<std::int64_t>(blockIdx.x) * slots + slot;
    }
    // Lane 0 gets the join of all lanes', always in the same order. `shared`: kReduceThreads / 2 values.
    template <class Value, class Join>
    __device__ __forceinline__ Value join(const ReduceLayout& layout, Value value, Value* shared,
                                          Join op) const {
        if (!layout.along_lanes) return join_far(layout, value, shared, op);
#pragma unroll 1
        for (int step = min(layout.lanes, 32) / 2; step > 0; step /= 2)
            value = op(value, across(value, step));
        if (layout.lanes <= 32) return value;
        const int warp = threadIdx.x / 32, warps = layout.lanes / 32;
        if (threadIdx.x % 32 == 0) shared[warp] = value;
        __syncthreads();
        if (lane == 0) {
#pragma unroll 1
            for (int other = 1; other < warps; ++other) value = op(value, shared[warp + other]);
        }
        return value;
    }

    // The same of lanes that are not neighbours: the upper half of them hands on what it has, and so on.
    template <class Value, class Join>
    __device__ __forceinline__ Value join_far(const ReduceLayout& layout, Value value, Value* shared,
                                              Join op) const {
#pragma unroll 1
        for (int half = layout.lanes / 2; half > 0; half /= 2) {
            if (lane >= half && lane < 2 * half) shared[(lane - half) * lane_step + slot] = value;
            __syncthreads();
            if (lane < half) value = op(value, shared[lane * lane_step + slot]);
            __syncthreads();
        }
        return value;
    }

    template <class Value>
    __device__ __forceinline__ static Value across(const Value& value, int step) {
        constexpr int kWords = (sizeof(Value) + 3) / 4;
        unsigned words[kWords] = {};
        memcpy(words, &value, sizeof(Value));
#pragma unroll
        for (int i = 0; i < kWords; ++i) words[i] = __shfl_xor_sync(0xffffffffu, words[i], step);
        Value other;
        memcpy(&other, words, sizeof(Value));
        return other;
    }
};

// The part of an output that the block's lanes share: where it begins among the reduced elements, and its
// length.
struct ReducePart {
    std::int64_t begin;
    int count;  // a layout's parts are no longer

    __device__ __forceinline__ explicit ReducePart(const ReduceLayout& layout) {
        begin = blockIdx.y * layout.part_count;
        const std::int64_t left = layout.count - begin;
        count = static_cast<int>(left < layout.part_count ? left : layout.part_count);
    }
};

// Calls use(item) for the numbers lane, lane + lanes, ... below count, where item = fetch(number): several
// are fetched before the first is used, so that the memory is kept busy.
template <int kInFlight, class Fetch, class Use>
__device__ __forceinline__ void for_lane(int count, int lane, int lanes, Fetch fetch, Use use) {
    int i = lane;
#pragma unroll 1
    for (; i + (kInFlight - 1) * lanes < count; i += kInFlight * lanes) {
        decltype(fetch(i)) items[kInFlight];
#pragma unroll
        for (int k = 0; k < kInFlight; ++k) items[k] = fetch(i + k * lanes);
#pragma unroll
        for (int k = 0; k < kInFlight; ++k) use(items[k]);
    }
#pragma unroll 1
    for (; i < count; i += lanes) use(fetch(i));
}

}  // namespace gpk::kernels
