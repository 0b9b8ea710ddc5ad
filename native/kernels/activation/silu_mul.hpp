// silu_mul: y = silu(gate) * up with silu(x) = x / (1 + exp(-x)) (SwiGLU; Shazeer 2020, arXiv:2002.05202).
#pragma once

#include <cstdint>

#include "base/dtype.hpp"
#include "runtime/kernel.hpp"

namespace gpk::kernels {

struct SiluMulParams {
    const void* gate;  // [rows, n]
    const void* up;    // [rows, n]
    void* y;           // [rows, n], without gaps; may be gate or up
    std::int64_t rows;
    std::int64_t n;
    std::int64_t gate_stride;  // elements from row to row
    std::int64_t up_stride;
    std::int32_t vectorized;  // n, the strides and the addresses suit accesses of 16 bytes
};

const Kernel& silu_mul(DType dtype);

}  // namespace gpk::kernels
