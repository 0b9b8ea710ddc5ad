// Times of an NVIDIA H200, fitted by benchmarks/tune_gemm.py, which writes this file anew.
#pragma once

#include "ops/matmul_variants.hpp"

namespace gpk::ops {

// Start, tile, part of k, shares of the memory's time and of the L2 cache's: see WgmmaTimes.
inline constexpr WgmmaTimes wgmma_times_128x256_pair = {1.08f, 3.66f, 0.5668f, 0.900f, 0.646f};
inline constexpr WgmmaTimes wgmma_times_128x224_pair = {1.26f, 3.19f, 0.5019f, 0.900f, 0.590f};
inline constexpr WgmmaTimes wgmma_times_128x192_pair = {2.42f, 2.14f, 0.4287f, 0.900f, 0.572f};
inline constexpr WgmmaTimes wgmma_times_128x176_pair = {2.46f, 2.07f, 0.3831f, 0.900f, 0.566f};
inline constexpr WgmmaTimes wgmma_times_128x160_pair = {2.53f, 1.95f, 0.3513f, 0.900f, 0.533f};
inline constexpr WgmmaTimes wgmma_times_128x144_pair = {2.51f, 1.84f, 0.3216f, 0.949f, 0.493f};
inline constexpr WgmmaTimes wgmma_times_128x128_pair = {3.60f, 0.49f, 0.2885f, 0.954f, 0.458f};
inline constexpr WgmmaTimes wgmma_times_128x112_pair = {2.81f, 1.46f, 0.2470f, 1.006f, 0.454f};
inline constexpr WgmmaTimes wgmma_times_128x144_below4 = {2.07f, 2.10f, 0.3305f, 0.954f, 0.608f};
inline constexpr WgmmaTimes wgmma_times_128x112_below4 = {2.26f, 1.99f, 0.2486f, 1.035f, 0.537f};
inline constexpr WgmmaTimes wgmma_times_128x80_below4 = {2.07f, 1.90f, 0.1950f, 1.108f, 0.432f};
inline constexpr WgmmaTimes wgmma_times_128x112_beside2 = {2.60f, 1.56f, 0.2544f, 0.943f, 0.447f};
inline constexpr WgmmaTimes wgmma_times_128x80_beside2 = {2.81f, 1.24f, 0.1962f, 0.900f, 0.469f};
inline constexpr WgmmaTimes wgmma_times_128x80_oblong = {2.92f, 1.22f, 0.1949f, 1.274f, 0.713f};
inline constexpr WgmmaTimes wgmma_times_128x96_square = {2.57f, 1.75f, 0.2206f, 0.974f, 0.614f};
inline constexpr WgmmaTimes wgmma_times_128x256 = {1.19f, 2.91f, 0.5659f, 0.949f, 0.453f};
inline constexpr WgmmaTimes wgmma_times_128x128 = {2.25f, 1.35f, 0.2821f, 0.992f, 0.353f};
inline constexpr WgmmaTimes wgmma_times_128x128_split2 = {1.00f, 4.85f, 0.2718f, 1.085f, 0.490f};
inline constexpr WgmmaTimes wgmma_times_128x96_split2 = {1.00f, 4.47f, 0.2049f, 1.131f, 0.478f};
inline constexpr WgmmaTimes wgmma_times_128x64_split2 = {1.00f, 4.06f, 0.1577f, 1.182f, 0.459f};
inline constexpr WgmmaTimes wgmma_times_128x96_split2_pair = {1.00f, 4.69f, 0.2115f, 1.197f, 0.501f};
inline constexpr WgmmaTimes wgmma_times_64x256 = {2.45f, 0.67f, 0.3191f, 1.073f, 0.300f};
inline constexpr WgmmaTimes wgmma_times_64x256_split4 = {1.13f, 6.07f, 0.3074f, 1.292f, 0.526f};
inline constexpr WgmmaTimes wgmma_times_64x192_beside2 = {2.45f, 1.22f, 0.2466f, 1.140f, 0.340f};
inline constexpr WgmmaTimes wgmma_times_64x128 = {2.89f, 0.44f, 0.1463f, 0.958f, 0.300f};
inline constexpr WgmmaTimes wgmma_times_64x128_split2 = {1.38f, 3.70f, 0.1539f, 1.180f, 0.452f};
inline constexpr WgmmaTimes wgmma_times_64x96_split3 = {1.00f, 4.39f, 0.1307f, 1.199f, 0.502f};
inline constexpr WgmmaTimes wgmma_times_64x96_turns = {2.55f, 0.97f, 0.1302f, 1.013f, 0.314f};
inline constexpr WgmmaTimes wgmma_times_64x64_turns_pair = {3.02f, 0.67f, 0.1483f, 0.955f, 0.354f};
inline constexpr WgmmaTimes wgmma_times_64x80_turns_below4 = {3.05f, 0.90f, 0.1372f, 1.031f, 0.412f};
inline constexpr WgmmaTimes wgmma_times_64x48_turns_below4 = {2.87f, 0.73f, 0.1312f, 1.019f, 0.300f};
inline constexpr WgmmaTimes wgmma_times_64x32_turns = {2.70f, 0.37f, 0.1138f, 0.996f, 0.300f};

}  // namespace gpk::ops
