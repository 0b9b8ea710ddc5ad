// quantize_scales, quantize_codes: a quantised weight (quantized.hpp) from one of float32, float16 or
// bfloat16. dequantize: back, or a part of its rows.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/dtype.hpp"
#include "kernels/gemm/quantized.hpp"
#include "runtime/kernel.hpp"

namespace gpk::kernels {

struct QuantizeParams {
    const void* weight;    // [n, k]
    const float* largest;  // [1]: the largest magnitude of the tensor, for one scale for all (fp8); or null
    QuantLayout w;         // written: scales and offsets by quantize_scales, data by quantize_codes
};

struct DequantizeParams {
    QuantLayout w;
    void* out;                // [rows, k]
    const std::int32_t* ids;  // [rows]: which ones; zeros for one that is not there. Or null:
    std::int64_t first_row, rows;
};

const Kernel& quantize_scales(DType dtype);  // a warp for each row and group of it; padding rows too
const Kernel& quantize_codes(DType dtype);   // a thread for each 16 bytes of data
const Kernel& dequantize(DType dtype);       // runs as dequantize_config() says

inline constexpr int kQuantizeThreads = 256;

inline constexpr int kDequantizeRows = 4;  // of a thread at a time, of eight weights each

// Blocks of threads (along a row, rows).
inline LaunchConfig dequantize_config(const DequantizeParams& p, int multiprocessors) {
    constexpr std::int64_t kThreads = kQuantizeThreads, kBlocksPerMultiprocessor = 32, kMostGrid = 65535;
    const std::int64_t eights = (p.w.k + 7) / 8;
    const auto width = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(eights)));
    const std::int64_t x = std::min(width, kThreads), y = kThreads / x, rows = y * kDequantizeRows;
    const std::int64_t across = (eights + x - 1) / x, down = (p.rows + rows - 1) / rows;
    const std::int64_t most =
        std::clamp<std::int64_t>(kBlocksPerMultiprocessor * multiprocessors / across, 1, kMostGrid);
    return {.grid = {static_cast<std::uint32_t>(across),
                     static_cast<std::uint32_t>(std::clamp<std::int64_t>(down, 1, most))},
            .block = {static_cast<std::uint32_t>(x), static_cast<std::uint32_t>(y)}};
}

// Weights along k that share a scale.
GPK_HD constexpr std::int64_t quant_scale_length(const QuantLayout& w) {
    return w.format == QuantFormat::nvfp4 ? kNvfp4Block : w.group != 0 ? w.group : w.k;
}
// Scales of a row. nvfp4 has whole steps of them.
GPK_HD constexpr std::int64_t quant_scales(const QuantLayout& w) {
    return w.format == QuantFormat::nvfp4 ? quant_steps(w.format, w.k) * 8
                                          : quant_groups(w.format, w.k, w.group);
}

// Stores scale number `index` of a row from the lowest and the highest of its weights.
GPK_HD void store_scale(const QuantizeParams& p, std::int64_t row, std::int64_t index, float low,
                        float high) {
    const QuantLayout& w = p.w;
    float largest = -low > high ? -low : high;
    if (low != low || high != high) largest = low + high;  // NaN
    if (p.largest != nullptr) largest = *p.largest;
    if (largest - largest != 0) largest = NAN;  // An infinite scale would make infinities, too.
    switch (w.format) {
        case QuantFormat::int8: static_cast<float*>(const_cast<void*>(w.scales))[row] = largest / 127; return;
        case QuantFormat::fp8: static_cast<float*>(const_cast<void*>(w.scales))[row] = largest / 448; return;
        case QuantFormat::int4: {
            const std::int64_t at = quant_group_place(row, index, quant_groups(w.format, w.k, w.group));
            low = low < 0 ? low : 0, high = high > 0 ? high : 0;
            // Rounded, so that a zero point times it is exact.
            const bfloat16 rounded(w.offsets != nullptr && largest == largest ? (high - low) / 15
                                                                              : largest / 7);
            const auto scale = static_cast<float>(rounded);
            static_cast<float*>(const_cast<void*>(w.scales))[at] = scale;
            if (w.offsets != nullptr) {
                const float zero = scale > 0 ? rintf(-low / scale) : 0;
                const_cast<float*>(w.offsets)[at] = -scale * (zero > 0 ? zero < 15 ? zero : 15 : 0);
            }
            return;
        }
        case QuantFormat::nvfp4: break;
    }
    const float unit = *w.global;
    static_cast<float8_e4m3*>(
        const_cast<void*>(w.scales))[nvfp4_scale(row, index, quant_steps(w.format, w.k))] =
        float8_e4m3(unit > 0 ? largest / 6 / unit : 0);
}

// The 16 bytes that hold the weights of a row, a step and t; value(column) gives a weight.
template <class Value>
GPK_HD void store_codes(const QuantizeParams& p, std::int64_t row, std::int64_t step, int t, Value value) {
    const QuantLayout& w = p.w;
    const int bits = quant_bits(w.format), units = quant_step(w.format) / 32;
    std::uint32_t words[4] = {};
    for (int u = 0; u < units; ++u) {
        for (int i = 0; i < 8; ++i) {
            const std::int64_t column = step * quant_step(w.format) + 32 * u + 8 * t + i;
            if (row >= w.n || column >= w.k) continue;
            const float scale = quant_scale(w, row, column), offset = quant_offset(w, row, column);
            const int zero = w.offsets == nullptr ? 8 : scale > 0 ? static_cast<int>(-offset / scale) : 0;
            const std::uint32_t code = quant_code(w.format, value(column), scale, zero);
            const int bit = quant_bit(bits, u, i);
            words[bit / 32] |= code << (bit % 32);
        }
    }
    auto* data = static_cast<unsigned char*>(const_cast<void*>(w.data)) +
                 quant_chunk(row, step, t, quant_steps(w.format, w.k));
    memcpy(data, words, sizeof(words));
}

}  // namespace gpk::kernels
