// gemm_float64: float64 products on the tensor cores (mma.sync, SM 80 and newer), for any strides.
#pragma once

#include <cstdint>

#include "kernels/gemm/problem.hpp"

namespace gpk {

class Kernel;

inline constexpr int kGemmFloat64Threads = 256;
inline constexpr int kGemmFloat64Tile = 128;                          // rows and columns of c, a block
inline constexpr int kGemmFloat64Depth = 16, kGemmFloat64Stages = 3;  // of k in a part, and parts under way
// 4 more than a multiple of 16, so that the 4 x 8 elements that a warp reads together meet each bank once.
inline constexpr int kGemmFloat64Pitch = kGemmFloat64Tile + 4;
inline constexpr int kGemmFloat64SharedBytes =
    kGemmFloat64Stages * kGemmFloat64Depth * 2 * kGemmFloat64Pitch * static_cast<int>(sizeof(double));

// Grid: x covers the tiles of c, y the batches.
const Kernel& gemm_float64();

}  // namespace gpk
