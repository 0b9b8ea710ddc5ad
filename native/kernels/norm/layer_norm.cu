#include "kernels/norm/layer_norm.hpp"

#include "kernels/norm/rows.cuh"

namespace gpk::kernels {

namespace {

struct Affine {
    float mean, scale;

    template <class T, int N>
    __device__ __forceinline__ Vector<T, N> apply(const Vector<T, N>& v, const Vector<T, N>* weight,
                                                  const Vector<T, N>* bias, std::int64_t i) const {
        Vector<T, N> w, b, y;
#pragma unroll
        for (int j = 0; j < N; ++j) w.values[j] = T(1.0f), b.values[j] = T(0.0f);
        if (weight != nullptr) w = weight[i];
        if (bias != nullptr) b = bias[i];
#pragma unroll
        for (int j = 0; j < N; ++j) {
            y.values[j] =
                T(fmaf((float(v.values[j]) - mean) * scale, float(w.values[j]), float(b.values[j])));
        }
        return y;
    }
};

template <class T, int N>
__device__ __forceinline__ float sum_of(const Vector<T, N>& v) {
    float sum = 0;
#pragma unroll
    for (int j = 0; j < N; ++j) sum += float(v.values[j]);
    return sum;
}

template <class T, int N>
__device__ __forceinline__ float squares_about(const Vector<T, N>& v, float mean) {
    float squares = 0;
#pragma unroll
    for (int j = 0; j < N; ++j) squares += (float(v.values[j]) - mean) * (float(v.values[j]) - mean);
    return squares;
}

// The variance is of the differences from the mean: a mean much larger than it costs no digits.
template <class T, int N, int kAccesses, bool kResidual>
__device__ __forceinline__ void layer_norm_rows(const NormParams& p) {
    using Vec = Vector<T, N>;
    wait_for_predecessor();
    __shared__ RowThreads::Shared shared;
    const auto threads = RowThreads::make<has_clusters<N, kAccesses>>();
    if (threads.row() >= p.rows) return;
    const std::int64_t count = p.n / N, first = threads.row() * count;
    const float n = static_cast<float>(p.n);
    const RowSource<Vec, kResidual> source(p, first);
    const Vec *weight = static_cast<const Vec*>(p.weight), *bias = static_cast<const Vec*>(p.bias);
    Vec* y = static_cast<Vec*>(p.y) + first;
    float sum = 0, squares = 0;
    const auto mean_of = [&] { return threads.reduce(sum, Add(), 0.0f, shared, 0) / n; };
    const auto scale_of = [&] {
        return 1.0f / sqrtf(threads.reduce(squares, Add(), 0.0f, shared, 1) / n + p.eps);
    };
    if constexpr (kAccesses > 0) {
        Vec own[kAccesses];
        const int own_count = static_cast<int>(count);
        source.take_own(threads, own_count, own);
        for_own<kAccesses>(threads, own_count, [&](int k, int) { sum += sum_of(own[k]); });
        const float mean = mean_of();
        forget_conversions(own);
        for_own<kAccesses>(threads, own_count, [&](int k, int) { squares += squares_about(own[k], mean); });
        const Affine affine = {mean, scale_of()};
        forget_conversions(own);
        for_own<kAccesses>(threads, own_count,
                           [&](int k, int i) { y[i] = affine.apply(own[k], weight, bias, i); });
        threads.finish();
    } else {
#pragma unroll 4
        for (std::int64_t i = threads.thread(); i < count; i += threads.threads())
            sum += sum_of(source.take(i));
        const float mean = mean_of();
#pragma unroll 4
        for (std::int64_t i = threads.thread(); i < count; i += threads.threads()) {
            squares += squares_about(source.again(i), mean);
        }
        const Affine affine = {mean, scale_of()};
#pragma unroll 4
        for (std::int64_t i = threads.thread(); i < count; i += threads.threads()) {
            y[i] = affine.apply(source.again(i), weight, bias, i);
        }
    }
}

}  // namespace

#define X(suffix, dtype, T, N, accesses)                                     \
    extern "C" __global__ void __launch_bounds__(kMostRowThreads)            \
        layer_norm_##suffix(const __grid_constant__ NormParams p) {          \
        layer_norm_rows<T, N, accesses, false>(p);                           \
    }                                                                        \
    extern "C" __global__ void __launch_bounds__(kMostResidualThreads)       \
        layer_norm_residual_##suffix(const __grid_constant__ NormParams p) { \
        layer_norm_rows<T, N, accesses, true>(p);                            \
    }
GPK_ROW_VARIANTS(X)
GPK_LONG_ROW_VARIANTS(X)
#undef X

}  // namespace gpk::kernels
