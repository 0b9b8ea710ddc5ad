// conv1d: y[b, o, l] = bias[o] + sum over c, t of weight[o, c, t] * x[b, group(o) + c, l * stride + t *
// dilation - padding], x being 0 outside. Two ways: `conv1d` computes it as it stands, a thread an output,
// where a group has few channels; `conv1d_unfold` lays the windows side by side for a matrix product.
#pragma once

#include <cstdint>

#include "base/dtype.hpp"
#include "base/float_types.hpp"
#include "runtime/kernel.hpp"

namespace gpk::kernels {

struct Conv1dParams {
    const void* x;       // [batch, channels, length]
    const void* weight;  // [outputs, channels / groups, taps], without gaps; not of unfold
    const void* bias;    // [outputs], without gaps, or null; not of unfold
    void* y;  // [batch, outputs, positions]; of unfold [batch, channels, taps, pitch]; without gaps
    std::int64_t batch, channels, length;
    std::int64_t outputs, taps, positions;
    std::int64_t pitch;  // positions, and of unfold what fills up 16 bytes
    std::int64_t groups, stride, padding, dilation;
    std::int64_t x_batch_stride, x_channel_stride, x_stride;  // in elements
};

// Positions of a thread, which share what is read of the weight. They lie a block's threads apart.
inline constexpr int kConv1dSpan = 4;

// Where tap t of output position l reads: outside [0, length) for padding.
GPK_HD std::int64_t conv1d_source(const Conv1dParams& p, std::int64_t l, std::int64_t t) {
    return l * p.stride + t * p.dilation - p.padding;
}

const Kernel& conv1d(DType dtype);
const Kernel& conv1d_unfold(DType dtype);

}  // namespace gpk::kernels
