#include "kernels/norm/rms_norm.hpp"

#include "kernels/norm/rows.cuh"

namespace gpk::kernels {

namespace {

template <class T, int N>
__device__ __forceinline__ Vector<T, N> scaled(const Vector<T, N>& v, float scale, const Vector<T, N>* weight,
                                               std::int64_t i) {
    Vector<T, N> w, y;
#pragma unroll
    for (int j = 0; j < N; ++j) w.values[j] = T(1.0f);
    if (weight != nullptr) w = weight[i];
#pragma unroll
    for (int j = 0; j < N; ++j) y.values[j] = T(float(v.values[j]) * scale * float(w.values[j]));
    return y;
}

template <class T, int N>
__device__ __forceinline__ float squares_of(const Vector<T, N>& v) {
    float squares = 0;
#pragma unroll
    for (int j = 0; j < N; ++j) squares += float(v.values[j]) * float(v.values[j]);
    return squares;
}

template <class T, int N, int kAccesses, bool kResidual>
__device__ __forceinline__ void rms_norm_rows(const NormParams& p) {
    using Vec = Vector<T, N>;
    wait_for_predecessor();
    __shared__ RowThreads::Shared shared;
    const auto threads = RowThreads::make<has_clusters<N, kAccesses>>();
    if (threads.row() >= p.rows) return;
    const std::int64_t count = p.n / N, first = threads.row() * count;
    const RowSource<Vec, kResidual> source(p, first);
    const Vec* weight = static_cast<const Vec*>(p.weight);
    Vec* y = static_cast<Vec*>(p.y) + first;
    float squares = 0;
    const auto scale_of = [&] {
        squares = threads.reduce(squares, Add(), 0.0f, shared, 0);
        return 1.0f / sqrtf(squares / static_cast<float>(p.n) + p.eps);
    };
    if constexpr (kAccesses > 0) {
        Vec own[kAccesses];
        const int own_count = static_cast<int>(count);
        source.take_own(threads, own_count, own);
        for_own<kAccesses>(threads, own_count, [&](int k, int) { squares += squares_of(own[k]); });
        const float scale = scale_of();
        forget_conversions(own);
        for_own<kAccesses>(threads, own_count,
                           [&](int k, int i) { y[i] = scaled(own[k], scale, weight, i); });
        threads.finish();
    } else {
#pragma unroll 4
        for (std::int64_t i = threads.thread(); i < count; i += threads.threads())
            squares += squares_of(source.take(i));
        const float scale = scale_of();
#pragma unroll 4
        for (std::int64_t i = threads.thread(); i < count; i += threads.threads()) {
            y[i] = scaled(source.again(i), scale, weight, i);
        }
    }
}

}  // namespace

#define X(suffix, dtype, T, N, accesses)                                   \
    extern "C" __global__ void __launch_bounds__(kMostRowThreads)          \
        rms_norm_##suffix(const __grid_constant__ NormParams p) {          \
        rms_norm_rows<T, N, accesses, false>(p);                           \
    }                                                                      \
    extern "C" __global__ void __launch_bounds__(kMostResidualThreads)     \
        rms_norm_residual_##suffix(const __grid_constant__ NormParams p) { \
        rms_norm_rows<T, N, accesses, true>(p);                            \
    }
GPK_ROW_VARIANTS(X)
GPK_LONG_ROW_VARIANTS(X)
#undef X

}  // namespace gpk::kernels
