// out = min(max(x, low), high), where a NaN anywhere gives NaN.
#pragma once

#include <cstdint>

#include "kernels/elementwise/elements.hpp"
#include "kernels/elementwise/layout.hpp"

namespace gpk {

class Kernel;

namespace kernels {

struct ClipBounds {
    std::uint64_t low_bits, high_bits;  // elements of `dtype`
    DType dtype;                        // of x and out too
    bool has_low, has_high;
};

// One kernel for each compute type of the dtype.
struct ClipParams {
    Layout<2> layout;  // out, x: in elements
    void* out;
    const void* x;
    ClipBounds bounds;
};
const Kernel& clip_kernel(ComputeType type);

// Contiguous arrays, aligned to 16 bytes. A thread a pack or element that fills none.
struct ClipPacksParams {
    std::int64_t count;
    void* out;
    const void* x;
    ClipBounds bounds;
};
// Null where a dtype has no such kernel.
const Kernel* clip_packs(DType dtype);

// X(dtype, type): those that have.
#define GPK_CLIP_PACKS(X)      \
    X(float16, gpk::float16)   \
    X(bfloat16, gpk::bfloat16) \
    X(float32, float)          \
    X(float64, double)         \
    X(int8, std::int8_t)       \
    X(uint8, std::uint8_t)     \
    X(int32, std::int32_t)     \
    X(int64, std::int64_t)

}  // namespace kernels
}  // namespace gpk
