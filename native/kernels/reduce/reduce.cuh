// The device side of the kernels that reduce.hpp lists.
#pragma once

#include "kernels/device.cuh"
#include "kernels/reduce/reduce.hpp"
#include "kernels/reduce/threads.cuh"

namespace gpk::kernels {

// What one lane makes of elements begin..begin+count-1 of an output.
template <class F>
__device__ __forceinline__ typename F::type reduce_lane(const ReduceLayout& layout,
                                                        const typename F::Input* base, std::int64_t begin,
                                                        std::int64_t count, int lane) {
    using T = typename F::Input;
    using C = typename F::type;
    C sum = F::identity();
    if (layout.vectors) {
        constexpr int kChunk = 16 / sizeof(T);
        const T* from = base + begin;
        const std::int64_t chunks = count / kChunk;
        C sums[kChunk];
#pragma unroll
        for (int e = 0; e < kChunk; ++e) sums[e] = F::identity();
#pragma unroll 2
        for (std::int64_t chunk = lane; chunk < chunks; chunk += layout.lanes) {
            const auto values = *reinterpret_cast<const Vector<T, kChunk>*>(from + chunk * kChunk);
#pragma unroll
            for (int e = 0; e < kChunk; ++e) sums[e] = F::step(sums[e], F::load(values.values[e]));
        }
        for (std::int64_t i = chunks * kChunk + lane; i < count; i += layout.lanes)
            sum = F::step(sum, F::load(from[i]));
#pragma unroll
        for (int e = 0; e < kChunk; ++e) sum = F::step(sum, sums[e]);
    } else if (layout.rank - layout.kept_rank == 1) {
        const std::int64_t stride = layout.strides[layout.kept_rank];
#pragma unroll 4
        for (std::int64_t i = lane; i < count; i += layout.lanes) {
            sum = F::step(sum, F::load(base[(begin + i) * stride]));
        }
    } else {
        for (std::int64_t i = lane; i < count; i += layout.lanes) {
            sum =
                F::step(sum, F::load(base[reduce_offset(layout, layout.kept_rank, layout.rank, begin + i)]));
        }
    }
    return sum;
}

template <class C>
__device__ __forceinline__ void reduce_store(const ReduceParams& p, std::int64_t place, C value) {
    if constexpr (static_cast<C>(0.5) != C(0)) {  // a floating type
        if (p.divisor != 1) value = value / static_cast<C>(p.divisor);
    }
    if constexpr (sizeof(C) == 4 && static_cast<C>(0.5) != C(0)) {
        if (p.store == ReduceStore::float16) {
            static_cast<float16*>(p.output)[place] = float16(value);
            return;
        }
        if (p.store == ReduceStore::bfloat16) {
            static_cast<bfloat16*>(p.output)[place] = bfloat16(value);
            return;
        }
    }
    static_cast<C*>(p.output)[place] = value;
}

template <class F>
__device__ __forceinline__ void reduce(const ReduceParams& p) {
    using C = typename F::type;
    __shared__ C shared[kReduceThreads];
    const ReduceLayout& layout = p.layout;
    const ReduceThread thread(layout);
    thread.for_each(layout, [&](std::int64_t output, std::int64_t part) {
        C sum = F::identity();
        if (output < layout.outputs) {
            const auto* base = static_cast<const typename F::Input*>(p.input) +
                               reduce_offset(layout, 0, layout.kept_rank, output);
            const std::int64_t begin = part * layout.part_count, left = layout.count - begin;
            sum = reduce_lane<F>(layout, base, begin, left < layout.part_count ? left : layout.part_count,
                                 thread.lane);
        }
        shared[threadIdx.x] = sum;
        thread.join_lanes(layout, [&](int i, int j) { shared[i] = F::step(shared[i], shared[j]); });
        if (thread.lane == 0 && output < layout.outputs) {
            reduce_store(p, output * layout.parts + part, shared[threadIdx.x]);
        }
        __syncthreads();  // before the next output overwrites
    });
}

// Each functor comes as __VA_ARGS__: its type has commas.
#define GPK_REDUCE_KERNEL(symbol, op, dtype, ...)                     \
    extern "C" __global__ void __launch_bounds__(gpk::kReduceThreads) \
        symbol(const __grid_constant__ ReduceParams p) {              \
        wait_for_predecessor();                                       \
        reduce<__VA_ARGS__>(p);                                       \
    }

}  // namespace gpk::kernels
