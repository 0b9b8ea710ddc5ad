// gemv: float32 products of a few rows, where reading b once is all the work. (gemv_mma has the 16-bit ones.)
//
//   gemv_*_rows<r>   a: up to r rows, contiguous along k; b: contiguous along k (weights [n, k]).
//   gemv_*_columns   a: one row; b: contiguous along n (weights [k, n]).
//
// Wants 16-byte alignment as gemm_mma does. Accumulates in float32.
#pragma once

#include "kernels/gemm/problem.hpp"

namespace gpk {

class Kernel;

// X(symbol, element type, rows)
#define GPK_GEMV_ROWS_KERNELS(X)    \
    X(gemv_float32_rows1, float, 1) \
    X(gemv_float32_rows2, float, 2) \
    X(gemv_float32_rows4, float, 4) \
    X(gemv_float32_rows8, float, 8)
// X(symbol, element type)
#define GPK_GEMV_COLUMNS_KERNELS(X) X(gemv_float32_columns, float)

#define GPK_X(symbol, ...) symbol,
enum class GemvKernel : int { GPK_GEMV_ROWS_KERNELS(GPK_X) GPK_GEMV_COLUMNS_KERNELS(GPK_X) };
#undef GPK_X

// rows: blocks of (32, warps that share a group, groups), kGemvThreads together. A group of warps makes
// kGemvColumns columns of c; its warps divide k. Grid: x covers the groups, y the batches.
inline constexpr int kGemvThreads = 256;
inline constexpr int kMaxGemvRows = 8;
inline constexpr int kGemvColumns = 2;
// columns: blocks of (kGemvChunks, 32). Thread (x, y) takes 16 bytes of every 32nd row of b; x by x
// neighbouring. Grid: x covers n, y the batches.
inline constexpr int kGemvChunks = 8;

const Kernel& gemm_kernel(GemvKernel which);

}  // namespace gpk
