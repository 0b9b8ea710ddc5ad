// Rows along one axis, chosen by index.
#pragma once

#include <cstdint>

#include "kernels/elementwise/elements.hpp"

namespace gpk {

class Kernel;

namespace kernels {

inline constexpr int kTakeThreads = 256;

// out[o, j, :] = x[o, indices[j], :], all contiguous, in units of unit_bytes (1, 2, 4, 8 or 16); an index out
// of range gives 0.
struct TakeParams {
    void* out;
    const void* x;
    const void* indices;
    std::int64_t outer, count;  // extents of o and j
    std::int64_t inner;         // units of a row
    std::int64_t extent;        // of x along the axis
    DType index_dtype;
    bool wraps;  // a negative index counts from the end
    std::int32_t unit_bytes;
    std::int32_t lanes;  // threads of a row, a power of two; a block has kTakeThreads / lanes rows
};
const Kernel& take_kernel();

// The index as a place on an axis of `extent`, or -1 where it is out of range.
GPK_HD std::int64_t axis_place(const TakeParams& p, std::int64_t i) {
    if (p.index_dtype <= DType::int64) {  // the signed ones come first
        const std::int64_t index = load<std::int64_t>(p.index_dtype, p.indices, i);
        const std::int64_t place = index < 0 && p.wraps ? index + p.extent : index;
        return place < p.extent && place >= 0 ? place : -1;
    }
    const std::uint64_t index = load<std::uint64_t>(p.index_dtype, p.indices, i);
    return index < static_cast<std::uint64_t>(p.extent) ? static_cast<std::int64_t>(index) : -1;
}

}  // namespace kernels
}  // namespace gpk
