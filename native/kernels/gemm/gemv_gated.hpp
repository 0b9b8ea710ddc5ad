// gemv_gated: activation(x @ gate.T) * (x @ up.T) of up to 16 rows of float16 or bfloat16, where the copy
// engine brings the weights (SM 90): gemv_bulk, whose 16 rows of weights at a time are 8 gates and the 8 ups
// that belong to them.
//
// Wants of the weight [2 n, k], gates first, what gemv_bulk does, and n in whole 8. b_col is of its rows.
#pragma once

#include "kernels/activation/glu.hpp"  // GluOp
#include "kernels/gemm/gemv_bulk.hpp"

namespace gpk {

struct GemvGatedParams {
    TensorMap weights;  // [n / 8][gate, up][8][k / 64][64], the box one of the first by 8 of k's
    GemmProblem problem;
    GluOp glu;
};

// X(T, type, rows / 8)
#define GPK_GEMV_GATED(X)         \
    X(gpk::bfloat16, bfloat16, 1) \
    X(gpk::bfloat16, bfloat16, 2) \
    X(gpk::float16, float16, 1)   \
    X(gpk::float16, float16, 2)

#define GPK_X(T, type, tiles) gemv_gated_##type##_tiles##tiles,
enum class GemvGatedKernel : int { GPK_GEMV_GATED(GPK_X) };
#undef GPK_X

const Kernel& gemm_kernel(GemvGatedKernel which);

}  // namespace gpk
