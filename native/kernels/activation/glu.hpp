// glu: y = f(gate) * up, the gated linear units of Shazeer 2020 (arXiv:2002.05202): swiglu with f = silu,
// geglu with f = gelu, geglu_tanh with its approximation by tanh.
#pragma once

#include <cstdint>

#include "base/dtype.hpp"
#include "runtime/kernel.hpp"

namespace gpk {

// X(name, the function of one array)
#define GPK_GLU_OPS(X) \
    X(swiglu, silu)    \
    X(geglu, gelu)     \
    X(geglu_tanh, gelu_tanh)

enum class GluOp : std::uint8_t {
#define GPK_ENUMERATOR(name, function) name,
    GPK_GLU_OPS(GPK_ENUMERATOR)
#undef GPK_ENUMERATOR
};
inline constexpr int kGluOpCount = 3;

namespace kernels {

struct GluParams {
    const void* gate;  // [rows, n]
    const void* up;    // [rows, n]
    void* y;           // [rows, n], without gaps; may be gate or up
    std::int64_t rows;
    std::int64_t n;
    std::int64_t gate_stride;  // elements from row to row
    std::int64_t up_stride;
    bool vectorized;  // n, the strides and the addresses suit accesses of 16 bytes
};

const Kernel& glu(GluOp op, DType dtype);

}  // namespace kernels
}  // namespace gpk
