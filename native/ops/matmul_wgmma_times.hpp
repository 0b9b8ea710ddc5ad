// Times of an NVIDIA H200, fitted by benchmarks/tune_gemm.py, which writes this file anew.
#pragma once

#include "ops/matmul_variants.hpp"

namespace gpk::ops {

// Start, tile, part of k, shares of the memory's time and of the L2 cache's: see WgmmaTimes.
inline constexpr WgmmaTimes wgmma_times_128x256_pair = {1.00f, 2.72f, 0.5998f, 0.900f, 0.600f};
inline constexpr WgmmaTimes wgmma_times_128x224_pair = {1.29f, 2.41f, 0.5144f, 1.108f, 0.582f};
inline constexpr WgmmaTimes wgmma_times_128x192_pair = {1.56f, 1.93f, 0.4443f, 1.152f, 0.520f};
inline constexpr WgmmaTimes wgmma_times_128x176_pair = {1.96f, 1.81f, 0.3921f, 1.136f, 0.549f};
inline constexpr WgmmaTimes wgmma_times_128x160_pair = {1.72f, 1.96f, 0.3557f, 1.139f, 0.526f};
inline constexpr WgmmaTimes wgmma_times_128x144_pair = {1.89f, 1.77f, 0.3177f, 1.210f, 0.517f};
inline constexpr WgmmaTimes wgmma_times_128x128_pair = {2.95f, 0.41f, 0.2874f, 1.136f, 0.473f};
inline constexpr WgmmaTimes wgmma_times_128x112_pair = {2.15f, 1.47f, 0.2407f, 1.154f, 0.496f};
inline constexpr WgmmaTimes wgmma_times_128x112_beside2 = {2.38f, 1.16f, 0.2430f, 1.140f, 0.547f};
inline constexpr WgmmaTimes wgmma_times_128x96_square = {1.00f, 3.54f, 0.1904f, 1.292f, 0.944f};
inline constexpr WgmmaTimes wgmma_times_128x256 = {1.00f, 2.27f, 0.5827f, 0.955f, 0.454f};
inline constexpr WgmmaTimes wgmma_times_128x128 = {1.44f, 1.48f, 0.2851f, 1.126f, 0.358f};
inline constexpr WgmmaTimes wgmma_times_128x128_split2 = {1.00f, 3.97f, 0.2730f, 1.283f, 0.478f};
inline constexpr WgmmaTimes wgmma_times_128x96_split2 = {1.00f, 3.56f, 0.2030f, 1.229f, 0.544f};
inline constexpr WgmmaTimes wgmma_times_128x64_split2 = {1.00f, 2.95f, 0.1627f, 1.177f, 0.556f};
inline constexpr WgmmaTimes wgmma_times_64x256 = {1.74f, 1.26f, 0.3166f, 1.027f, 0.300f};
inline constexpr WgmmaTimes wgmma_times_64x256_split4 = {1.42f, 5.77f, 0.2863f, 1.180f, 0.702f};
inline constexpr WgmmaTimes wgmma_times_64x192_beside2 = {1.03f, 2.40f, 0.2198f, 1.132f, 0.532f};
inline constexpr WgmmaTimes wgmma_times_64x128 = {2.49f, 0.34f, 0.1351f, 1.050f, 0.300f};
inline constexpr WgmmaTimes wgmma_times_64x128_split2 = {2.62f, 1.34f, 0.1604f, 1.112f, 0.572f};
inline constexpr WgmmaTimes wgmma_times_64x96_beside4 = {1.00f, 2.99f, 0.1894f, 1.001f, 0.686f};
inline constexpr WgmmaTimes wgmma_times_64x96_split3 = {1.00f, 3.76f, 0.1249f, 1.115f, 0.773f};
inline constexpr WgmmaTimes wgmma_times_64x96_turns = {1.90f, 0.94f, 0.1263f, 1.202f, 0.304f};
inline constexpr WgmmaTimes wgmma_times_64x64_turns_beside4 = {1.00f, 2.88f, 0.1303f, 1.170f, 0.576f};
inline constexpr WgmmaTimes wgmma_times_64x64_turns_pair = {2.44f, 0.50f, 0.1331f, 1.338f, 0.426f};
inline constexpr WgmmaTimes wgmma_times_64x32_turns = {2.35f, 0.00f, 0.1223f, 1.069f, 0.316f};

}  // namespace gpk::ops
