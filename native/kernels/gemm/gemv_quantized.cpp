#include "kernels/gemm/gemv_quantized.hpp"

#include <algorithm>

#include "kernels/gemm/gemv_bulk.hpp"
#include "kernels/gemm/quantized_host.hpp"
#include "kernels/host.hpp"
#include "runtime/kernel.hpp"

namespace gpk {

extern const Image image_gemv_quantized_bfloat16, image_gemv_quantized_float16, image_gemv_quantized_float32;
extern const Image image_gemv_bulk_quantized_bfloat16_sm90, image_gemv_bulk_quantized_float16_sm90;

namespace {

using kernels::twin;

// Rows [first_row, first_row + m) of x, at most 16.
template <class T>
void multiply_rows(const GemvQuantizedParams& p, const QuantLayout& w, std::int64_t first_row, int m) {
    const kernels::QuantizedRows x(w, m, [&](int i, std::int64_t l) {
        return convert<float>(static_cast<const T*>(p.x)[(first_row + i) * p.x_row + l]);
    });
    parallel_for(quant_tiles(w.n), 2, [&](std::int64_t begin, std::int64_t end) {
        float sums[kQuantRows * kMaxGemvMmaRows];
        for (std::int64_t tile = begin; tile < end; ++tile) {
            x.multiply(tile, sums);
            const std::int64_t first = tile * kQuantRows;
            const std::int64_t count = std::min<std::int64_t>(kQuantRows, w.n - first) * m;
            for (std::int64_t i = 0; i < count; ++i) {
                const std::int64_t at = (first_row + i % m) * p.c_row + first + i / m;
                if (p.float32_out) {
                    static_cast<float*>(p.c)[at] = sums[i];
                } else {
                    static_cast<T*>(p.c)[at] = convert<T>(sums[i]);
                }
            }
        }
    });
}

template <class T>
void gemv_quantized_host(const GemvQuantizedParams& p) {
    for (std::int32_t expert = 0; expert < (p.offsets == nullptr ? 1 : p.experts); ++expert) {
        const ExpertRows rows = expert_rows(p, expert);
        for (std::int64_t row = rows.begin; row < rows.end; row += kMaxGemvMmaRows) {
            const std::int64_t m = std::min<std::int64_t>(kMaxGemvMmaRows, rows.end - row);
            multiply_rows<T>(p, expert_layout(p.w, expert), row, static_cast<int>(m));
        }
    }
}

#define GPK_X(T, type, format, Format, group, tiles)                     \
    Kernel({.name = "gemv_quantized_" #type "_" #format "_tiles" #tiles, \
            .image = &image_gemv_quantized_##type,                       \
            .twin = twin<GemvQuantizedParams, gemv_quantized_host<T>>,   \
            .waits_for_predecessor = true}),
const Kernel kPlain[2][2 * kQuantizedKernelCount] = {{GPK_GEMV_QUANTIZED_FLOAT16(GPK_X)},
                                                     {GPK_GEMV_QUANTIZED_BFLOAT16(GPK_X)}};
#undef GPK_X
#define GPK_X(T, type, format, Format, group, tiles)                   \
    Kernel({.name = "gemv_bulk_" #type "_" #format "_tiles" #tiles,    \
            .image = &image_gemv_bulk_quantized_##type##_sm90,         \
            .twin = twin<GemvQuantizedParams, gemv_quantized_host<T>>, \
            .max_shared_bytes = kAllSharedBytes,                       \
            .waits_for_predecessor = true}),
const Kernel kBulk[2][2 * kQuantizedKernelCount] = {{GPK_GEMV_QUANTIZED_FLOAT16(GPK_X)},
                                                    {GPK_GEMV_QUANTIZED_BFLOAT16(GPK_X)}};
#undef GPK_X

const Kernel kFloat32({.name = "gemv_quantized_float32",
                       .image = &image_gemv_quantized_float32,
                       .twin = twin<GemvQuantizedParams, gemv_quantized_host<float>>,
                       .waits_for_predecessor = true});

}  // namespace

const Kernel& gemv_quantized(DType type, const QuantLayout& w, std::int64_t m) {
    if (type == DType::float32) return kFloat32;
    return kPlain[type == DType::bfloat16][quantized_index(w, m)];
}
const Kernel& gemv_bulk_quantized(DType type, const QuantLayout& w, std::int64_t m) {
    return kBulk[type == DType::bfloat16][quantized_index(w, m)];
}

}  // namespace gpk
