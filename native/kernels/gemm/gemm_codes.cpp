#include "kernels/gemm/gemm_codes.hpp"

#include <iterator>

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

template <class T>
void gemm_codes_host(const GemmCodesParams& p) {
    const std::int64_t stages = codes_stages(p.w.k);
    const auto value = [&](std::int64_t row, std::int64_t column) {
        return convert<float>(static_cast<const T*>(p.x)[arranged_place(row, column, stages)]);
    };
    kernels::multiply_quantized<T>(p.w, p.m, value, p.c, p.c_row, p.float32_out);
}

struct OfType {
    Kernel arrange;
    Kernel products[std::size(kCodesKernels)];
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
    int which = 0;
    while (kCodesKernels[which].format != w.format || kCodesKernels[which].groups != (w.group != 0)) ++which;
    return kTypes[type == DType::bfloat16].products[which];
}

}  // namespace gpk
