// gemm_wgmma: matrix products on the tensor cores of SM 90 (wgmma, fed by the bulk copy engine), with an
// epilogue: float16 and bfloat16, float32 as tf32 (rounded to nearest by the copy engine), int8 to int32, and
// float8 with scales. Accumulates in float32; int8 exactly, in int32.
//
// Wants of a and b what a TensorMap wants: 16-byte alignment of the start and of every stride but the
// contiguous one, no stride below 1 but of an operand that is broadcast over a batch, extents below 2^31; and
// at most two batch dimensions. c may be anything; it is written fastest where it is aligned, too. Every
// extent may be ragged.
#pragma once

#include "driver/driver.hpp"
#include "kernels/gemm/problem.hpp"

namespace gpk {

class Kernel;

// What the two warpgroups that multiply take by turns: nothing, since each makes its part of the tile all the
// time; tiles, so that one multiplies while the other stores; or stages of k, which they add up at the end.
enum class WgmmaTurns { none, tiles, k };

// What a block makes of c at a time, and how.
struct WgmmaTile {
    int rows, columns;
    int stages;  // of 128 bytes of k, in shared memory
    int below;   // blocks of a cluster, one below the other, that share b's part of a tile
    int beside;  // and side by side, that share a's
    int split;   // and that share the k of one tile
    WgmmaTurns turns;
    int per_sm = 1;  // blocks that fit on a multiprocessor
};

// X(name, rows, columns, stages, below, beside, split, turns, per_sm). pair: 2 below each other; square: and
// 2 beside; oblong: and 4 beside; turns: of k.
#define GPK_WGMMA_TILES(X)                                          \
    X(128x256_pair, 128, 256, 4, 2, 1, 1, WgmmaTurns::none, 1)      \
    X(128x224_pair, 128, 224, 4, 2, 1, 1, WgmmaTurns::none, 1)      \
    X(128x192_pair, 128, 192, 4, 2, 1, 1, WgmmaTurns::none, 1)      \
    X(128x176_pair, 128, 176, 5, 2, 1, 1, WgmmaTurns::none, 1)      \
    X(128x160_pair, 128, 160, 5, 2, 1, 1, WgmmaTurns::none, 1)      \
    X(128x144_pair, 128, 144, 5, 2, 1, 1, WgmmaTurns::none, 1)      \
    X(128x128_pair, 128, 128, 6, 2, 1, 1, WgmmaTurns::tiles, 1)     \
    X(128x112_pair, 128, 112, 6, 2, 1, 1, WgmmaTurns::none, 1)      \
    X(128x144_below4, 128, 144, 5, 4, 1, 1, WgmmaTurns::none, 1)    \
    X(128x112_below4, 128, 112, 6, 4, 1, 1, WgmmaTurns::none, 1)    \
    X(128x80_below4, 128, 80, 7, 4, 1, 1, WgmmaTurns::none, 1)      \
    X(128x112_beside2, 128, 112, 6, 1, 2, 1, WgmmaTurns::none, 1)   \
    X(128x80_beside2, 128, 80, 7, 1, 2, 1, WgmmaTurns::none, 1)     \
    X(128x80_oblong, 128, 80, 7, 2, 4, 1, WgmmaTurns::none, 1)      \
    X(128x96_square, 128, 96, 6, 2, 2, 1, WgmmaTurns::none, 1)      \
    X(128x256, 128, 256, 4, 1, 1, 1, WgmmaTurns::none, 1)           \
    X(128x128, 128, 128, 6, 1, 1, 1, WgmmaTurns::none, 1)           \
    X(128x128_split2, 128, 128, 5, 1, 1, 2, WgmmaTurns::none, 1)    \
    X(128x96_split2, 128, 96, 6, 1, 1, 2, WgmmaTurns::none, 1)      \
    X(128x64_split2, 128, 64, 7, 1, 1, 2, WgmmaTurns::none, 1)      \
    X(128x96_split2_pair, 128, 96, 6, 2, 1, 2, WgmmaTurns::none, 1) \
    X(64x256, 64, 256, 4, 1, 1, 1, WgmmaTurns::none, 1)             \
    X(64x256_split4, 64, 256, 4, 1, 1, 4, WgmmaTurns::none, 1)      \
    X(64x192_beside2, 64, 192, 6, 1, 2, 1, WgmmaTurns::none, 1)     \
    X(64x128, 64, 128, 8, 1, 1, 1, WgmmaTurns::tiles, 1)            \
    X(64x128_split2, 64, 128, 7, 1, 1, 2, WgmmaTurns::none, 1)      \
    X(64x96_split3, 64, 96, 8, 1, 1, 3, WgmmaTurns::none, 1)        \
    X(64x96_turns, 64, 96, 10, 1, 1, 1, WgmmaTurns::k, 1)           \
    X(64x64_turns_pair, 64, 64, 12, 2, 1, 1, WgmmaTurns::k, 1)      \
    X(64x80_turns_below4, 64, 80, 10, 4, 1, 1, WgmmaTurns::k, 1)    \
    X(64x48_turns_below4, 64, 48, 12, 4, 1, 1, WgmmaTurns::k, 1)    \
    X(64x32_turns, 64, 32, 16, 1, 1, 1, WgmmaTurns::k, 1)

#define GPK_X(name, ...) inline constexpr WgmmaTile wgmma_tile_##name = {__VA_ARGS__};
GPK_WGMMA_TILES(GPK_X)
#undef GPK_X

// How the sums of the instruction become those of c: as they are; or added up outside of it for each stage
// and multiplied by the scales of blocks of k. (Of float8 the instruction's own addition keeps 14 bits only.)
enum class WgmmaSums { direct, scaled };

// X(T, type, tile, layout, is a contiguous along k, is b; Out, its suffix, sums). b across n wants whole
// boxes of 64 columns for each block of a cluster.
#define GPK_WGMMA_KK(X, T, type, tile) X(T, type, tile, kk, true, true, T, , direct)
#define GPK_WGMMA_KN(X, T, type, tile) X(T, type, tile, kn, true, false, T, , direct)
#define GPK_WGMMA_M(X, T, type, tile)              \
    X(T, type, tile, mk, false, true, T, , direct) \
    X(T, type, tile, mn, false, false, T, , direct)
#define GPK_WGMMA_FLOAT32(X, T, type, tile)                   \
    X(T, type, tile, kk, true, true, float, _float32, direct) \
    X(T, type, tile, kn, true, false, float, _float32, direct)
#define GPK_WGMMA_ALL(X, T, type, tile) \
    GPK_WGMMA_KK(X, T, type, tile) GPK_WGMMA_KN(X, T, type, tile) GPK_WGMMA_M(X, T, type, tile)
#define GPK_WGMMA_16BIT(X, T, type)              \
    GPK_WGMMA_ALL(X, T, type, 128x256_pair)      \
    GPK_WGMMA_KK(X, T, type, 128x224_pair)       \
    GPK_WGMMA_KK(X, T, type, 128x192_pair)       \
    GPK_WGMMA_KK(X, T, type, 128x176_pair)       \
    GPK_WGMMA_KK(X, T, type, 128x160_pair)       \
    GPK_WGMMA_KK(X, T, type, 128x144_pair)       \
    GPK_WGMMA_ALL(X, T, type, 128x128_pair)      \
    GPK_WGMMA_KK(X, T, type, 128x112_pair)       \
    GPK_WGMMA_KK(X, T, type, 128x112_beside2)    \
    GPK_WGMMA_KK(X, T, type, 128x96_square)      \
    GPK_WGMMA_KK(X, T, type, 128x256)            \
    GPK_WGMMA_KN(X, T, type, 128x256)            \
    GPK_WGMMA_ALL(X, T, type, 128x128)           \
    GPK_WGMMA_ALL(X, T, type, 128x128_split2)    \
    GPK_WGMMA_KK(X, T, type, 128x96_split2)      \
    GPK_WGMMA_KK(X, T, type, 128x64_split2)      \
    GPK_WGMMA_KN(X, T, type, 128x64_split2)      \
    GPK_WGMMA_KK(X, T, type, 64x256)             \
    GPK_WGMMA_KN(X, T, type, 64x256)             \
    GPK_WGMMA_KK(X, T, type, 64x256_split4)      \
    GPK_WGMMA_KN(X, T, type, 64x256_split4)      \
    GPK_WGMMA_KK(X, T, type, 64x192_beside2)     \
    GPK_WGMMA_ALL(X, T, type, 64x128)            \
    GPK_WGMMA_ALL(X, T, type, 64x128_split2)     \
    GPK_WGMMA_KK(X, T, type, 64x96_split3)       \
    GPK_WGMMA_KK(X, T, type, 64x96_turns)        \
    GPK_WGMMA_KK(X, T, type, 64x64_turns_pair)   \
    GPK_WGMMA_KK(X, T, type, 64x32_turns)        \
    GPK_WGMMA_KK(X, T, type, 128x144_below4)     \
    GPK_WGMMA_KK(X, T, type, 128x112_below4)     \
    GPK_WGMMA_KK(X, T, type, 128x80_below4)      \
    GPK_WGMMA_KK(X, T, type, 128x80_beside2)     \
    GPK_WGMMA_KK(X, T, type, 128x80_oblong)      \
    GPK_WGMMA_KK(X, T, type, 128x96_split2_pair) \
    GPK_WGMMA_KK(X, T, type, 64x80_turns_below4) \
    GPK_WGMMA_KK(X, T, type, 64x48_turns_below4) \
    GPK_WGMMA_FLOAT32(X, T, type, 128x256_pair)  \
    GPK_WGMMA_FLOAT32(X, T, type, 128x128_pair)  \
    GPK_WGMMA_FLOAT32(X, T, type, 64x128_split2)
// Types that the instruction reads along k only.
#define GPK_WGMMA_ALONG_K(X, T, type, Out, suffix)                \
    X(T, type, 128x256_pair, kk, true, true, Out, suffix, direct) \
    X(T, type, 128x192_pair, kk, true, true, Out, suffix, direct) \
    X(T, type, 128x128_pair, kk, true, true, Out, suffix, direct) \
    X(T, type, 128x128, kk, true, true, Out, suffix, direct)      \
    X(T, type, 64x128, kk, true, true, Out, suffix, direct)       \
    X(T, type, 64x128_split2, kk, true, true, Out, suffix, direct)
#define GPK_WGMMA_BFLOAT16(X) GPK_WGMMA_16BIT(X, gpk::bfloat16, bfloat16)
#define GPK_WGMMA_FLOAT16(X) GPK_WGMMA_16BIT(X, gpk::float16, float16)
#define GPK_WGMMA_INT8(X) GPK_WGMMA_ALONG_K(X, std::int8_t, int8, std::int32_t, )
#define GPK_WGMMA_TF32_ACROSS(X, tile) X(float, tf32, tile, mk, false, true, float, , direct)
#define GPK_WGMMA_TF32(X)                      \
    GPK_WGMMA_ALONG_K(X, float, tf32, float, ) \
    GPK_WGMMA_TF32_ACROSS(X, 128x256_pair)     \
    GPK_WGMMA_TF32_ACROSS(X, 128x192_pair)     \
    GPK_WGMMA_TF32_ACROSS(X, 128x128)
#define GPK_WGMMA_FLOAT8_TO(X, T, type, Out, suffix)               \
    X(T, type, 128x256_pair, kk, true, true, Out, suffix, direct)  \
    X(T, type, 128x128_pair, kk, true, true, Out, suffix, direct)  \
    X(T, type, 128x256, kk, true, true, Out, suffix, direct)       \
    X(T, type, 128x128, kk, true, true, Out, suffix, direct)       \
    X(T, type, 64x128, kk, true, true, Out, suffix, direct)        \
    X(T, type, 64x128_split2, kk, true, true, Out, suffix, direct) \
    X(T, type, 128x128, kk_blocks, true, true, Out, suffix, scaled)
#define GPK_WGMMA_FLOAT8(X, T, type)                          \
    GPK_WGMMA_FLOAT8_TO(X, T, type, gpk::bfloat16, _bfloat16) \
    GPK_WGMMA_FLOAT8_TO(X, T, type, gpk::float16, _float16)   \
    GPK_WGMMA_FLOAT8_TO(X, T, type, float, _float32)
#define GPK_WGMMA_E4M3(X) GPK_WGMMA_FLOAT8(X, gpk::float8_e4m3, e4m3)
#define GPK_WGMMA_E5M2(X) GPK_WGMMA_FLOAT8(X, gpk::float8_e5m2, e5m2)
#define GPK_WGMMA_KERNELS(X) \
    GPK_WGMMA_BFLOAT16(X)    \
    GPK_WGMMA_FLOAT16(X) GPK_WGMMA_TF32(X) GPK_WGMMA_INT8(X) GPK_WGMMA_E4M3(X) GPK_WGMMA_E5M2(X)

#define GPK_X(T, type, tile, layout, a, b, Out, suffix, sums) gemm_wgmma_##type##_##tile##_##layout##suffix,
enum class GemmWgmmaKernel : int { GPK_WGMMA_KERNELS(GPK_X) };
#undef GPK_X

inline constexpr int kWgmmaDepthBytes = 128;     // of k in a stage: the widest swizzle
inline constexpr int kWgmmaBoxBytes = 64 * 128;  // 64 rows of a swizzled box of 16 bits
inline constexpr int kWgmmaStoreRows = 16, kWgmmaStoreBytes = kWgmmaStoreRows * 128;  // a warp's box of c
inline constexpr int kWgmmaConsumers = 2;  // warpgroups that multiply
inline constexpr int kWgmmaThreads = 128 * (1 + kWgmmaConsumers);
// Where consumers take the stages of a tile by turns, each has stages of its own: a barrier tells only
// whether a phase or the one before it is over, and copies do not end in order, so that whoever had not seen
// a stage's last part could take the next for there too early.
#define GPK_X(name, ...)                                      \
    static_assert(wgmma_tile_##name.turns != WgmmaTurns::k || \
                  wgmma_tile_##name.stages % kWgmmaConsumers == 0);
GPK_WGMMA_TILES(GPK_X)
#undef GPK_X

// Two consumers that make one tile divide its rows, or its columns where they are 64 rows only.
GPK_HD constexpr bool wgmma_cuts_columns(const WgmmaTile& t) {
    return t.turns == WgmmaTurns::none && t.rows == 64;
}
GPK_HD constexpr int wgmma_part_columns(const WgmmaTile& t) {
    return wgmma_cuts_columns(t) ? t.columns / kWgmmaConsumers : t.columns;
}
GPK_HD constexpr int wgmma_stage_bytes(const WgmmaTile& t) { return (t.rows + t.columns) * kWgmmaDepthBytes; }
// What blocks that share k send to one.
GPK_HD constexpr int wgmma_received_bytes(const WgmmaTile& t) {
    return (t.split - 1) * t.rows * t.columns * 4 / t.split;
}
// For c on its way: of each warp that multiplies, boxes that take turns. Where consumers divide k, what a
// warp is given by the other one lies there first.
GPK_HD constexpr int wgmma_boxes(const WgmmaTile& t) {
    return t.split > 1 || t.turns == WgmmaTurns::k ? 1 : 2;
}
GPK_HD constexpr int wgmma_given_bytes(const WgmmaTile& t) {  // to a warp
    return t.turns == WgmmaTurns::k ? t.rows * t.columns * 4 / (kWgmmaConsumers * 4) : 0;
}
GPK_HD constexpr int wgmma_staging_bytes(const WgmmaTile& t) {  // of a warp
    const int boxes = wgmma_boxes(t) * kWgmmaStoreBytes, given = wgmma_given_bytes(t);
    return given > boxes ? given : boxes;
}
// Whether there are registers left for an epilogue, beside a consumer's sums.
GPK_HD constexpr bool wgmma_finishes(const WgmmaTile& t) {
    return t.turns != WgmmaTurns::tiles || t.rows * t.columns <= 128 * 128;
}
// What a block stores of what a consumer makes, and whether the copy engine can.
GPK_HD constexpr int wgmma_own_columns(const WgmmaTile& t) {
    return wgmma_part_columns(t) / (t.turns == WgmmaTurns::k ? kWgmmaConsumers : t.split);
}
GPK_HD constexpr bool wgmma_maps_result(const WgmmaTile& t, int itemsize) {
    return wgmma_own_columns(t) * itemsize % 16 == 0;
}
GPK_HD constexpr int wgmma_shared_bytes(const WgmmaTile& t) {
    return t.stages * wgmma_stage_bytes(t) + kWgmmaConsumers * 4 * wgmma_staging_bytes(t) +
           wgmma_received_bytes(t) + (2 * t.stages + 1) * 8;
}

inline constexpr int kWgmmaGroupRows = 2048;  // rows of c whose tiles are taken together

// How c is written: row by row, whatever it is; or by the copy engine, where it is aligned along n and the
// epilogue has no activation and what it adds is aligned, too; or by it where c is contiguous along m and
// there is no epilogue. `pairs`: where a comes through registers, from the registers of the sums, without an
// epilogue.
enum class WgmmaStore : std::int32_t { rows, map, turned, pairs };
// a that lies across k, of elements that the instruction reads along k only.
GPK_HD constexpr bool wgmma_from_registers(bool a_along_k, int itemsize) {
    return !a_along_k && itemsize == 4;
}
GPK_HD constexpr bool wgmma_turns_result(const WgmmaTile& t, bool along_k, int itemsize, int result_size) {
    return along_k && itemsize == 2 && result_size == 2 && wgmma_maps_result(t, 2);
}

// Lines of an operand that lies along k, of a stage: those of a tile, or, where there is less of it, as many
// as there are in eights, since the copy engine takes long to make lines that are not there. Of blocks that
// share them each brings a part; or all, by turns, where they cannot be divided in eights.
struct WgmmaLines {
    std::int32_t count;  // of a box
    std::int32_t by_turns;
};
GPK_HD constexpr int wgmma_lines(int tile, std::int64_t extent) {
    return extent < tile ? static_cast<int>((extent + 7) / 8 * 8) : tile;
}
GPK_HD constexpr WgmmaLines wgmma_brought(int lines, int blocks) {
    return lines % (8 * blocks) == 0 ? WgmmaLines{lines / blocks, 0} : WgmmaLines{lines, 1};
}

struct GemmWgmmaParams {
    TensorMap a, b, c;  // dimensions: the contiguous one, the other, two of batches
    TensorMap c_rest;   // c in boxes of the columns of a tile that are no whole 128 bytes
    GemmProblem problem;
    std::int32_t group;               // of tile rows (of a cluster) that are taken together, for the L2 cache
    std::int32_t successor_may_come;  // before the last block has ended
    WgmmaStore store;
    WgmmaLines a_lines, b_lines;  // of operands along k
    std::int32_t stage_bytes;     // that come for a stage
};

const Kernel& gemm_kernel(GemmWgmmaKernel which);

}  // namespace gpk
