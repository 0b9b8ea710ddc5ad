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
    TensorMap weights;    // [n / 8][gate, up][8][k / 64][64], the box one of the first by 8 of k's
    GemmProblem problem;  // with the norm of a's rows, where they are held
    GluOp glu;
    std::uint32_t columns;     // of 2 n that a block makes at a time: 16
    std::uint32_t prefetched;  // as in GemvBulkParams
    std::uint32_t* turns;      // so too
};

// X(T, type, form, rows / 8, units of x that a warp holds)
#define GPK_GEMV_GATED_OF(X, T, type) \
    X(T, type, held4_tiles1, 1, 4)    \
    X(T, type, held8_tiles1, 1, 8)    \
    X(T, type, tiles1, 1, 0)          \
    X(T, type, tiles2, 2, 0)
#define GPK_GEMV_GATED(X)                         \
    GPK_GEMV_GATED_OF(X, gpk::bfloat16, bfloat16) \
    GPK_GEMV_GATED_OF(X, gpk::float16, float16)

#define GPK_X(T, type, form, tiles, held) gemv_gated_##type##_##form,
enum class GemvGatedKernel : int { GPK_GEMV_GATED(GPK_X) };
#undef GPK_X

const Kernel& gemm_kernel(GemvGatedKernel which);

}  // namespace gpk
