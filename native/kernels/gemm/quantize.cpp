#include "kernels/gemm/quantize.hpp"

#include <algorithm>
#include <type_traits>
#include <vector>

#include "kernels/floats.hpp"
#include "kernels/gemm/quantized_host.hpp"
#include "kernels/host.hpp"

namespace gpk {
extern const Image image_quantize;
}

namespace gpk::kernels {

namespace {

constexpr std::int64_t kGrain = 16;  // rows of a task

template <class T>
void scales_host(const QuantizeParams& p) {
    const std::int64_t length = quant_scale_length(p.w), scales = quant_scales(p.w);
    parallel_for(quant_tiles(p.w.n) * kQuantRows, kGrain, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t row = begin; row < end; ++row) {
            for (std::int64_t index = 0; index < scales; ++index) {
                float low = 0, high = 0;
                const std::int64_t stop = std::min((index + 1) * length, p.w.k);
                for (std::int64_t column = index * length; row < p.w.n && column < stop; ++column) {
                    const float value = convert<float>(static_cast<const T*>(p.weight)[row * p.w.k + column]);
                    low = value < low || value != value ? value : low;
                    high = value > high || value != value ? value : high;
                }
                store_scale(p, row, index, low, high);
            }
        }
    });
}

template <class T>
void codes_host(const QuantizeParams& p) {
    const std::int64_t steps = quant_steps(p.w.format, p.w.k);
    parallel_for(quant_tiles(p.w.n) * kQuantRows, kGrain, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t row = begin; row < end; ++row) {
            const T* weights = static_cast<const T*>(p.weight) + row * p.w.k;
            for (std::int64_t i = 0; i < 4 * steps; ++i) {
                store_codes(p, row, i / 4, static_cast<int>(i % 4),
                            [&](std::int64_t column) { return convert<float>(weights[column]); });
            }
        }
    });
}

template <class T>
void dequantize_host(const DequantizeParams& p) {
    parallel_for(p.rows, kGrain, [&](std::int64_t begin, std::int64_t end) {
        std::vector<float> values(std::is_same_v<T, float> ? 0 : static_cast<std::size_t>(p.w.k));
        for (std::int64_t row = begin; row < end; ++row) {
            const std::int64_t from = p.ids != nullptr ? p.ids[row] : p.first_row + row;
            T* out = static_cast<T*>(p.out) + row * p.w.k;
            if (from < 0 || from >= p.w.n) {
                std::fill(out, out + p.w.k, T(0.0f));
            } else if constexpr (std::is_same_v<T, float>) {
                dequantize_row(p.w, from, out);
            } else {
                dequantize_row(p.w, from, values.data());
                for (std::int64_t column = 0; column < p.w.k; ++column) {
                    out[column] = convert<T>(values[static_cast<std::size_t>(column)]);
                }
            }
        }
    });
}

#define X(suffix, T)                                               \
    Kernel(KernelDef{.name = "quantize_scales_" #suffix,           \
                     .image = &image_quantize,                     \
                     .twin = twin<QuantizeParams, scales_host<T>>, \
                     .waits_for_predecessor = true}),
const Kernel kScales[] = {GPK_FLOAT_TYPES(X)};
#undef X
#define X(suffix, T)                                              \
    Kernel(KernelDef{.name = "quantize_codes_" #suffix,           \
                     .image = &image_quantize,                    \
                     .twin = twin<QuantizeParams, codes_host<T>>, \
                     .waits_for_predecessor = true}),
const Kernel kCodes[] = {GPK_FLOAT_TYPES(X)};
#undef X
#define X(suffix, T)                                                     \
    Kernel(KernelDef{.name = "dequantize_" #suffix,                      \
                     .image = &image_quantize,                           \
                     .twin = twin<DequantizeParams, dequantize_host<T>>, \
                     .waits_for_predecessor = true}),
const Kernel kWeights[] = {GPK_FLOAT_TYPES(X)};
#undef X

}  // namespace

const Kernel& quantize_scales(DType dtype) { return kScales[float_index(dtype)]; }
const Kernel& quantize_codes(DType dtype) { return kCodes[float_index(dtype)]; }
const Kernel& dequantize(DType dtype) { return kWeights[float_index(dtype)]; }

}  // namespace gpk::kernels
