#include "kernels/norm/softmax.hpp"

#include "kernels/norm/exp_below.cuh"
#include "kernels/norm/rows.cuh"

namespace gpk::kernels {

namespace {

// NaN in the row makes its maximum and so all of it NaN, as in NumPy.
template <class T, int N, int kAccesses>
__device__ __forceinline__ void softmax_in_registers(const SoftmaxParams& p) {
    using Vec = Vector<T, N>;
    __shared__ RowThreads::Shared shared;
    const auto threads = RowThreads::make<has_clusters<N, kAccesses>>();
    if (threads.row() >= p.rows) return;
    const int count = static_cast<int>(p.n / N);
    const Vec* x = static_cast<const Vec*>(p.x) + threads.row() * count;
    Vec raw[kAccesses];
#pragma unroll
    for (int k = 0; k < kAccesses; ++k) {
#pragma unroll
        for (int j = 0; j < N; ++j) raw[k].values[j] = T(-INFINITY);
    }
    for_own<kAccesses>(threads, count, [&](int k, int i) { raw[k] = x[i]; });

    float top = -INFINITY;
#pragma unroll
    for (int k = 0; k < kAccesses; ++k) {
#pragma unroll
        for (int j = 0; j < N; ++j) top = max_or_nan(top, float(raw[k].values[j]));
    }
    top = threads.reduce(top, Larger(), -INFINITY, shared, 0);
    forget_conversions(raw);

    float numerators[kAccesses][N], sum = 0;
#pragma unroll
    for (int k = 0; k < kAccesses; ++k) {
#pragma unroll
        for (int j = 0; j < N; ++j) {
            numerators[k][j] = exp_below<T>(float(raw[k].values[j]), top);
            sum += numerators[k][j];
        }
    }
    const float scale = 1.0f / threads.reduce(sum, Add(), 0.0f, shared, 1);

    Vec* y = static_cast<Vec*>(p.y) + threads.row() * count;
    for_own<kAccesses>(threads, count, [&](int k, int i) {
        Vec result;
#pragma unroll
        for (int j = 0; j < N; ++j) result.values[j] = T(numerators[k][j] * scale);
        y[i] = result;
    });
    threads.finish();
}

// Maximum and sum from one pass: the block rescales each thread's sum to the common maximum.
template <class T, int N>
__device__ __forceinline__ void softmax_in_a_loop(const SoftmaxParams& p) {
    using Vec = Vector<T, N>;
    __shared__ RowThreads::Shared shared;
    const auto threads = RowThreads::make<false>();
    const std::int64_t count = p.n / N;
    const Vec* x = static_cast<const Vec*>(p.x) + threads.row() * count;
    auto own = OnlineSum<T>::nothing();
#pragma unroll 4
    for (std::int64_t i = threads.thread(); i < count; i += threads.threads()) {
        const Vec v = x[i];
        float here = float(v.values[0]);
#pragma unroll
        for (int j = 1; j < N; ++j) here = max_or_nan(here, float(v.values[j]));
        own.raise(here);
#pragma unroll
        for (int j = 0; j < N; ++j) own.add(float(v.values[j]));
    }
    const float top = threads.reduce(own.top, Larger(), -INFINITY, shared, 0);
    const float part = own.top == -INFINITY ? 0.0f : own.sum * exp_below<T>(own.top, top);
    const float scale = 1.0f / threads.reduce(part, Add(), 0.0f, shared, 1);
    Vec* y = static_cast<Vec*>(p.y) + threads.row() * count;
#pragma unroll 4
    for (std::int64_t i = threads.thread(); i < count; i += threads.threads()) {
        Vec v = x[i];
#pragma unroll
        for (int j = 0; j < N; ++j) v.values[j] = T(exp_below<T>(float(v.values[j]), top) * scale);
        y[i] = v;
    }
}

template <class T, int N, int kAccesses>
__device__ __forceinline__ void softmax_rows(const SoftmaxParams& p) {
    wait_for_predecessor();
    if constexpr (kAccesses == 0) {
        softmax_in_a_loop<T, N>(p);
    } else {
        softmax_in_registers<T, N, kAccesses>(p);
    }
}

}  // namespace

#define X(suffix, dtype, T, N, accesses)                            \
    extern "C" __global__ void __launch_bounds__(kMostRowThreads)   \
        softmax_##suffix(const __grid_constant__ SoftmaxParams p) { \
        softmax_rows<T, N, accesses>(p);                            \
    }
GPK_ROW_VARIANTS(X)
#undef X

}  // namespace gpk::kernels
