// gemm_mma: matrix products on the tensor cores (mma.sync, SM 80 and newer): float16 and bfloat16, and
// float32 rounded to tf32. Accumulates in float32.
//
// Wants 16-byte alignment: the start of a, b and every batch of them, and the stride of the dimension
// that is not contiguous. Every extent may be ragged.
#pragma once

#include "kernels/gemm/problem.hpp"

namespace gpk {

class Kernel;

// X(symbol, element type, tile, a is contiguous along k, b is contiguous along k): a block makes a
// tile x tile part of c. What is not contiguous along k is so along m or n.
#define GPK_GEMM_MMA_KERNELS(X)                                   \
    X(gemm_mma_bfloat16_128_kk, gpk::bfloat16, 128, true, true)   \
    X(gemm_mma_bfloat16_128_kn, gpk::bfloat16, 128, true, false)  \
    X(gemm_mma_bfloat16_128_mk, gpk::bfloat16, 128, false, true)  \
    X(gemm_mma_bfloat16_128_mn, gpk::bfloat16, 128, false, false) \
    X(gemm_mma_bfloat16_64_kk, gpk::bfloat16, 64, true, true)     \
    X(gemm_mma_bfloat16_64_kn, gpk::bfloat16, 64, true, false)    \
    X(gemm_mma_float16_128_kk, gpk::float16, 128, true, true)     \
    X(gemm_mma_float16_128_kn, gpk::float16, 128, true, false)    \
    X(gemm_mma_float16_128_mk, gpk::float16, 128, false, true)    \
    X(gemm_mma_float16_128_mn, gpk::float16, 128, false, false)   \
    X(gemm_mma_float16_64_kk, gpk::float16, 64, true, true)       \
    X(gemm_mma_float16_64_kn, gpk::float16, 64, true, false)      \
    X(gemm_mma_tf32_128_kk, float, 128, true, true)               \
    X(gemm_mma_tf32_128_kn, float, 128, true, false)              \
    X(gemm_mma_tf32_128_mk, float, 128, false, true)              \
    X(gemm_mma_tf32_128_mn, float, 128, false, false)             \
    X(gemm_mma_tf32_64_kk, float, 64, true, true)                 \
    X(gemm_mma_tf32_64_kn, float, 64, true, false)

#define GPK_X(symbol, T, tile, a_along_k, b_along_k) symbol,
enum class GemmMmaKernel : int { GPK_GEMM_MMA_KERNELS(GPK_X) };
#undef GPK_X

inline constexpr int kMmaStages = 4;       // parts of k under way at a time
inline constexpr int kMmaDepthBytes = 64;  // of k in one part: 32 elements of 16 bits, 16 of tf32

GPK_HD constexpr int mma_threads(int tile) { return tile == 128 ? 256 : 128; }
GPK_HD constexpr int mma_shared_bytes(int tile) { return kMmaStages * 2 * tile * kMmaDepthBytes; }

const Kernel& gemm_kernel(GemmMmaKernel which);

}  // namespace gpk
