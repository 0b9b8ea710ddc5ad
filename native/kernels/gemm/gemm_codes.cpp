#include "kernels/gemm/gemm_codes.hpp"

#include <algorithm>

#include "kernels/gemm/quantized_host.hpp"
#include "kernels/host.hpp"
#include "runtime/kernel.hpp"

namespace gpk {

extern const Image image_gemm_codes_bfloat16_sm90, image_gemm_codes_float16_sm90;

namespace {

using kernels::twin;

template <class T>
void arrange_rows_host(const ArrangeRowsParams& p) {
    const std::int64_t stages = codes_stages(p.k);
    const std::int64_t rows = (p.m + kCodesRows - 1) / kCodesRows * kCodesRows;
    parallel_for(rows, 8, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t row = begin; row < end; ++row) {
            const T* x = static_cast<const T*>(p.x) + row * p.x_row;
            for (std::int64_t column = 0; column < stages * kCodesDepth; ++column) {
                static_cast<T*>(p.out)[arranged_place(row, column, stages)] =
                    row < p.m && column < p.k ? x[column] : T(0.0f);
            }
        }
    });
}

// The 16 rows from `first` on, or as many as there are.
template <class T>
void multiply_rows(const GemmCodesParams& p, std::int64_t first) {
    const std::int64_t stages = codes_stages(p.w.k);
    const auto m = static_cast<int>(std::min<std::int64_t>(16, p.m - first));
    const kernels::QuantizedRows x(p.w, m, [&](int i, std::int64_t column) {
        return convert<float>(static_cast<const T*>(p.x)[arranged_place(first + i, column, stages)]);
    });
    parallel_for(quant_tiles(p.w.n), 2, [&](std::int64_t begin, std::int64_t end) {
        float sums[kQuantRows * 16];
        for (std::int64_t tile = begin; tile < end; ++tile) {
            x.multiply(tile, sums);
            const std::int64_t column = tile * kQuantRows;
            const std::int64_t count = std::min<std::int64_t>(kQuantRows, p.w.n - column) * m;
            for (std::int64_t i = 0; i < count; ++i) {
                const std::int64_t at = (first + i % m) * p.c_row + column + i / m;
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
void gemm_codes_host(const GemmCodesParams& p) {
    for (std::int64_t first = 0; first < p.m; first += 16) multiply_rows<T>(p, first);
}

struct OfType {
    Kernel arrange;
    Kernel products[6];
};

#define GPK_X(T, type, format, Format, grouped)                \
    Kernel({.name = "gemm_codes_" #type "_" #format,           \
            .image = &image_gemm_codes_##type##_sm90,          \
            .twin = twin<GemmCodesParams, gemm_codes_host<T>>, \
            .max_shared_bytes = kAllSharedBytes,               \
            .waits_for_predecessor = true}),
#define GPK_OF(T, type, kernels)                                       \
    {                                                                  \
        Kernel({.name = "arrange_rows_" #type,                         \
                .image = &image_gemm_codes_##type##_sm90,              \
                .twin = twin<ArrangeRowsParams, arrange_rows_host<T>>, \
                .waits_for_predecessor = true}),                       \
        {                                                              \
            kernels(GPK_X)                                             \
        }                                                              \
    }
const OfType kTypes[] = {GPK_OF(float16, float16, GPK_GEMM_CODES_FLOAT16),
                         GPK_OF(bfloat16, bfloat16, GPK_GEMM_CODES_BFLOAT16)};
#undef GPK_OF
#undef GPK_X

}  // namespace

const Kernel& arrange_rows(DType type) { return kTypes[type == DType::bfloat16].arrange; }
const Kernel& gemm_codes(DType type, const QuantLayout& w) {
    const bool groups = w.group != 0;
    const int which = w.format == QuantFormat::int8   ? (groups ? 1 : 0)
                      : w.format == QuantFormat::int4 ? 2
                      : w.format == QuantFormat::fp8  ? (groups ? 4 : 3)
                                                      : 5;
    return kTypes[type == DType::bfloat16].products[which];
}

}  // namespace gpk
