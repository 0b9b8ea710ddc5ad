// gemm: matrix products on the ordinary arithmetic units, for every element type and any strides. What other
// kernels of this folder do faster is theirs; this one takes the rest.
#pragma once

#include <cstdint>

#include "kernels/gemm/problem.hpp"

namespace gpk {

class Kernel;

// X(symbol, element type, tile): a block makes a tile x tile part of c.
#define GPK_GEMM_KERNELS(X)                \
    X(gemm_float32_64, float, 64)          \
    X(gemm_float64_64, double, 64)         \
    X(gemm_float16_64, gpk::float16, 64)   \
    X(gemm_bfloat16_64, gpk::bfloat16, 64) \
    X(gemm_uint8_64, std::uint8_t, 64)     \
    X(gemm_uint16_64, std::uint16_t, 64)   \
    X(gemm_uint32_64, std::uint32_t, 64)   \
    X(gemm_uint64_64, std::uint64_t, 64)   \
    X(gemm_bool_64, bool, 64)

#define GPK_X(symbol, T, tile) symbol,
enum class GemmKernel : int { GPK_GEMM_KERNELS(GPK_X) };
#undef GPK_X

inline constexpr int kGemmThreads = 256;

// Grid: x covers the tiles of c, y the batches (it may be smaller than either; see gemm.cu).
const Kernel& gemm_kernel(GemmKernel which);

}  // namespace gpk
