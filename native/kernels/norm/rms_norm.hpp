// rms_norm: y = x / sqrt(mean(x^2) + eps) * weight, by rows (Zhang & Sennrich 2019, arXiv:1910.07467).
// With a residual, x + residual takes the place of x and is written back to the residual.
#pragma once

#include <cstdint>

#include "base/dtype.hpp"
#include "runtime/kernel.hpp"

namespace gpk::kernels {

struct RmsNormParams {
    const void* x;       // [rows, n]
    void* residual;      // [rows, n], read and written, or null
    const void* weight;  // [n]
    void* y;             // [rows, n]; may be x
    std::int64_t rows;
    std::int64_t n;
    float eps;
    std::int32_t vectorized;  // rows are aligned to 16 bytes and n is a multiple of that
};

const Kernel& rms_norm(DType dtype);

}  // namespace gpk::kernels
