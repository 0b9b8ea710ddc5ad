#include "kernels/reduce/variance.hpp"

#include "kernels/floats.hpp"
#include "kernels/reduce/reduce.cuh"

namespace gpk::kernels {

namespace {

template <class C>
__device__ __forceinline__ Moments<C> nothing() {
    return {C(0), C(0), C(0), C(0)};
}

// Of one part, the result; of more, what a second pass joins. T is the type of a result.
template <class T, class C>
__device__ __forceinline__ void put(const VarianceParams& p, std::int64_t output, const Moments<C>& moments) {
    if (p.layout.parts > 1) {
        static_cast<Moments<C>*>(p.output)[blockIdx.y * p.layout.outputs + output] = moments;
        return;
    }
    const C variance = moments.squares / static_cast<C>(p.divisor);
    static_cast<T*>(p.output)[output] = convert<T>(p.root ? sqrt(variance) : variance);
}

// A vector's elements have a mean of their own before they join: that takes one division.
template <class T>
__device__ __forceinline__ void variance_rows(const VarianceParams& p) {
    using C = compute_t<T>;
    constexpr int N = 16 / sizeof(T);
    __shared__ Moments<C> shared[kReduceThreads / 2];
    const ReduceLayout& layout = p.layout;
    const ReduceThread thread(layout);
    const std::int64_t output = thread.output();
    Moments<C> all = nothing<C>();
    if (output < layout.outputs) {
        const T* base = static_cast<const T*>(p.input) + reduce_offset(layout, 0, layout.kept_rank, output);
        const ReducePart part(layout);
        for_reduced<4, N>(
            layout, part, thread.lane,
            [&](std::int64_t offset) { return *reinterpret_cast<const Vector<T, N>*>(base + offset); },
            [&](const Vector<T, N>& v) {
                Moments<C> own = {C(N), C(0), C(0), C(0)};
#pragma unroll
                for (int e = 0; e < N; ++e) own.mean += convert<C>(v.values[e]);
                own.mean *= C(1) / C(N);
#pragma unroll
                for (int e = 0; e < N; ++e) {
                    const C difference = convert<C>(v.values[e]) - own.mean;
                    own.squares += difference * difference;
                }
                all = joined(all, own);
            });
#pragma unroll 1
        for (int i = part.count / N * N + thread.lane; i < part.count; i += layout.lanes) {
            all = joined(all, {C(1), convert<C>(base[part.begin + i]), C(0), C(0)});
        }
    }
    all = thread.join(layout, all, shared, joined<C>);
    if (thread.lane == 0 && output < layout.outputs) put<T>(p, output, all);
}

// Neighbouring outputs have the same count.
template <class T>
__device__ __forceinline__ void variance_columns(const VarianceParams& p) {
    using C = compute_t<T>;
    constexpr int N = 16 / sizeof(T);
    struct Columns {
        C count, mean[N], squares[N];
    };
    __shared__ alignas(16) unsigned char memory[kReduceThreads / 2 * sizeof(Columns)];
    const ReduceLayout& layout = p.layout;
    const ReduceThread thread(layout);
    const std::int64_t vectors = layout.outputs / N, vector = thread.output();
    Columns all;
    all.count = C(0);
#pragma unroll
    for (int e = 0; e < N; ++e) all.mean[e] = all.squares[e] = C(0);
    if (vector < vectors) {
        const T* base =
            static_cast<const T*>(p.input) + reduce_offset(layout, 0, layout.kept_rank, vector * N);
        for_reduced<4, 1>(
            layout, ReducePart(layout), thread.lane,
            [&](std::int64_t offset) { return *reinterpret_cast<const Vector<T, N>*>(base + offset); },
            [&](const Vector<T, N>& v) {
                all.count += C(1);
                const C share = C(1) / all.count;
#pragma unroll
                for (int e = 0; e < N; ++e) {
                    const C value = convert<C>(v.values[e]), difference = value - all.mean[e];
                    all.mean[e] += difference * share;
                    all.squares[e] += difference * (value - all.mean[e]);
                }
            });
    }
    const auto of = [](const Columns& columns, int e) {
        return Moments<C>{columns.count, columns.mean[e], columns.squares[e], C(0)};
    };
    all = thread.join_far(layout, all, reinterpret_cast<Columns*>(memory), [&](Columns a, const Columns& b) {
#pragma unroll
        for (int e = 0; e < N; ++e) {
            const Moments<C> both = joined(of(a, e), of(b, e));
            a.mean[e] = both.mean;
            a.squares[e] = both.squares;
        }
        a.count += b.count;
        return a;
    });
    if (thread.lane == 0 && vector < vectors) {
#pragma unroll
        for (int e = 0; e < N; ++e) put<T>(p, vector * N + e, of(all, e));
    }
}

// Input: elements, or Moments of them.
template <class Input, class T>
__device__ __forceinline__ void variance_elements(const VarianceParams& p) {
    using C = compute_t<T>;
    __shared__ Moments<C> shared[kReduceThreads / 2];
    const ReduceLayout& layout = p.layout;
    const ReduceThread thread(layout);
    const std::int64_t output = thread.output();
    Moments<C> all = nothing<C>();
    if (output < layout.outputs) {
        const Input* base =
            static_cast<const Input*>(p.input) + reduce_offset(layout, 0, layout.kept_rank, output);
        for_reduced<4, 1>(
            layout, ReducePart(layout), thread.lane, [&](std::int64_t offset) { return base[offset]; },
            [&](const Input& item) {
                if constexpr (std::is_same_v<Input, Moments<C>>) {
                    all = joined(all, item);
                } else {
                    all = joined(all, {C(1), convert<C>(item), C(0), C(0)});
                }
            });
    }
    all = thread.join(layout, all, shared, joined<C>);
    if (thread.lane == 0 && output < layout.outputs) put<T>(p, output, all);
}

}  // namespace

#define GPK_VARIANCE_KERNEL(symbol, ...)                              \
    extern "C" __global__ void __launch_bounds__(gpk::kReduceThreads) \
        symbol(const __grid_constant__ VarianceParams p) {            \
        wait_for_predecessor();                                       \
        __VA_ARGS__(p);                                               \
    }
#define X(suffix, T)                                                           \
    GPK_VARIANCE_KERNEL(variance_##suffix##_rows, variance_rows<T>)            \
    GPK_VARIANCE_KERNEL(variance_##suffix##_columns, variance_columns<T>)      \
    GPK_VARIANCE_KERNEL(variance_##suffix##_elements, variance_elements<T, T>) \
    GPK_VARIANCE_KERNEL(variance_##suffix##_join, variance_elements<Moments<compute_t<T>>, T>)
GPK_FLOAT_TYPES(X)
X(f64, double)
#undef X

}  // namespace gpk::kernels
