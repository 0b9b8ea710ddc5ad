#include "kernels/gemm/gemv_quantized.hpp"

#include <vector>

#include "kernels/gemm/gemv_bulk.hpp"
#include "kernels/host.hpp"
#include "runtime/kernel.hpp"

namespace gpk {

extern const Image image_gemv_quantized_bfloat16, image_gemv_quantized_float16;
extern const Image image_gemv_bulk_quantized_bfloat16_sm90, image_gemv_bulk_quantized_float16_sm90;

namespace {

using kernels::twin;

template <class T>
void gemv_quantized_host(const GemvQuantizedParams& p) {
    std::vector<float> x(static_cast<std::size_t>(p.m * p.w.k));
    for (std::int64_t i = 0; i < p.m; ++i) {
        for (std::int64_t l = 0; l < p.w.k; ++l) {
            x[static_cast<std::size_t>(i * p.w.k + l)] =
                convert<float>(static_cast<const T*>(p.x)[i * p.x_row + l]);
        }
    }
    parallel_for(p.w.n, 4, [&](std::int64_t begin, std::int64_t end) {
        std::vector<float> weights(static_cast<std::size_t>(p.w.k));
        for (std::int64_t j = begin; j < end; ++j) {
            for (std::int64_t l = 0; l < p.w.k; ++l) {
                weights[static_cast<std::size_t>(l)] = dequantized(p.w, j, l);
            }
            for (std::int64_t i = 0; i < p.m; ++i) {
                const float* row = x.data() + i * p.w.k;
                double sum = 0;
                for (std::size_t l = 0; l < weights.size(); ++l)
                    sum += static_cast<double>(row[l]) * weights[l];
                if (p.float32_out) {
                    static_cast<float*>(p.c)[i * p.c_row + j] = static_cast<float>(sum);
                } else {
                    static_cast<T*>(p.c)[i * p.c_row + j] = convert<T>(static_cast<float>(sum));
                }
            }
        }
    });
}

#define GPK_X(T, type, format, Format, units, tiles)                     \
    Kernel({.name = "gemv_quantized_" #type "_" #format "_tiles" #tiles, \
            .image = &image_gemv_quantized_##type,                       \
            .twin = twin<GemvQuantizedParams, gemv_quantized_host<T>>,   \
            .waits_for_predecessor = true}),
const Kernel kPlain[2][12] = {{GPK_GEMV_QUANTIZED_FLOAT16(GPK_X)}, {GPK_GEMV_QUANTIZED_BFLOAT16(GPK_X)}};
#undef GPK_X
#define GPK_X(T, type, format, Format, units, tiles)                   \
    Kernel({.name = "gemv_bulk_" #type "_" #format "_tiles" #tiles,    \
            .image = &image_gemv_bulk_quantized_##type##_sm90,         \
            .twin = twin<GemvQuantizedParams, gemv_quantized_host<T>>, \
            .max_shared_bytes = kAllSharedBytes,                       \
            .waits_for_predecessor = true}),
const Kernel kBulk[2][12] = {{GPK_GEMV_QUANTIZED_FLOAT16(GPK_X)}, {GPK_GEMV_QUANTIZED_BFLOAT16(GPK_X)}};
#undef GPK_X

}  // namespace

const Kernel& gemv_quantized(DType type, const QuantLayout& w, std::int64_t m) {
    return kPlain[type == DType::bfloat16][quantized_index(w, m)];
}
const Kernel& gemv_bulk_quantized(DType type, const QuantLayout& w, std::int64_t m) {
    return kBulk[type == DType::bfloat16][quantized_index(w, m)];
}

}  // namespace gpk
