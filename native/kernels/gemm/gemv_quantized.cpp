#include "kernels/gemm/gemv_quantized.hpp"

#include "kernels/gemm/gemv_bulk.hpp"
#include "kernels/gemm/quantized_host.hpp"
#include "kernels/host.hpp"
#include "runtime/kernel.hpp"

namespace gpk {

extern const Image image_gemv_quantized_bfloat16, image_gemv_quantized_float16, image_gemv_quantized_float32;
extern const Image image_gemv_bulk_quantized_bfloat16_sm90, image_gemv_bulk_quantized_float16_sm90;

namespace {

using kernels::twin;

template <class T>
void gemv_quantized_host(const GemvQuantizedParams& p) {
    for (std::int32_t expert = 0; expert < (p.offsets == nullptr ? 1 : p.experts); ++expert) {
        const ExpertRows rows = expert_rows(p, expert);
        const T* x = static_cast<const T*>(p.x) + rows.begin * p.x_row;
        char* c = static_cast<char*>(p.c) +
                  rows.begin * p.c_row * static_cast<std::int64_t>(p.float32_out ? sizeof(float) : sizeof(T));
        kernels::multiply_quantized<T>(
            expert_layout(p.w, expert), rows.end - rows.begin,
            [&](std::int64_t row, std::int64_t l) { return convert<float>(x[row * p.x_row + l]); }, c,
            p.c_row, p.float32_out);
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
