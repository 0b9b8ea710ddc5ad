// softmax: y = exp(x - max) / sum(exp(x - max)) along the last axis.
#pragma once

#include <cstdint>

#include "base/dtype.hpp"
#include "runtime/kernel.hpp"

namespace gpk::kernels {

struct SoftmaxParams {
    const void* x;  // [rows, n]
    void* y;        // [rows, n]; may be x
    std::int64_t rows;
    std::int64_t n;
};

const Kernel& softmax(DType dtype);

}  // namespace gpk::kernels
