// gemm_float32: large float32 products in float32, on the ordinary arithmetic units.
//
// A block makes 128 x 256 of c, a thread 16 x 8: 128 multiplications for each six 16-byte reads of shared
// memory, which is what lets the arithmetic units, not the reads, set the pace.
#pragma once

#include <cstdint>

#include "kernels/gemm/problem.hpp"

namespace gpk {

class Kernel;

// What is contiguous in an operand: k, or the other dimension (m of a, n of b), both wanting 16-byte
// alignment as gemm_mma does; or nothing in particular.
enum class Float32Operand : int { along_k, across, any };

// X(symbol, a, b)
#define GPK_GEMM_FLOAT32_KERNELS(X)      \
    X(gemm_float32_kk, along_k, along_k) \
    X(gemm_float32_kn, along_k, across)  \
    X(gemm_float32_mn, across, across)   \
    X(gemm_float32_any, any, any)

#define GPK_X(symbol, ...) symbol,
enum class GemmFloat32Kernel : int { GPK_GEMM_FLOAT32_KERNELS(GPK_X) };
#undef GPK_X

inline constexpr int kGemmFloat32Threads = 256;
inline constexpr int kGemmFloat32Rows = 128, kGemmFloat32Columns = 256;  // of c, a block
inline constexpr int kGemmFloat32Depth = 16, kGemmFloat32Stages = 3;  // of k in a part, and parts under way
inline constexpr int kGemmFloat32SharedBytes =
    kGemmFloat32Stages * kGemmFloat32Depth * (kGemmFloat32Rows + 4 + kGemmFloat32Columns + 4) * 4;

// Grid: x covers the tiles of c, y the batches.
const Kernel& gemm_kernel(GemmFloat32Kernel which);

}  // namespace gpk
