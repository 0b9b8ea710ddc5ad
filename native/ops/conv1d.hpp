// Convolution along the last axis.
#pragma once

#include <cstdint>

#include "array/array.hpp"

namespace gpk::ops {

struct Conv1dSettings {
    std::int64_t stride = 1;
    std::int64_t padding = 0;  // zeros at each end
    std::int64_t dilation = 1;
    std::int64_t groups = 1;
};

// x (batch, channels, length) or (channels, length), weight (outputs, channels / groups, taps), bias
// (outputs) or null, all of one dtype: float32, float16 or bfloat16. Gives (batch, outputs, positions), or
// without batch, with positions = (length + 2 * padding - dilation * (taps - 1) - 1) / stride + 1. Sums are
// in float32.
Array conv1d(const Array& x, const Array& weight, const Array* bias, const Conv1dSettings& settings);

}  // namespace gpk::ops
