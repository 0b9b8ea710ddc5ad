// softmax: y = exp(x - max) / sum(exp(x - max)) along the last axis.
#pragma once

#include <cstdint>

#include "kernels/norm/rows.hpp"

namespace gpk::kernels {

struct SoftmaxParams {
    const void* x;  // [rows, n]
    void* y;        // [rows, n]; may be x
    std::int64_t rows;
    std::int64_t n;
};

RowPlan softmax(const RowShape& shape);

}  // namespace gpk::kernels
