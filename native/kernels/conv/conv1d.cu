#include "kernels/conv/conv1d.hpp"
#include "kernels/device.cuh"
#include "kernels/floats.hpp"

namespace gpk::kernels {

// A block has kConv1dSpan positions for each thread, and one row of them after another: of an output, or of a
// window's tap.
__device__ __forceinline__ std::int64_t first_position() {
    return static_cast<std::int64_t>(blockIdx.x) * blockDim.x * kConv1dSpan + threadIdx.x;
}

// The taps of one position that are not in the padding.
__device__ __forceinline__ void inside_taps(const Conv1dParams& p, std::int64_t l, int& begin, int& end) {
    const std::int64_t from = conv1d_source(p, l, 0);  // of tap 0
    const std::int64_t first = from >= 0 ? 0 : (-from + p.dilation - 1) / p.dilation;
    const std::int64_t count = from < p.length ? (p.length - from + p.dilation - 1) / p.dilation : 0;
    begin = static_cast<int>(first < p.taps ? first : p.taps);
    end = static_cast<int>(count < p.taps ? count : p.taps);
}

template <class T>
__device__ __forceinline__ void conv1d_kernel(const Conv1dParams& p) {
    wait_for_predecessor();
    const std::int64_t group_channels = p.channels / p.groups, group_outputs = p.outputs / p.groups;
    const std::int64_t first = first_position();
    int begin[kConv1dSpan], end[kConv1dSpan];
    int all_begin = 0, all_end = static_cast<int>(p.taps);  // the taps that all positions have inside
#pragma unroll
    for (int j = 0; j < kConv1dSpan; ++j) {
        const std::int64_t l = first + j * blockDim.x;
        begin[j] = end[j] = 0;
        if (l < p.positions) inside_taps(p, l, begin[j], end[j]);
        all_begin = begin[j] > all_begin ? begin[j] : all_begin;
        all_end = end[j] < all_end ? end[j] : all_end;
    }
    const std::int64_t tap_stride = p.dilation * p.x_stride, span = blockDim.x * p.stride * p.x_stride;
    for (std::int64_t row = blockIdx.y; row < p.batch * p.outputs; row += gridDim.y) {
        const std::int64_t batch = row / p.outputs, o = row % p.outputs;
        const T* x = static_cast<const T*>(p.x) + batch * p.x_batch_stride +
                     o / group_outputs * group_channels * p.x_channel_stride +
                     conv1d_source(p, first, 0) * p.x_stride;
        const T* weight = static_cast<const T*>(p.weight) + o * group_channels * p.taps;
        const float bias = p.bias != nullptr ? float(static_cast<const T*>(p.bias)[o]) : 0.0f;
        float sums[kConv1dSpan];
#pragma unroll
        for (float& sum : sums) sum = bias;
        for (std::int64_t c = 0; c < group_channels; ++c, x += p.x_channel_stride, weight += p.taps) {
            for (int t = all_begin; t < all_end; ++t) {
                const float factor = float(weight[t]);
                const T* at = x + t * tap_stride;
#pragma unroll
                for (int j = 0; j < kConv1dSpan; ++j) sums[j] += factor * float(at[j * span]);
            }
#pragma unroll
            for (int j = 0; j < kConv1dSpan; ++j) {  // and those that only some have
                for (int t = begin[j]; t < end[j]; ++t) {
                    if (t >= all_begin && t < all_end) t = all_end;
                    if (t < end[j]) sums[j] += float(weight[t]) * float(x[t * tap_stride + j * span]);
                }
            }
        }
#pragma unroll
        for (int j = 0; j < kConv1dSpan; ++j) {
            const std::int64_t l = first + j * blockDim.x;
            if (l < p.positions) static_cast<T*>(p.y)[row * p.positions + l] = T(sums[j]);
        }
    }
}

template <class T>
__device__ __forceinline__ void conv1d_unfold_kernel(const Conv1dParams& p) {
    wait_for_predecessor();
    for (std::int64_t row = blockIdx.y; row < p.batch * p.channels * p.taps; row += gridDim.y) {
        const std::int64_t t = row % p.taps, c = row / p.taps % p.channels, batch = row / p.taps / p.channels;
        const T* x = static_cast<const T*>(p.x) + batch * p.x_batch_stride + c * p.x_channel_stride;
        T* y = static_cast<T*>(p.y) + row * p.pitch;
#pragma unroll
        for (int j = 0; j < kConv1dSpan; ++j) {
            const std::int64_t l = first_position() + j * blockDim.x, at = conv1d_source(p, l, t);
            const bool inside = at >= 0 && at < p.length;
            if (l < p.positions) y[l] = inside ? x[at * p.x_stride] : T(0.0f);
        }
    }
}

#define X(suffix, T)                                                                            \
    extern "C" __global__ void conv1d_##suffix(const __grid_constant__ Conv1dParams p) {        \
        conv1d_kernel<T>(p);                                                                    \
    }                                                                                           \
    extern "C" __global__ void conv1d_unfold_##suffix(const __grid_constant__ Conv1dParams p) { \
        conv1d_unfold_kernel<T>(p);                                                             \
    }
GPK_FLOAT_TYPES(X)
#undef X

}  // namespace gpk::kernels
