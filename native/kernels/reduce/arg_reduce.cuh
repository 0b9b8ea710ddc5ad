// The device side of the kernels that arg_reduce.hpp lists.
#pragma once

#include "kernels/device.cuh"
#include "kernels/reduce/arg_reduce.hpp"
#include "kernels/reduce/reduce.cuh"

namespace gpk::kernels {

// Whether a, which comes later, is to take b's place: only where it is better, not where it is as good.
template <bool kMax, class C>
__device__ __forceinline__ bool arg_beats(C a, C b) {
    return (kMax ? a > b : a < b) || (a != a && b == b);
}
template <bool kMax, class C>
__device__ __forceinline__ C arg_better_value(C a, C b) {
    return kMax ? larger_or_nan(a, b) : smaller_or_nan(a, b);
}

template <class T>
__device__ __forceinline__ const T* arg_base(const ArgReduceParams& p, std::int64_t output) {
    return static_cast<const T*>(p.input) + reduce_offset(p.layout, 0, p.layout.kept_rank, output);
}

template <bool kMax, class C>
__device__ __forceinline__ Candidate<C> arg_join(const Candidate<C>& a, const Candidate<C>& b) {
    return arg_prefers<kMax>(b, a) ? b : a;
}

// A lane remembers only which vector had the best element, and looks for it there at the end.
template <class T, bool kMax>
__device__ __forceinline__ void arg_reduce_rows(const ArgReduceParams& p) {
    using C = compute_t<T>;
    constexpr int N = 16 / sizeof(T);
    using Vec = Vector<T, N>;
    __shared__ Candidate<C> shared[kReduceThreads / 2];
    const ReduceLayout& layout = p.layout;
    const ReduceThread thread(layout);
    const std::int64_t output = thread.output();
    Candidate<C> best = {C(0), -1};
    if (output < layout.outputs) {
        const ReducePart part(layout);
        const T* from = arg_base<T>(p, output) + part.begin;
        const auto at = [&](int i) {
            return *reinterpret_cast<const Vec*>(from + static_cast<std::int64_t>(i) * N);
        };
        int number = thread.lane, found = -1;
        C value = C(0);
        for_lane<4>(part.count / N, thread.lane, layout.lanes, at, [&](const Vec& v) {
            C here = convert<C>(v.values[0]);
#pragma unroll
            for (int e = 1; e < N; ++e) here = arg_better_value<kMax>(here, convert<C>(v.values[e]));
            if (found < 0 || arg_beats<kMax>(here, value)) {
                value = here;
                found = number;
            }
            number += layout.lanes;
        });
        if (found >= 0) {
            const Vec v = at(found);
#pragma unroll
            for (int e = N - 1; e >= 0; --e) {
                const C here = convert<C>(v.values[e]);
                if (here == value || here != here)
                    best = {here, part.begin + static_cast<std::int64_t>(found) * N + e};
            }
        }
        for (int i = part.count / N * N + thread.lane; i < part.count; i += layout.lanes) {
            best = arg_join<kMax>(best, {convert<C>(from[i]), part.begin + i});
        }
    }
    best = thread.join(layout, best, shared, arg_join<kMax, C>);
    if (thread.lane == 0 && output < layout.outputs)
        p.output[blockIdx.y * layout.outputs + output] = best.index;
}

template <class T, bool kMax>
__device__ __forceinline__ void arg_reduce_columns(const ArgReduceParams& p) {
    using C = compute_t<T>;
    constexpr int N = 16 / sizeof(T);
    using Vec = Vector<T, N>;
    struct Best {
        C value[N];
        std::uint32_t at[N];  // in the part; kNone: nothing yet
    };
    constexpr std::uint32_t kNone = 0xffffffffu;
    __shared__ alignas(16) unsigned char memory[kReduceThreads / 2 * sizeof(Best)];
    const ReduceLayout& layout = p.layout;
    const ReduceThread thread(layout);
    const std::int64_t vector = thread.output(), vectors = layout.outputs / N;
    const ReducePart part(layout);
    Best best;
#pragma unroll
    for (int e = 0; e < N; ++e) best.value[e] = C(0), best.at[e] = kNone;
    if (vector < vectors) {
        const T* base = arg_base<T>(p, vector * N);
        std::uint32_t number = thread.lane;
        for_reduced<4, 1>(
            layout, part, thread.lane,
            [&](std::int64_t offset) { return *reinterpret_cast<const Vec*>(base + offset); },
            [&](const Vec& v) {
#pragma unroll
                for (int e = 0; e < N; ++e) {
                    const C here = convert<C>(v.values[e]);
                    if (best.at[e] == kNone || arg_beats<kMax>(here, best.value[e])) {
                        best.value[e] = here;
                        best.at[e] = number;
                    }
                }
                number += layout.lanes;
            });
    }
    best = thread.join_far(layout, best, reinterpret_cast<Best*>(memory), [](Best a, const Best& b) {
#pragma unroll
        for (int e = 0; e < N; ++e) {
            const auto index = [](std::uint32_t at) {
                return at == kNone ? std::int64_t{-1} : std::int64_t{at};
            };
            if (arg_prefers<kMax>(Candidate<C>{b.value[e], index(b.at[e])},
                                  Candidate<C>{a.value[e], index(a.at[e])})) {
                a.value[e] = b.value[e];
                a.at[e] = b.at[e];
            }
        }
        return a;
    });
    if (thread.lane == 0 && vector < vectors) {
#pragma unroll
        for (int e = 0; e < N; ++e)
            p.output[blockIdx.y * layout.outputs + vector * N + e] = part.begin + best.at[e];
    }
}

template <class T, bool kMax>
__device__ __forceinline__ void arg_reduce_elements(const ArgReduceParams& p) {
    using C = compute_t<T>;
    __shared__ Candidate<C> shared[kReduceThreads / 2];
    const ReduceLayout& layout = p.layout;
    const ReduceThread thread(layout);
    const std::int64_t output = thread.output();
    Candidate<C> best = {C(0), -1};
    if (output < layout.outputs) {
        const T* base = arg_base<T>(p, output);
        const ReducePart part(layout);
        struct Item {
            T value;
            std::int64_t index;
        };
        const auto fetch = [&](int i) {
            const std::int64_t at = part.begin + i;
            const std::int64_t index = p.candidates ? p.candidates[at * layout.outputs + output] : at;
            return Item{base[reduce_offset(layout, layout.kept_rank, layout.rank, index)], index};
        };
        for_lane<4>(part.count, thread.lane, layout.lanes, fetch, [&](const Item& item) {
            best = arg_join<kMax>(best, {convert<C>(item.value), item.index});
        });
    }
    best = thread.join(layout, best, shared, arg_join<kMax, C>);
    if (thread.lane == 0 && output < layout.outputs)
        p.output[blockIdx.y * layout.outputs + output] = best.index;
}

#define GPK_ARG_REDUCE_WALK(walk, symbol, T, is_max)                 \
    extern "C" __global__ void __launch_bounds__(kReduceThreads)     \
        symbol##_##walk(const __grid_constant__ ArgReduceParams p) { \
        wait_for_predecessor();                                      \
        arg_reduce_##walk<T, is_max>(p);                             \
    }
#define GPK_ARG_REDUCE_KERNEL(symbol, op, dtype, T, is_max) \
    GPK_ARG_REDUCE_WALK(rows, symbol, T, is_max)            \
    GPK_ARG_REDUCE_WALK(columns, symbol, T, is_max)         \
    GPK_ARG_REDUCE_WALK(elements, symbol, T, is_max)

}  // namespace gpk::kernels
