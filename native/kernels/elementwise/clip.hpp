// out = min(max(x, low), high), where a NaN anywhere gives NaN.
#pragma once

#include <cstdint>

#include "kernels/elementwise/elements.hpp"
#include "kernels/elementwise/layout.hpp"

namespace gpk {

class Kernel;

namespace kernels {

// One kernel for each compute type of `dtype`.
struct ClipParams {
    Layout<2> layout;  // out, x: in elements
    void* out;
    const void* x;
    std::uint64_t low_bits, high_bits;  // elements of `dtype`
    DType dtype;                        // of all of them
    bool has_low, has_high;
};
const Kernel& clip_kernel(ComputeType type);

}  // namespace kernels
}  // namespace gpk
