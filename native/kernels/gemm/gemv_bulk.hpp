// gemv_bulk: products of up to 16 rows of float16 or bfloat16 where the copy engine brings the weights (SM
// 90). Accumulates in float32.
//
// gemv_bulk_<type>_rows_tiles<r / 8>: weights contiguous along k (weights [n, k]), k in whole 64.
// gemv_bulk_<type>_rows_held<u>_tiles1: so too, of up to 8 rows of up to 512 u elements, which stay in
// registers. gemv_bulk_<type>_streamed_tiles1: so too, of up to 8 rows that are too long to stay in shared
// memory. gemv_bulk_<type>_columns_tiles<r / 8>: weights contiguous along n (weights [k, n]).
//   Both want 16-byte alignment as gemm_mma does, a contiguous along k, and one batch. All add a bias
//   and a residual; rows_held alone has the norm of a's rows.
// gemv_bulk_<type>_<format>_tiles<r / 8>: c = x @ w.T as gemv_quantized.
#pragma once

#include "driver/driver.hpp"
#include "kernels/gemm/gemv_quantized.hpp"
#include "kernels/gemm/problem.hpp"

namespace gpk {

class Kernel;

struct GemvBulkParams {
    TensorMap weights;  // rows: b.T as [n][k / 64][64], the box `columns` of n by 8; else see the sources
    TensorMap x;        // where it streams
    GemmProblem problem;
    std::uint32_t columns;     // of c that a block makes at a time, of weights along k
    std::uint32_t prefetched;  // stages of a block's first tile that the L2 cache is asked for early
    // A word that is 0 before and after, from which blocks take turns at tiles, or null: each has as many. No
    // two kernels that run at one time share it.
    std::uint32_t* turns;
};

// X(T, type, Out, suffix, form, layout, Source, rows / 8, units of x that a warp holds)
#define GPK_GEMV_BULK_OF(X, T, type, Out, suffix)                  \
    X(T, type, Out, suffix, rows_held4, rows, RowsSource, 1, 4)    \
    X(T, type, Out, suffix, rows_held8, rows, RowsSource, 1, 8)    \
    X(T, type, Out, suffix, rows_held12, rows, RowsSource, 1, 12)  \
    X(T, type, Out, suffix, rows, rows, RowsSource, 1, 0)          \
    X(T, type, Out, suffix, rows, rows, RowsSource, 2, 0)          \
    X(T, type, Out, suffix, columns, columns, ColumnsSource, 1, 0) \
    X(T, type, Out, suffix, columns, columns, ColumnsSource, 2, 0)
#define GPK_GEMV_BULK_KERNELS(X, T, type) \
    GPK_GEMV_BULK_OF(X, T, type, T, )     \
    GPK_GEMV_BULK_OF(X, T, type, float, _float32) X(T, type, T, , streamed, rows, StreamedSource, 1, 0)
#define GPK_GEMV_BULK_BFLOAT16(X) GPK_GEMV_BULK_KERNELS(X, gpk::bfloat16, bfloat16)
#define GPK_GEMV_BULK_FLOAT16(X) GPK_GEMV_BULK_KERNELS(X, gpk::float16, float16)

#define GPK_X(T, type, Out, suffix, form, layout, Source, tiles, held) \
    gemv_bulk_##type##suffix##_##form##_tiles##tiles,
enum class GemvBulkKernel : int { GPK_GEMV_BULK_BFLOAT16(GPK_X) GPK_GEMV_BULK_FLOAT16(GPK_X) };
#undef GPK_X

const Kernel& gemm_kernel(GemvBulkKernel which);

// Of c = x @ w.T with activations of `type` (float16 or bfloat16), the quantised weight and up to 16 rows.
const Kernel& gemv_bulk_quantized(DType type, const QuantLayout& w, std::int64_t m);

inline constexpr int kBulkWarps = 16;  // that multiply; one more keeps the copy engine busy
inline constexpr int kBulkThreads = 32 * (kBulkWarps + 1);
inline constexpr int kBulkColumns = 16;  // of c at a time, at most
// A stage of the ring of shared memory, and at most how many there are.
inline constexpr int kBulkSteps = 16;  // of 64 bytes of 16 rows
inline constexpr int kBulkStages = 8;
inline constexpr int kLeastBulkStages = 3;       // fewer do not keep the memory busy
inline constexpr int kLeastQuantizedStages = 2;  // nor of quantised weights
inline constexpr int kBulkPlainStageBytes = kBulkSteps * kQuantTileBytes;
inline constexpr int kBulkStreamedColumns = 32, kBulkStreamedDepth = 256;  // of a stage
inline constexpr int kBulkStreamedRows = 8;
inline constexpr int kBulkStreamedStageBytes =
    2 * kBulkStreamedDepth * (kBulkStreamedColumns + kBulkStreamedRows);
inline constexpr int kBulkStaticBytes = 34 * 1024;  // of shared memory beside the ring, at most

// Steps of a stage that one warp has, for up to `m` rows: with few to a tile, waiting costs more than the
// work.
GPK_HD constexpr int bulk_rounds(QuantFormat format, std::int64_t m) {
    return quant_bits(format) == 4 && m <= 8 ? 2 : 1;
}
GPK_HD constexpr int bulk_stage_bytes(QuantFormat format, std::int64_t group, std::int64_t m) {
    const int scales = format == QuantFormat::nvfp4 ? 128
                       : group != 0 ? 2 * 4 * kQuantRows * quant_step(format) / static_cast<int>(group)
                                    : 0;  // and offsets
    return bulk_rounds(format, m) * kBulkSteps * (kQuantTileBytes + scales);
}
// The sums of x of the groups that have a scale each (`group`: 0 where there are none), for 8 or 16 rows.
GPK_HD constexpr std::int64_t bulk_group_bytes(std::int64_t m, std::int64_t units, std::int64_t group) {
    return group == 0 ? 0 : units * 32 / group * (m > 8 ? 64 : 32);
}
// What a block holds beside the ring: `units` of 32 of x, zeros for a step, and the groups' sums.
GPK_HD constexpr std::int64_t bulk_beside_bytes(std::int64_t m, std::int64_t units, int step_units,
                                                std::int64_t group) {
    return 64 * m * (units + step_units) + bulk_group_bytes(m, units, group);
}

}  // namespace gpk
