// gemv_mma: products of up to 16 rows of float16 or bfloat16, on the tensor cores (mma.sync, SM 80 and
// newer). Reading b once is all the work: a language model that decodes is made of these.
//
//   gemv_mma_*_rows      b: contiguous along k (weights [n, k])
//   gemv_mma_*_columns   b: contiguous along n (weights [k, n])
//
// rows wants 16-byte alignment as gemm_mma does and a contiguous along k; columns that of b. Accumulates in
// float32.
#pragma once

#include "kernels/gemm/problem.hpp"

namespace gpk {

class Kernel;

// X(T, type, Out, suffix, rows / 8)
#define GPK_GEMV_MMA_KERNELS(X, T, type) \
    X(T, type, T, , 1)                   \
    X(T, type, T, , 2)                   \
    X(T, type, float, _float32, 1)       \
    X(T, type, float, _float32, 2)
#define GPK_GEMV_MMA_ALL(X)                          \
    GPK_GEMV_MMA_KERNELS(X, gpk::bfloat16, bfloat16) \
    GPK_GEMV_MMA_KERNELS(X, gpk::float16, float16)

// The kernel rows, then the kernel columns, of each.
#define GPK_X(T, type, Out, suffix, tiles) \
    gemv_mma_##type##suffix##_rows_tiles##tiles, gemv_mma_##type##suffix##_columns_tiles##tiles,
enum class GemvMmaKernel : int { GPK_GEMV_MMA_ALL(GPK_X) };
#undef GPK_X

const Kernel& gemm_kernel(GemvMmaKernel which);

inline constexpr int kMaxGemvMmaRows = 16;
inline constexpr int kGemvMmaWarps = 8;
inline constexpr int kGemvMmaThreads = 32 * kGemvMmaWarps;
// Blocks of a cluster share the k of one part of c, which has so many columns:
GPK_HD constexpr int gemv_mma_rows_columns(int tiles) { return 16 * tiles; }
inline constexpr int kGemvMmaColumns = 64;

}  // namespace gpk
