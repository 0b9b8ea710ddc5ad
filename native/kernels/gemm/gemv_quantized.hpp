// gemv_quantized: c = x @ w.T for up to 16 rows x of float16 or bfloat16 and a quantised weight w, whose
// codes become 16-bit numbers in registers. On the tensor cores (SM 80 and newer); accumulates in float32.
#pragma once

#include "base/dtype.hpp"
#include "kernels/gemm/gemv_mma.hpp"
#include "kernels/gemm/quantized.hpp"

namespace gpk {

class Kernel;

struct GemvQuantizedParams {
    const void* x;   // [m, k], rows x_row elements apart, 16-byte aligned
    void* c;         // [m, n], rows c_row elements apart
    std::int64_t m;  // at most 16
    std::int64_t x_row;
    std::int64_t c_row;
    bool float32_out;  // c is float32, else of x's type
    QuantLayout w;
};

// X(T, type, format's name, Format, units of 32 that share a scale (int4), rows / 8)
#define GPK_GEMV_QUANTIZED_KERNELS(X, T, type, tiles) \
    X(T, type, int8, Int8, 4, tiles)                  \
    X(T, type, int4_128, Int4, 4, tiles)              \
    X(T, type, int4_64, Int4, 2, tiles)               \
    X(T, type, int4_32, Int4, 1, tiles)               \
    X(T, type, fp8, Fp8, 4, tiles)                    \
    X(T, type, nvfp4, Nvfp4, 4, tiles)
#define GPK_GEMV_QUANTIZED_BFLOAT16(X)                        \
    GPK_GEMV_QUANTIZED_KERNELS(X, gpk::bfloat16, bfloat16, 1) \
    GPK_GEMV_QUANTIZED_KERNELS(X, gpk::bfloat16, bfloat16, 2)
#define GPK_GEMV_QUANTIZED_FLOAT16(X)                       \
    GPK_GEMV_QUANTIZED_KERNELS(X, gpk::float16, float16, 1) \
    GPK_GEMV_QUANTIZED_KERNELS(X, gpk::float16, float16, 2)

// For activations of `type` (float16 or bfloat16), the quantised weight and up to 16 rows.
const Kernel& gemv_quantized(DType type, const QuantLayout& w, std::int64_t m);

inline constexpr int kGemvQuantizedGroups = 1;  // of 16 columns of c, that a block makes

// Where a kernel stands in the lists above: formats in their order, of 8 rows, then of 16.
GPK_HD constexpr int quantized_index(const QuantLayout& w, std::int64_t m) {
    constexpr int kFormats = 6;
    const int format = w.format == QuantFormat::int8    ? 0
                       : w.format == QuantFormat::fp8   ? 4
                       : w.format == QuantFormat::nvfp4 ? 5
                       : w.group == 128                 ? 1
                       : w.group == 64                  ? 2
                                                        : 3;
    return format + (m > 8 ? kFormats : 0);
}

}  // namespace gpk
