// softmax_columns: softmax along an axis that is not the last: y[o, k, i] = exp(x[o, k, i] - max) / sum over
// k.
#pragma once

#include <cstdint>

#include "base/dtype.hpp"
#include "runtime/kernel.hpp"

namespace gpk::kernels {

struct SoftmaxColumnsParams {
    const void* x;  // [outer, n, inner]
    void* y;        // [outer, n, inner]
    std::int64_t outer, n, inner;
    bool vectorized;              // inner and the addresses suit accesses of 16 bytes
    std::uint32_t column_blocks;  // of an outer one
};

// A block has kColumnLanes accesses side by side and kColumnRows below one another. Grid: column_blocks *
// outer.
inline constexpr int kColumnLanes = 32, kColumnRows = 8;

const Kernel& softmax_columns(DType dtype);

}  // namespace gpk::kernels
