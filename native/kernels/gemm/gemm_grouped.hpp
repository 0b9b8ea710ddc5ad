// gemm_grouped: products of rows that are sorted by expert with a weight of each: row r of expert e becomes
// a[r] @ weight[e].T, where the rows of e are offsets[e] to offsets[e + 1], which the device alone knows. One
// weight without offsets takes all rows. Gated: the weight has 2 n rows, gate then up, and the result is
// activation(a @ gate.T) * (a @ up.T). Accumulates in float32.
//
//   gemm_grouped_wgmma_*   float16 and bfloat16 on SM 90: the weights are the 64-row operand of wgmma and the
//                          rows of a its columns, so that a group's last tile is as small as its rows. Wants
//                          16-byte alignment as gemm_wgmma does, and n in whole 8.
//   gemm_grouped_mma_*     float16 and bfloat16 on SM 80 and newer, with the same alignment of a and weight
//   gemm_grouped_*         any alignment, and float32
// The last two are not gated. Rows that no expert has are not written.
#pragma once

#include "driver/driver.hpp"
#include "kernels/activation/glu.hpp"  // GluOp
#include "kernels/gemm/problem.hpp"

namespace gpk {

class Kernel;

struct GroupedProblem {
    const void* a;                // [rows, k], rows a_row elements apart
    const void* weight;           // [experts, n, k] or [experts, 2 n, k], without gaps
    void* c;                      // [rows, n], without gaps
    const std::int32_t* offsets;  // [experts + 1]; null: one expert has all rows
    std::int64_t rows, n, k, a_row;
    std::int32_t experts;
    std::int32_t gated;  // 0 or 1
    GluOp glu;
    // Of gemv_gated alone.
    GemmRowNorm norm = {};
    bool weight_settled = false;
};

// What a block, or a cluster of two with neighbouring parts of the weight, makes at a time: 128 rows of the
// weight (of which half are gates where it is gated) by up to `rows` rows of a.
struct GroupedTile {
    int rows;     // a tile may be smaller, in eighths
    int stages;   // of 64 of k, in shared memory
    int cluster;  // blocks that share the rows of a
};
// X(name, rows, stages, cluster)
#define GPK_GROUPED_TILES(X) \
    X(256_pair, 256, 4, 2)   \
    X(128, 128, 6, 1)
#define GPK_X(name, ...) inline constexpr GroupedTile grouped_tile_##name = {__VA_ARGS__};
GPK_GROUPED_TILES(GPK_X)
#undef GPK_X

inline constexpr int kGroupedWeightRows = 128;
inline constexpr int kGroupedDepth = 64;  // of k in a stage
inline constexpr int kGroupedThreads = 3 * 128;
inline constexpr int kGroupedStaging = 64 * 128;  // bytes, of each of the two warpgroups that multiply
inline constexpr int kGroupedOrderRows = 2048;    // of an expert, whose tiles are taken together
// Rows of a that come at a time, and the last of a tile's or of a block's part of them: each box costs much,
// however small it is (those of 16 rows, 0.75 of the rate).
inline constexpr int kGroupedBox = 64, kGroupedRest = 32;
GPK_HD constexpr int grouped_stage_bytes(const GroupedTile& t) {
    return (kGroupedWeightRows + t.rows) * kGroupedDepth * 2;
}
GPK_HD constexpr int grouped_shared_bytes(const GroupedTile& t) {
    return t.stages * (grouped_stage_bytes(t) + 2 * 8) + 2 * kGroupedStaging;
}

struct GemmGroupedParams {
    // Boxes of 64 of k by: kGroupedBox and kGroupedRest rows of a; the rows of the weight, gated in turns of
    // 8 gates and the 8 ups that belong to them (k, 8, 2, n / 8, experts), else (k, n, experts).
    TensorMap a, a_rest, weight;
    GroupedProblem problem;
};

// X(T, type, tile, gated, suffix)
#define GPK_GROUPED_WGMMA(X, T, type) \
    X(T, type, 128, false, )          \
    X(T, type, 128, true, _gated)     \
    X(T, type, 256_pair, false, )     \
    X(T, type, 256_pair, true, _gated)
#define GPK_GROUPED_BFLOAT16(X) GPK_GROUPED_WGMMA(X, gpk::bfloat16, bfloat16)
#define GPK_GROUPED_FLOAT16(X) GPK_GROUPED_WGMMA(X, gpk::float16, float16)

#define GPK_X(T, type, tile, gated, suffix) gemm_grouped_wgmma_##type##_##tile##suffix,
enum class GroupedWgmmaKernel : int { GPK_GROUPED_BFLOAT16(GPK_X) GPK_GROUPED_FLOAT16(GPK_X) };
#undef GPK_X

const Kernel& gemm_kernel(GroupedWgmmaKernel which);

// X(symbol, T, tile): a block makes one tile x tile part of c, and ends at once where there is none for it.
#define GPK_GROUPED_MMA(X)                               \
    X(gemm_grouped_mma_bfloat16_128, gpk::bfloat16, 128) \
    X(gemm_grouped_mma_bfloat16_64, gpk::bfloat16, 64)   \
    X(gemm_grouped_mma_float16_128, gpk::float16, 128)   \
    X(gemm_grouped_mma_float16_64, gpk::float16, 64)
#define GPK_GROUPED_PLAIN(X)                       \
    X(gemm_grouped_bfloat16_64, gpk::bfloat16, 64) \
    X(gemm_grouped_float16_64, gpk::float16, 64)   \
    X(gemm_grouped_float32_64, float, 64)

#define GPK_X(symbol, T, tile) symbol,
enum class GroupedKernel : int { GPK_GROUPED_MMA(GPK_X) GPK_GROUPED_PLAIN(GPK_X) };
#undef GPK_X

const Kernel& gemm_kernel(GroupedKernel which);

}  // namespace gpk
