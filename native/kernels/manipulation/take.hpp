// Elements along one axis, chosen by index.
#pragma once

#include <cstdint>

#include "kernels/elementwise/elements.hpp"
#include "kernels/elementwise/layout.hpp"

namespace gpk {

class Kernel;

namespace kernels {

// out[o, j, i] = x[o, indices[j], i], all contiguous; a negative index counts from the end, one out of
// range gives 0. `inner` and the layout count units of unit_bytes (1, 2, 4, 8 or 16).
struct TakeParams {
    Layout<2> layout;  // of out: the place in x but for the index, and the place in indices
    std::int64_t inner;
    std::int64_t extent;  // of x along the axis
    void* out;
    const void* x;
    const void* indices;
    DType index_dtype;
    std::int32_t unit_bytes;
};
const Kernel& take_kernel();

// The index as a place on an axis of `extent`, or -1 where it is out of range.
GPK_HD std::int64_t axis_place(DType dtype, const void* indices, std::int64_t i, std::int64_t extent) {
    if (dtype <= DType::int64) {  // the signed ones come first
        const std::int64_t index = load<std::int64_t>(dtype, indices, i);
        const std::int64_t place = index < 0 ? index + extent : index;
        return place < extent && place >= 0 ? place : -1;
    }
    const std::uint64_t index = load<std::uint64_t>(dtype, indices, i);
    return index < static_cast<std::uint64_t>(extent) ? static_cast<std::int64_t>(index) : -1;
}

}  // namespace kernels
}  // namespace gpk
