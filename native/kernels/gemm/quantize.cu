#include "kernels/gemm/quantize.hpp"

#include "kernels/device.cuh"
#include "kernels/floats.hpp"

namespace gpk::kernels {

namespace {

template <class T>
__device__ __forceinline__ void scales_of(const QuantizeParams& p) {
    wait_for_predecessor();
    const std::int64_t length = quant_scale_length(p.w), scales = quant_scales(p.w);
    const std::int64_t all = quant_tiles(p.w.n) * kQuantRows * scales, warps = grid_threads() / 32;
    const int lane = threadIdx.x % 32;
    const auto lower = [](float a, float b) { return a < b || a != a ? a : b; };
    const auto higher = [](float a, float b) { return a > b || a != a ? a : b; };
    for (std::int64_t i = global_thread() / 32; i < all; i += warps) {
        const std::int64_t row = i / scales, index = i % scales, first = index * length;
        const std::int64_t end = first + length < p.w.k ? first + length : p.w.k;
        float low = 0, high = 0;
        if (row < p.w.n) {
            const T* weights = static_cast<const T*>(p.weight) + row * p.w.k;
            for (std::int64_t column = first + lane; column < end; column += 32) {
                const float value = convert<float>(weights[column]);
                low = lower(value, low);
                high = higher(value, high);
            }
        }
        low = warp_reduce(low, lower);
        high = warp_reduce(high, higher);
        if (lane == 0) store_scale(p, row, index, low, high);
    }
}

template <class T>
__device__ __forceinline__ void codes_of(const QuantizeParams& p) {
    wait_for_predecessor();
    const std::int64_t steps = quant_steps(p.w.format, p.w.k);
    const std::int64_t chunks = quant_tiles(p.w.n) * kQuantRows * steps * 4;
    for (std::int64_t i = global_thread(); i < chunks; i += grid_threads()) {
        const std::int64_t row = i / (4 * steps), step = i / 4 % steps;
        const T* weights = static_cast<const T*>(p.weight) + row * p.w.k;
        store_codes(p, row, step, static_cast<int>(i % 4),
                    [&](std::int64_t column) { return convert<float>(weights[column]); });
    }
}

// Eight weights of each of some rows: they lie together, and share a scale. All loads go before the first
// use; groups are powers of two, since divisions took most of the time.
template <QuantFormat kFormat, class T>
__device__ __forceinline__ void eights_of(const DequantizeParams& p, std::int64_t first,
                                          std::int64_t column) {
    constexpr int kBits = quant_bits(kFormat), kStep = quant_step(kFormat);
    const QuantLayout& w = p.w;
    const std::int64_t steps = quant_steps(kFormat, w.k);
    const int within = static_cast<int>(column % kStep), shift = 31 - __clz(static_cast<int>(w.group));
    const bool has_offsets = w.offsets != nullptr;
    std::uint32_t words[kDequantizeRows][2];
    float scales[kDequantizeRows], offsets[kDequantizeRows];
    bool there[kDequantizeRows];
#pragma unroll
    for (int j = 0; j < kDequantizeRows; ++j) {
        const std::int64_t to = first + j;
        const std::int64_t row = to >= p.rows ? -1 : p.ids != nullptr ? p.ids[to] : p.first_row + to;
        there[j] = row >= 0 && row < w.n;
        words[j][0] = words[j][1] = 0;
        scales[j] = offsets[j] = 0;
        if (!there[j]) continue;
        const char* codes = static_cast<const char*>(w.data) +
                            quant_chunk(row, column / kStep, within % 32 / 8, steps) + within / 32 * kBits;
        words[j][0] = *reinterpret_cast<const std::uint32_t*>(codes);
        if (kBits == 8) words[j][1] = *reinterpret_cast<const std::uint32_t*>(codes + 4);
        if constexpr (kFormat == QuantFormat::nvfp4) {
            scales[j] = convert<float>(static_cast<const float8_e4m3*>(
                            w.scales)[nvfp4_scale(row, column / kNvfp4Block, steps)]) *
                        *w.global;
        } else {
            const std::int64_t at =
                w.group == 0 ? row : quant_group_place(row, column >> shift, steps * kStep >> shift);
            scales[j] = static_cast<const float*>(w.scales)[at];
            if (has_offsets) offsets[j] = w.offsets[at];
        }
    }
#pragma unroll
    for (int j = 0; j < kDequantizeRows; ++j) {
        if (first + j >= p.rows) return;
        Vector<T, 8> out;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            constexpr std::uint32_t kMask = (1u << kBits) - 1;
            const int bit = quant_bit(kBits, 0, i);
            const float scaled =
                quant_number(kFormat, words[j][bit / 32] >> (bit % 32) & kMask, has_offsets ? 0 : 8) *
                scales[j];
            out.values[i] = convert<T>(!there[j] ? 0.0f : has_offsets ? scaled + offsets[j] : scaled);
        }
        T* at = static_cast<T*>(p.out) + (first + j) * w.k + column;
        if (w.k % 8 == 0) {
            *reinterpret_cast<Vector<T, 8>*>(at) = out;
        } else {
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                if (column + i < w.k) at[i] = out.values[i];
            }
        }
    }
}

template <class T>
__device__ __forceinline__ void weights_of(const DequantizeParams& p) {
    wait_for_predecessor();
    const std::int64_t column = (std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * 8;
    if (column >= p.w.k) return;
    const std::int64_t step = std::int64_t{gridDim.y} * blockDim.y * kDequantizeRows;
    std::int64_t first = (std::int64_t{blockIdx.y} * blockDim.y + threadIdx.y) * kDequantizeRows;
    for (; first < p.rows; first += step) {
        switch (p.w.format) {
            case QuantFormat::int8: eights_of<QuantFormat::int8, T>(p, first, column); break;
            case QuantFormat::int4: eights_of<QuantFormat::int4, T>(p, first, column); break;
            case QuantFormat::fp8: eights_of<QuantFormat::fp8, T>(p, first, column); break;
            case QuantFormat::nvfp4: eights_of<QuantFormat::nvfp4, T>(p, first, column); break;
        }
    }
}

}  // namespace

#define X(suffix, T)                                                         \
    extern "C" __global__ void __launch_bounds__(kQuantizeThreads)           \
        quantize_scales_##suffix(const __grid_constant__ QuantizeParams p) { \
        scales_of<T>(p);                                                     \
    }                                                                        \
    extern "C" __global__ void __launch_bounds__(kQuantizeThreads)           \
        quantize_codes_##suffix(const __grid_constant__ QuantizeParams p) {  \
        codes_of<T>(p);                                                      \
    }                                                                        \
    extern "C" __global__ void __launch_bounds__(kQuantizeThreads, 3)        \
        dequantize_##suffix(const __grid_constant__ DequantizeParams p) {    \
        weights_of<T>(p);                                                    \
    }
GPK_FLOAT_TYPES(X)
#undef X

}  // namespace gpk::kernels
