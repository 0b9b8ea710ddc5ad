// The device side of the kernels that reduce.hpp lists.
#pragma once

#include "kernels/device.cuh"
#include "kernels/reduce/reduce.hpp"
#include "kernels/reduce/threads.cuh"

namespace gpk::kernels {

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

// N running results, of neighbouring elements.
template <class F, int N>
struct ReduceSums {
    typename F::type values[N];

    __device__ __forceinline__ ReduceSums() {
#pragma unroll
        for (int e = 0; e < N; ++e) values[e] = F::identity();
    }
    __device__ __forceinline__ void take(const Vector<typename F::Input, N>& elements) {
#pragma unroll
        for (int e = 0; e < N; ++e) values[e] = F::step(values[e], F::load(elements.values[e]));
    }
    __device__ __forceinline__ typename F::type joined() {
#pragma unroll
        for (int step = N / 2; step > 0; step /= 2) {
#pragma unroll
            for (int e = 0; e < step; ++e) values[e] = F::step(values[e], values[e + step]);
        }
        return values[0];
    }
};

// Calls use(item) for what this lane takes of a part, where item = read(offset in elements); numbers count
// kWidth elements, which are neighbours where that is more than one. One reduced dimension is the common
// case, and has its reads well ahead.
template <int kInFlight, int kWidth, class Read, class Use>
__device__ __forceinline__ void for_reduced(const ReduceLayout& layout, const ReducePart& part, int lane,
                                            Read read, Use use) {
    const int items = part.count / kWidth;
    if (layout.rank - layout.kept_rank == 1) {
        const std::int64_t stride = kWidth > 1 ? kWidth : layout.strides[layout.kept_rank];
        const std::int64_t begin = kWidth > 1 ? part.begin : part.begin * stride;
        for_lane<kInFlight>(items, lane, layout.lanes, [&](int i) { return read(begin + i * stride); }, use);
        return;
    }
    for_lane<kInFlight / 2>(  // each takes registers for its place
        items, lane, layout.lanes,
        [&](int i) {
            return read(reduce_offset(layout, layout.kept_rank, layout.rank,
                                      part.begin + static_cast<std::int64_t>(i) * kWidth));
        },
        use);
}

template <class F>
__device__ __forceinline__ void reduce_rows(const ReduceParams& p) {
    using T = typename F::Input;
    using C = typename F::type;
    constexpr int N = 16 / sizeof(T);
    __shared__ alignas(16) C shared[kReduceThreads / 2];
    const ReduceLayout& layout = p.layout;
    const ReduceThread thread(layout);
    const std::int64_t output = thread.output();
    ReduceSums<F, N> sums;
    if (output < layout.outputs) {
        const T* base = static_cast<const T*>(p.input) + reduce_offset(layout, 0, layout.kept_rank, output);
        const ReducePart part(layout);
        for_reduced<4, N>(
            layout, part, thread.lane,
            [&](std::int64_t offset) { return *reinterpret_cast<const Vector<T, N>*>(base + offset); },
            [&](const Vector<T, N>& v) { sums.take(v); });
        // What fills no vector, where there is but one dimension.
#pragma unroll 1
        for (int i = part.count / N * N + thread.lane; i < part.count; i += layout.lanes) {
            sums.values[0] = F::step(sums.values[0], F::load(base[part.begin + i]));
        }
    }
    const auto step = [](C a, C b) { return F::step(a, b); };
    C sum = thread.join(layout, sums.joined(), shared, step);
    if (thread.lane == 0 && output < layout.outputs) {
        reduce_store(p, blockIdx.y * layout.outputs + output, sum);
    }
}

template <class F>
__device__ __forceinline__ void reduce_elements(const ReduceParams& p) {
    using T = typename F::Input;
    using C = typename F::type;
    __shared__ C shared[kReduceThreads / 2];
    const ReduceLayout& layout = p.layout;
    const ReduceThread thread(layout);
    const std::int64_t output = thread.output();
    C sum = F::identity();
    if (output < layout.outputs) {
        const T* base = static_cast<const T*>(p.input) + reduce_offset(layout, 0, layout.kept_rank, output);
        for_reduced<8, 1>(
            layout, ReducePart(layout), thread.lane, [&](std::int64_t offset) { return base[offset]; },
            [&](T value) { sum = F::step(sum, F::load(value)); });
    }
    sum = thread.join(layout, sum, shared, [](C a, C b) { return F::step(a, b); });
    if (thread.lane == 0 && output < layout.outputs)
        reduce_store(p, blockIdx.y * layout.outputs + output, sum);
}

template <class F>
__device__ __forceinline__ void reduce_columns(const ReduceParams& p) {
    using T = typename F::Input;
    constexpr int N = 16 / sizeof(T);
    using Sums = ReduceSums<F, N>;
    // As bytes, for it must not be initialised.
    __shared__ alignas(16) unsigned char memory[kReduceThreads / 2 * sizeof(Sums)];
    auto* shared = reinterpret_cast<Sums*>(memory);
    const ReduceLayout& layout = p.layout;
    const ReduceThread thread(layout);
    const std::int64_t vectors = layout.outputs / N;
    const std::int64_t vector = thread.output();
    Sums sums;
    if (vector < vectors) {
        const T* base =
            static_cast<const T*>(p.input) + reduce_offset(layout, 0, layout.kept_rank, vector * N);
        for_reduced<4, 1>(
            layout, ReducePart(layout), thread.lane,
            [&](std::int64_t offset) { return *reinterpret_cast<const Vector<T, N>*>(base + offset); },
            [&](const Vector<T, N>& v) { sums.take(v); });
    }
    sums = thread.join_far(layout, sums, shared, [](Sums a, const Sums& b) {
#pragma unroll
        for (int e = 0; e < N; ++e) a.values[e] = F::step(a.values[e], b.values[e]);
        return a;
    });
    if (thread.lane == 0 && vector < vectors) {
#pragma unroll
        for (int e = 0; e < N; ++e) {
            reduce_store(p, blockIdx.y * layout.outputs + vector * N + e, sums.values[e]);
        }
    }
}

// Each functor comes as __VA_ARGS__: its type has commas.
#define GPK_REDUCE_WALK(walk, symbol, ...)                            \
    extern "C" __global__ void __launch_bounds__(gpk::kReduceThreads) \
        symbol##_##walk(const __grid_constant__ ReduceParams p) {     \
        wait_for_predecessor();                                       \
        reduce_##walk<__VA_ARGS__>(p);                                \
    }
#define GPK_REDUCE_KERNEL(symbol, op, dtype, ...) \
    GPK_REDUCE_WALK(rows, symbol, __VA_ARGS__)    \
    GPK_REDUCE_WALK(columns, symbol, __VA_ARGS__) \
    GPK_REDUCE_WALK(elements, symbol, __VA_ARGS__)

}  // namespace gpk::kernels
