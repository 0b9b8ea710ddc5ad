// Copies between views: of raw elements, or converting from one dtype to another.
//
// Conversions round to nearest even; integers wrap to shorter ones; a float becomes an integer towards
// zero, saturating where it does not fit, and NaN becomes 0.
#pragma once

#include <cstdint>

#include "kernels/elementwise/elements.hpp"
#include "kernels/elementwise/layout.hpp"

namespace gpk {

class Kernel;

namespace kernels {

// Layout: to, from, in units of element_bytes (1, 2, 4, 8 or 16), to which both are aligned.
struct CopyParams {
    Layout<2> layout;
    void* to;
    const void* from;
    std::int32_t element_bytes;
};
const Kernel& copy_kernel();

// Layout: to, from, in elements. One kernel for each compute type of from_dtype.
struct ConvertParams {
    Layout<2> layout;
    void* to;
    const void* from;
    DType to_dtype, from_dtype;
};
const Kernel& convert_strided(ComputeType from);

// Contiguous arrays, aligned to 16 bytes.
struct ConvertContiguousParams {
    std::int64_t count;
    void* to;
    const void* from;
};
// Null where a pair has no such kernel; the strided one takes all.
const Kernel* convert_contiguous(DType from, DType to);

// X(from, From, to, To): the pairs with contiguous kernels.
#define GPK_CONVERT_PAIRS(X)                          \
    X(float32, float, float16, gpk::float16)          \
    X(float32, float, bfloat16, gpk::bfloat16)        \
    X(float32, float, float64, double)                \
    X(float32, float, int32, std::int32_t)            \
    X(float16, gpk::float16, float32, float)          \
    X(float16, gpk::float16, bfloat16, gpk::bfloat16) \
    X(bfloat16, gpk::bfloat16, float32, float)        \
    X(bfloat16, gpk::bfloat16, float16, gpk::float16) \
    X(float64, double, float32, float)                \
    X(int32, std::int32_t, float32, float)            \
    X(int64, std::int64_t, float32, float)            \
    X(uint8, std::uint8_t, float32, float)            \
    X(bool_, bool, float32, float)

}  // namespace kernels
}  // namespace gpk
