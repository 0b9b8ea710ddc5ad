// Times of an NVIDIA H200, fitted by benchmarks/tune_gemm.py, which writes this file anew.
#pragma once

#include "ops/matmul_variants.hpp"

namespace gpk::ops {

// Start, tile, part of k, share of the memory's time: see WgmmaTimes.
inline constexpr WgmmaTimes wgmma_times_128x256_pair = {0.48f, 2.08f, 0.6670f, 0.000f};
inline constexpr WgmmaTimes wgmma_times_128x224_pair = {0.43f, 1.67f, 0.5926f, 0.000f};
inline constexpr WgmmaTimes wgmma_times_128x192_pair = {0.17f, 1.74f, 0.5048f, 0.000f};
inline constexpr WgmmaTimes wgmma_times_128x176_pair = {0.37f, 1.73f, 0.4611f, 0.000f};
inline constexpr WgmmaTimes wgmma_times_128x160_pair = {0.35f, 1.62f, 0.4247f, 0.000f};
inline constexpr WgmmaTimes wgmma_times_128x144_pair = {0.78f, 1.50f, 0.3847f, 0.000f};
inline constexpr WgmmaTimes wgmma_times_128x128_pair = {2.10f, 0.45f, 0.3471f, 0.000f};
inline constexpr WgmmaTimes wgmma_times_128x112_pair = {0.00f, 1.14f, 0.3161f, 0.000f};
inline constexpr WgmmaTimes wgmma_times_128x112_beside2 = {1.14f, 0.77f, 0.3263f, 0.000f};
inline constexpr WgmmaTimes wgmma_times_128x96_square = {0.00f, 4.25f, 0.2546f, 0.000f};
inline constexpr WgmmaTimes wgmma_times_128x256 = {0.86f, 1.30f, 0.6866f, 0.000f};
inline constexpr WgmmaTimes wgmma_times_128x128 = {1.03f, 0.80f, 0.3534f, 0.000f};
inline constexpr WgmmaTimes wgmma_times_128x128_split2 = {0.00f, 3.84f, 0.3207f, 0.292f};
inline constexpr WgmmaTimes wgmma_times_128x96_split2 = {0.00f, 3.13f, 0.2071f, 0.579f};
inline constexpr WgmmaTimes wgmma_times_128x64_split2 = {0.27f, 0.00f, 0.1586f, 0.934f};
inline constexpr WgmmaTimes wgmma_times_64x256 = {0.00f, 3.99f, 0.2364f, 0.689f};
inline constexpr WgmmaTimes wgmma_times_64x256_split4 = {0.00f, 6.95f, 0.0926f, 0.829f};
inline constexpr WgmmaTimes wgmma_times_64x192_beside2 = {0.00f, 3.33f, 0.1818f, 0.676f};
inline constexpr WgmmaTimes wgmma_times_64x128 = {0.14f, 2.34f, 0.1038f, 0.724f};
inline constexpr WgmmaTimes wgmma_times_64x128_split2 = {0.00f, 3.86f, 0.0846f, 0.876f};
inline constexpr WgmmaTimes wgmma_times_64x96_beside4 = {0.00f, 4.43f, 0.0766f, 0.856f};
inline constexpr WgmmaTimes wgmma_times_64x96_split3 = {0.00f, 4.67f, 0.0427f, 0.933f};
inline constexpr WgmmaTimes wgmma_times_64x96_turns = {0.35f, 2.77f, 0.0830f, 0.735f};
inline constexpr WgmmaTimes wgmma_times_64x64_turns_beside4 = {0.00f, 3.68f, 0.0568f, 0.799f};
inline constexpr WgmmaTimes wgmma_times_64x64_turns_pair = {0.22f, 3.62f, 0.0805f, 0.597f};
inline constexpr WgmmaTimes wgmma_times_64x32_turns = {0.00f, 3.40f, 0.0558f, 0.841f};

}  // namespace gpk::ops
