// gemv_bulk: products of up to 16 rows of float16 or bfloat16 where the copy engine brings the weights (SM
// 90). Weights are [n, k] and contiguous along k, or quantised. Accumulates in float32.
//
// gemv_bulk_<type>_rows<r>: wants 16-byte alignment as gemm_mma does, k in whole 64, one batch.
// gemv_bulk_<type>_<format>_rows<r>: c = x @ w.T as gemv_quantized.
#pragma once

#include "driver/driver.hpp"
#include "kernels/gemm/gemv_quantized.hpp"
#include "kernels/gemm/problem.hpp"

namespace gpk {

class Kernel;

struct GemvBulkParams {
    TensorMap weights;  // b.T as [n][k / 64][64], the box 16 rows of 8 of these
    GemmProblem problem;
};

// X(T, type, Out, suffix, rows / 8)
#define GPK_GEMV_BULK_KERNELS(X, T, type) \
    X(T, type, T, , 1)                    \
    X(T, type, T, , 2)                    \
    X(T, type, float, _float32, 1)        \
    X(T, type, float, _float32, 2)
#define GPK_GEMV_BULK_BFLOAT16(X) GPK_GEMV_BULK_KERNELS(X, gpk::bfloat16, bfloat16)
#define GPK_GEMV_BULK_FLOAT16(X) GPK_GEMV_BULK_KERNELS(X, gpk::float16, float16)

#define GPK_X(T, type, Out, suffix, tiles) gemv_bulk_##type##suffix##_tiles##tiles,
enum class GemvBulkKernel : int { GPK_GEMV_BULK_BFLOAT16(GPK_X) GPK_GEMV_BULK_FLOAT16(GPK_X) };
#undef GPK_X

const Kernel& gemm_kernel(GemvBulkKernel which);

// Of c = x @ w.T with activations of `type` (float16 or bfloat16), the quantised weight and up to 16 rows.
const Kernel& gemv_bulk_quantized(DType type, const QuantLayout& w, std::int64_t m);

inline constexpr int kBulkWarps = 16;  // that multiply; one more keeps the copy engine busy
inline constexpr int kBulkThreads = 32 * (kBulkWarps + 1);
inline constexpr int kBulkColumns = 16;  // of c, at a time
// A stage of the ring of shared memory, and at most how many there are: more only delay the first.
inline constexpr int kBulkSteps = 16;  // of 64 bytes of 16 rows
inline constexpr int kBulkStages = 5;
inline constexpr int kLeastBulkStages = 3;  // fewer do not keep the memory busy
inline constexpr int kBulkPlainStageBytes = kBulkSteps * kQuantTileBytes;
inline constexpr int kBulkStaticBytes = 34 * 1024;  // of shared memory beside the ring, at most

GPK_HD constexpr int bulk_stage_bytes(QuantFormat format, std::int64_t group) {
    const int scales = format == QuantFormat::int4    ? 48 * 128 / static_cast<int>(group)
                       : format == QuantFormat::nvfp4 ? 128
                                                      : 0;
    return kBulkSteps * (kQuantTileBytes + scales);
}
// What x takes: `units` of 32 of k, and zeros for a step.
GPK_HD constexpr std::int64_t bulk_x_bytes(std::int64_t m, std::int64_t units, int step_units) {
    return 64 * m * (units + step_units);
}

}  // namespace gpk
