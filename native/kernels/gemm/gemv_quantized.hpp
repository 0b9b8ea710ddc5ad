// gemv_quantized: c = x @ w.T for up to 16 rows x and a quantised weight w. Of float16 or bfloat16 the codes
// become 16-bit numbers in registers, for the tensor cores (SM 80 and newer); of float32, one kernel of plain
// arithmetic takes every format. A block makes 16 columns of c, of the rows of expert blockIdx.y. Sums are
// float32.
#pragma once

#include "base/dtype.hpp"
#include "kernels/gemm/gemv_mma.hpp"
#include "kernels/gemm/quantized.hpp"

namespace gpk {

class Kernel;

struct GemvQuantizedParams {
    const void* x;   // [m, k], rows x_row elements apart, each at 16 bytes
    void* c;         // [m, n], rows c_row elements apart
    std::int64_t m;  // at most 16
    std::int64_t x_row;
    std::int64_t c_row;
    bool float32_out;  // c is float32, else of x's type
    QuantLayout w;
    // Experts (gemv_quantized alone): [experts + 1], which the device knows; row r of x, of any number m,
    // belongs to the expert e with offsets[e] <= r < offsets[e + 1]. w is then one expert's layout, the
    // others' parts follow each other. Null: one weight for all rows.
    const std::int32_t* offsets;
    std::int32_t experts;
};

// The rows of an expert, within those of x.
struct ExpertRows {
    std::int64_t begin, end;
};
GPK_HD ExpertRows expert_rows(const GemvQuantizedParams& p, std::int64_t expert) {
    if (p.offsets == nullptr) return {0, p.m};
    const std::int64_t from = p.offsets[expert], to = p.offsets[expert + 1];
    const std::int64_t begin = from < 0 ? 0 : from < p.m ? from : p.m;
    return {begin, to < begin ? begin : to < p.m ? to : p.m};
}

// X(T, type, format's name, Format, weights along k that share a scale, rows / 8), in the order of
// kQuantizedKernels.
#define GPK_GEMV_QUANTIZED_KERNELS(X, T, type, tiles) \
    X(T, type, int8, Int8, 0, tiles)                  \
    X(T, type, int8_64, Int8, 64, tiles)              \
    X(T, type, int8_32, Int8, 32, tiles)              \
    X(T, type, int8_16, Int8, 16, tiles)              \
    X(T, type, int4_128, Int4, 128, tiles)            \
    X(T, type, int4_64, Int4, 64, tiles)              \
    X(T, type, int4_32, Int4, 32, tiles)              \
    X(T, type, fp8, Fp8, 0, tiles)                    \
    X(T, type, fp8_64, Fp8, 64, tiles)                \
    X(T, type, nvfp4, Nvfp4, 0, tiles)
#define GPK_GEMV_QUANTIZED_BFLOAT16(X)                        \
    GPK_GEMV_QUANTIZED_KERNELS(X, gpk::bfloat16, bfloat16, 1) \
    GPK_GEMV_QUANTIZED_KERNELS(X, gpk::bfloat16, bfloat16, 2)
#define GPK_GEMV_QUANTIZED_FLOAT16(X)                       \
    GPK_GEMV_QUANTIZED_KERNELS(X, gpk::float16, float16, 1) \
    GPK_GEMV_QUANTIZED_KERNELS(X, gpk::float16, float16, 2)

inline constexpr int kGemvQuantizedFloatRows = 4;  // at a time

// For activations of `type` (float32, float16 or bfloat16), the quantised weight and up to 16 rows.
const Kernel& gemv_quantized(DType type, const QuantLayout& w, std::int64_t m);

struct QuantizedKernel {
    QuantFormat format;
    int group;
};
inline constexpr QuantizedKernel kQuantizedKernels[] = {
    {QuantFormat::int8, 0},   {QuantFormat::int8, 64}, {QuantFormat::int8, 32}, {QuantFormat::int8, 16},
    {QuantFormat::int4, 128}, {QuantFormat::int4, 64}, {QuantFormat::int4, 32}, {QuantFormat::fp8, 0},
    {QuantFormat::fp8, 64},   {QuantFormat::nvfp4, 0}};
inline constexpr int kQuantizedKernelCount = 10;

// Where a kernel stands in the list above: all for 8 rows, then for 16. A group that it lacks is an error of
// whoever made the weight: see quant_group_exists().
constexpr int quantized_index(const QuantLayout& w, std::int64_t m) {
    int i = 0;
    while (kQuantizedKernels[i].format != w.format || kQuantizedKernels[i].group != w.group) ++i;
    return i + (m > 8 ? kQuantizedKernelCount : 0);
}
constexpr bool quant_group_exists(QuantFormat format, std::int64_t group) {
    for (const QuantizedKernel& each : kQuantizedKernels) {
        if (each.format == format && each.group == group) return true;
    }
    return false;
}

}  // namespace gpk
