// gemm_codes_<type>_<format>: c = x @ w.T for any number of rows x of float16 or bfloat16 and a quantised
// weight w (SM 90). Codes become numbers in registers, the left operand of wgmma, so that c is made turned
// around, 128 of its columns and 64 of its rows a block. Of formats with a scale for each group they are
// multiplied by it and rounded to x's type, as dequantize does; of others the scale comes last. Sums are
// float32.
// arrange_rows_<type>: x as those kernels read it.
#pragma once

#include "base/dtype.hpp"
#include "driver/driver.hpp"
#include "kernels/gemm/quantized.hpp"

namespace gpk {

class Kernel;

inline constexpr int kCodesRows = 64, kCodesColumns = 128;  // of c, of a block
inline constexpr int kCodesDepth = 128;                     // of k, of a stage
inline constexpr int kCodesXBytes = kCodesRows * kCodesDepth * 2;
inline constexpr int kCodesTiles = kCodesColumns / kQuantRows;  // each of a warp that multiplies
inline constexpr int kCodesThreads = 32 * (kCodesTiles + 1);
inline constexpr int kCodesStages = 8;                 // of the ring, at most
inline constexpr int kLeastCodesStages = 2;            // which hold a block's sums, too
inline constexpr int kCodesPitch = kCodesColumns + 4;  // of a row of sums, in shared memory

GPK_HD constexpr std::int64_t codes_stages(std::int64_t k) { return (k + kCodesDepth - 1) / kCodesDepth; }

// Where x[row, column] lies, in elements: [rows / 64][stages of k][2][64 rows] of 128 bytes, with the
// 128-byte swizzle. Of 32 along k a thread t of four has 8 t to 8 t + 7 of a weight, which are 2 t, 2 t + 1,
// 2 t + 8 and 2 t + 9 of two instructions.
GPK_HD constexpr std::int64_t arranged_place(std::int64_t row, std::int64_t column, std::int64_t stages) {
    const std::int64_t stage = column / kCodesDepth, half = column / 64 % 2;
    const auto t = static_cast<int>(column % 32 / 8),
               piece = static_cast<int>(column / 32 % 2 * 4 + column % 8 / 2);
    const auto line = static_cast<int>(row % kCodesRows);
    return ((row / kCodesRows * stages + stage) * 2 + half) * (kCodesRows * 64) + line * 64 +
           (piece ^ line % 8) * 8 + 2 * t + column % 2;
}

struct ArrangeRowsParams {
    const void* x;  // [m, k]
    void* out;
    std::int64_t m, k;
    std::int64_t x_row;
    bool wide;  // each row begins at 16 bytes
};

struct GemmCodesParams {
    // Of w: words [tiles of n][steps of k][256], scales and offsets as words [tiles of n][of a row].
    TensorMap codes, scales, offsets;
    const void* x;  // as arrange_rows leaves it
    void* c;        // [m, n], rows c_row elements apart
    std::int64_t m;
    std::int64_t c_row;
    bool float32_out;  // c is float32, else of x's type
    bool wide;         // four columns of c in a row are one access
    QuantLayout w;
    std::int32_t stages, stage_pitch;  // of the ring, in bytes
    std::int32_t stage_bytes;          // codes_stage_bytes()
    std::int32_t stage_scales;         // codes_stage_scales()
};

// Words of scales that a tile has in a stage.
GPK_HD constexpr int codes_stage_scales(const QuantLayout& w) {
    return w.format == QuantFormat::nvfp4 ? kQuantRows * kCodesDepth / kNvfp4Block / 4
           : w.group != 0                 ? kQuantRows * kCodesDepth / static_cast<int>(w.group)
                                          : 0;
}
// What comes for a stage: x, codes, scales, offsets.
GPK_HD constexpr int codes_stage_bytes(const QuantLayout& w) {
    const int steps = kCodesDepth / quant_step(w.format);
    const int scales = (w.offsets != nullptr ? 8 : 4) * codes_stage_scales(w);
    return kCodesXBytes + kCodesTiles * (steps * kQuantTileBytes + scales);
}

// X(T, type, format's name, Format, whether groups share a scale)
#define GPK_GEMM_CODES_KERNELS(X, T, type) \
    X(T, type, int8, Int8, false)          \
    X(T, type, int8_groups, Int8, true)    \
    X(T, type, int4_groups, Int4, true)    \
    X(T, type, fp8, Fp8, false)            \
    X(T, type, fp8_groups, Fp8, true)      \
    X(T, type, nvfp4, Nvfp4, false)
#define GPK_GEMM_CODES_BFLOAT16(X) GPK_GEMM_CODES_KERNELS(X, gpk::bfloat16, bfloat16)
#define GPK_GEMM_CODES_FLOAT16(X) GPK_GEMM_CODES_KERNELS(X, gpk::float16, float16)

struct CodesKernel {
    QuantFormat format;
    bool groups;
};
inline constexpr CodesKernel kCodesKernels[] = {  // as above
    {QuantFormat::int8, false}, {QuantFormat::int8, true}, {QuantFormat::int4, true},
    {QuantFormat::fp8, false},  {QuantFormat::fp8, true},  {QuantFormat::nvfp4, false}};

// For activations of `type`, float16 or bfloat16.
const Kernel& arrange_rows(DType type);
const Kernel& gemm_codes(DType type, const QuantLayout& w);

}  // namespace gpk
