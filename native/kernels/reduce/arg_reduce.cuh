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

// What nothing is worse than.
template <bool kMax, class C>
__device__ __forceinline__ C arg_worst() {
    if constexpr (kMax) return MaxOf<C>::identity();
    return MinOf<C>::identity();
}

template <class T>
__device__ __forceinline__ const T* arg_base(const ArgReduceParams& p, std::int64_t output) {
    return static_cast<const T*>(p.input) + reduce_offset(p.layout, 0, p.layout.kept_rank, output);
}

template <bool kMax, class C, class Index>
__device__ __forceinline__ Candidate<C, Index> arg_join(const Candidate<C, Index>& a,
                                                        const Candidate<C, Index>& b) {
    return arg_prefers<kMax>(b, a) ? b : a;
}

template <class C>
__device__ __forceinline__ void arg_store(const ArgReduceParams& p, std::int64_t output,
                                          const Candidate<C>& best) {
    const std::int64_t place = blockIdx.y * p.layout.outputs + output;
    p.output[place] = best.index;
    if (p.values != nullptr) static_cast<C*>(p.values)[place] = best.value;
}

// Lanes compare whole vectors and remember only the number of the best; its element is looked for at the end,
// by one lane. What fills no vector, at the end of a part, counts as one more.
template <class T, bool kMax>
__device__ __forceinline__ void arg_reduce_rows(const ArgReduceParams& p) {
    using C = compute_t<T>;
    using Best = Candidate<C, int>;
    constexpr int N = 16 / sizeof(T);
    using Vec = Vector<T, N>;
    __shared__ Best shared[kReduceThreads / 2];
    const ReduceLayout& layout = p.layout;
    const ReduceThread thread(layout);
    const std::int64_t output = thread.output();
    const ReducePart part(layout);
    const T* from = nullptr;
    Best best = {arg_worst<kMax, C>(), -1};
    if (output < layout.outputs) {
        from = arg_base<T>(p, output) + part.begin;
        const int vectors = part.count / N;
        const auto at = [&](int i) {
            return *reinterpret_cast<const Vec*>(from + static_cast<std::int64_t>(i) * N);
        };
        int number = thread.lane;
        if (number < vectors) best.index = number;
        const auto take = [&](C here) {
            // Not `here > best`: a NaN is better, and another NaN takes its place.
            if (!(kMax ? here <= best.value : here >= best.value)) best.index = number;
            best.value = arg_better_value<kMax>(best.value, here);
            number += layout.lanes;
        };
        for_lane<4>(vectors, thread.lane, layout.lanes, at, [&](const Vec& v) {
            C here = convert<C>(v.values[0]);
#pragma unroll
            for (int e = 1; e < N; ++e) here = arg_better_value<kMax>(here, convert<C>(v.values[e]));
            take(here);
        });
        if (number == vectors && part.count % N != 0) {
            C here = convert<C>(from[vectors * N]);
            for (int i = vectors * N + 1; i < part.count; ++i)
                here = arg_better_value<kMax>(here, convert<C>(from[i]));
            if (best.index < 0) best.index = number;
            take(here);
        }
        if (best.value != best.value) {  // the first NaN counts
            const auto has_nan = [&](int vector) {
                bool found = false;
                for (int i = vector * N; i < min(vector * N + N, part.count); ++i) {
                    const C value = convert<C>(from[i]);
                    found = found || value != value;
                }
                return found;
            };
            best.index = thread.lane;
            while (!has_nan(best.index)) best.index += layout.lanes;
        }
    }
    best = thread.join(layout, best, shared, arg_join<kMax, C, int>);
    if (thread.lane != 0 || output >= layout.outputs) return;
    int i = best.index * N;
    C value = convert<C>(from[i]);
    while (value != best.value && value == value) value = convert<C>(from[++i]);
    arg_store<C>(p, output, {value, part.begin + i});
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
        for (int e = 0; e < N; ++e) arg_store<C>(p, vector * N + e, {best.value[e], part.begin + best.at[e]});
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
            return Item{base[reduce_offset(layout, layout.kept_rank, layout.rank, at)], index};
        };
        for_lane<4>(part.count, thread.lane, layout.lanes, fetch, [&](const Item& item) {
            best = arg_join<kMax, C, std::int64_t>(best, {convert<C>(item.value), item.index});
        });
    }
    best = thread.join(layout, best, shared, arg_join<kMax, C, std::int64_t>);
    if (thread.lane == 0 && output < layout.outputs) arg_store(p, output, best);
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
