// Times of an NVIDIA H200, fitted as benchmarks/tune_gemm.py does it, which writes this file anew.
#pragma once

#include "ops/matmul_variants.hpp"

namespace gpk::ops {

// Start, tile, part of k, share of the memory's time: see WgmmaTimes.
inline constexpr WgmmaTimes wgmma_times_128x256_pair = {0.89f, 2.24f, 0.6442f, 0.000f};
inline constexpr WgmmaTimes wgmma_times_128x224_pair = {0.97f, 1.86f, 0.5673f, 0.000f};
inline constexpr WgmmaTimes wgmma_times_128x192_pair = {1.24f, 1.48f, 0.4897f, 0.000f};
inline constexpr WgmmaTimes wgmma_times_128x176_pair = {1.12f, 1.62f, 0.4520f, 0.000f};
inline constexpr WgmmaTimes wgmma_times_128x160_pair = {1.33f, 1.40f, 0.4132f, 0.000f};
inline constexpr WgmmaTimes wgmma_times_128x144_pair = {1.59f, 1.19f, 0.3796f, 0.000f};
inline constexpr WgmmaTimes wgmma_times_128x128_pair = {2.20f, 0.60f, 0.3449f, 0.000f};
inline constexpr WgmmaTimes wgmma_times_128x112_pair = {0.32f, 1.14f, 0.3100f, 0.000f};
inline constexpr WgmmaTimes wgmma_times_128x256 = {0.00f, 1.92f, 0.6637f, 0.000f};
inline constexpr WgmmaTimes wgmma_times_128x128 = {0.00f, 0.70f, 0.3986f, 0.000f};
inline constexpr WgmmaTimes wgmma_times_128x128_split2 = {0.00f, 4.90f, 0.3651f, 0.153f};
inline constexpr WgmmaTimes wgmma_times_128x96_split2 = {0.00f, 4.10f, 0.2142f, 0.590f};
inline constexpr WgmmaTimes wgmma_times_128x64_split2 = {0.00f, 0.53f, 0.1484f, 1.102f};
inline constexpr WgmmaTimes wgmma_times_64x256 = {0.00f, 3.21f, 0.2958f, 0.656f};
inline constexpr WgmmaTimes wgmma_times_64x256_split4 = {0.00f, 6.53f, 0.5067f, 0.163f};
inline constexpr WgmmaTimes wgmma_times_64x192_split3 = {0.00f, 5.25f, 0.2894f, 0.443f};
inline constexpr WgmmaTimes wgmma_times_64x128 = {0.00f, 2.32f, 0.1961f, 0.547f};
inline constexpr WgmmaTimes wgmma_times_64x128_split2 = {1.16f, 3.17f, 0.2172f, 0.496f};
inline constexpr WgmmaTimes wgmma_times_64x96_split3 = {1.93f, 4.21f, 0.0000f, 1.261f};
inline constexpr WgmmaTimes wgmma_times_64x64_split2 = {0.00f, 3.87f, 0.1990f, 0.804f};

}  // namespace gpk::ops
