// The device side of rms_norm and layer_norm: with kCentred, about the mean and with a bias.
#pragma once

#include "kernels/norm/rows.cuh"
#include "kernels/overlap.cuh"

namespace gpk::kernels {

// A vector's share of the squares, about `mean`.
template <bool kCentred, class T, int N>
__device__ __forceinline__ float squares_about(const Vector<T, N>& v, float mean) {
    float squares = 0;
#pragma unroll
    for (int j = 0; j < N; ++j) {
        const float value = kCentred ? float(v.values[j]) - mean : float(v.values[j]);
        squares = fmaf(value, value, squares);
    }
    return squares;
}

template <class T, int N>
__device__ __forceinline__ float sum_of(const Vector<T, N>& v) {
    float sum = 0;
#pragma unroll
    for (int j = 0; j < N; ++j) sum += float(v.values[j]);
    return sum;
}

// What comes after the scale. kAll: weight, and with kCentred bias, are there: to ask at each access costs as
// much as the arithmetic does.
template <bool kCentred, bool kAll, class T, int N>
struct Affine {
    const Vector<T, N>*weight, *bias;
    float scale;

    template <class Value>
    __device__ __forceinline__ Vector<T, N> apply(std::int64_t i, Value value) const {
        Vector<T, N> w, b, y;
        if (kAll || weight != nullptr) w = weight[i];
        if (kCentred && (kAll || bias != nullptr)) b = bias[i];
#pragma unroll
        for (int j = 0; j < N; ++j) {
            float normal = value(j) * scale;
            if constexpr (kAll && kCentred) {
                normal = fmaf(normal, float(w.values[j]), float(b.values[j]));
            } else {
                if (kAll || weight != nullptr) normal *= float(w.values[j]);
                if (kCentred && bias != nullptr) normal += float(b.values[j]);
            }
            y.values[j] = T(normal);
        }
        return y;
    }
};

// The variance is of the differences from the mean: a mean much larger than it costs no digits. rsqrtf is
// within 2 units in the last place (CUDA C++ Programming Guide, "Mathematical Functions").
template <class T, int N, int kAccesses, bool kResidual, bool kCentred>
__device__ __forceinline__ void norm_rows(const NormParams& p) {
    using Vec = Vector<T, N>;
    wait_for_predecessor();
    launch_dependents();  // it comes when the last block has begun
    __shared__ RowThreads::Shared shared;
    const auto threads = RowThreads::make<has_clusters<N, kAccesses>>();
    if (threads.row() >= p.rows) return;
    const std::int64_t count = p.n / N, first = threads.row() * count;
    const RowSource<Vec, kResidual> source(p, first);
    const Vec *weight = static_cast<const Vec*>(p.weight), *bias = static_cast<const Vec*>(p.bias);
    Vec* y = static_cast<Vec*>(p.y) + first;
    float sum = 0, squares = 0;
    const auto mean_of = [&] {
        const float all = threads.reduce(sum, Add(), 0.0f, shared, 0), near = all * p.share;
        return fmaf(fmaf(-near, static_cast<float>(p.n), all), p.share, near);  // what a division gives
    };
    const auto scale_of = [&] {
        return rsqrtf(threads.reduce(squares, Add(), 0.0f, shared, 1) * p.share + p.eps);
    };
    // Calls write(affine) with the one that suits the weights.
    const auto with_affine = [&](float scale, auto write) {
        if (weight != nullptr && (!kCentred || bias != nullptr)) {
            write(Affine<kCentred, true, T, N>{weight, bias, scale});
        } else {
            write(Affine<kCentred, false, T, N>{weight, bias, scale});
        }
    };
    if constexpr (kAccesses > 0) {
        // A thread's part is kept in float32 where that takes few registers; else it is converted at each
        // use.
        constexpr bool kWide = kAccesses * N <= 32;
        Vec own[kAccesses];
        float wide[kWide ? kAccesses : 1][N];
        const int own_count = static_cast<int>(count);
        source.take_own(threads, own_count, own);
        if constexpr (kWide) {
            for_own<kAccesses>(threads, own_count, [&](int k, int) {
#pragma unroll
                for (int j = 0; j < N; ++j) wide[k][j] = float(own[k].values[j]);
            });
        }
        float mean = 0;
        if constexpr (kCentred) {
            for_own<kAccesses>(threads, own_count, [&](int k, int) { sum += sum_of(own[k]); });
            mean = mean_of();
        }
        if constexpr (!kWide) forget_conversions(own);
        for_own<kAccesses>(threads, own_count, [&](int k, int) {
            if constexpr (kWide) {
#pragma unroll
                for (int j = 0; j < N; ++j) {
                    if constexpr (kCentred) wide[k][j] -= mean;
                    squares = fmaf(wide[k][j], wide[k][j], squares);
                }
            } else {
                squares += squares_about<kCentred>(own[k], mean);
            }
        });
        const float scale = scale_of();
        if constexpr (!kWide) forget_conversions(own);
        with_affine(scale, [&](auto affine) {
            for_own<kAccesses>(threads, own_count, [&](int k, int i) {
                put(y + i, affine.apply(i, [&](int j) {
                    if constexpr (kWide) return wide[k][j];
                    return kCentred ? float(own[k].values[j]) - mean : float(own[k].values[j]);
                }));
            });
        });
        threads.finish();
    } else {
        if constexpr (kCentred) {
#pragma unroll 4
            for (std::int64_t i = threads.thread(); i < count; i += threads.threads())
                sum += sum_of(source.take(i));
        }
        const float mean = kCentred ? mean_of() : 0.0f;
#pragma unroll 4
        for (std::int64_t i = threads.thread(); i < count; i += threads.threads()) {
            squares += squares_about<kCentred>(kCentred ? source.again(i) : source.take(i), mean);
        }
        with_affine(scale_of(), [&](auto affine) {
#pragma unroll 4
            for (std::int64_t i = threads.thread(); i < count; i += threads.threads()) {
                const Vec v = source.again(i);
                y[i] = affine.apply(i, [&](int j) { return float(v.values[j]) - mean; });
            }
        });
    }
}

// Of the variants of `name`, rms_norm or layer_norm.
#define GPK_NORM_KERNEL(name, suffix, T, N, accesses, centred)           \
    extern "C" __global__ void __launch_bounds__(kMostRowThreads)        \
        name##_##suffix(const __grid_constant__ NormParams p) {          \
        norm_rows<T, N, accesses, false, centred>(p);                    \
    }                                                                    \
    extern "C" __global__ void __launch_bounds__(kMostResidualThreads)   \
        name##_residual_##suffix(const __grid_constant__ NormParams p) { \
        norm_rows<T, N, accesses, true, centred>(p);                     \
    }

}  // namespace gpk::kernels
