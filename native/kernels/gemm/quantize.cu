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

// Eight weights of a row: they lie together, and share a scale.
template <QuantFormat kFormat>
__device__ __forceinline__ void eight_of(const QuantLayout& w, std::int64_t row, std::int64_t column,
                                         float (&values)[8]) {
    constexpr int kBits = quant_bits(kFormat), kStep = quant_step(kFormat);
    const int within = static_cast<int>(column % kStep);
    const auto* chunk = static_cast<const unsigned char*>(w.data) +
                        quant_chunk(row, column / kStep, within % 32 / 8, quant_steps(kFormat, w.k)) +
                        within / 32 * kBits;
    std::uint32_t words[2] = {};
    memcpy(words, chunk, kBits);  // 8 codes
    const float scale = quant_scale(w, row, column), offset = quant_offset(w, row, column);
    const bool has_offset = w.offsets != nullptr;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        constexpr std::uint32_t kMask = (1u << kBits) - 1;
        const int bit = quant_bit(kBits, 0, i);
        const float scaled =
            quant_number(kFormat, words[bit / 32] >> (bit % 32) & kMask, has_offset ? 0 : 8) * scale;
        values[i] = has_offset ? scaled + offset : scaled;
    }
}

template <class T>
__device__ __forceinline__ void weights_of(const DequantizeParams& p) {
    wait_for_predecessor();
    const std::int64_t eights = (p.w.k + 7) / 8;
    for (std::int64_t i = global_thread(); i < p.rows * eights; i += grid_threads()) {
        const std::int64_t to = i / eights, first = i % eights * 8;
        const std::int64_t row = p.ids != nullptr ? p.ids[to] : p.first_row + to;
        Vector<T, 8> out;
        float values[8] = {};
        if (row >= 0 && row < p.w.n) {
            switch (p.w.format) {
                case QuantFormat::int8: eight_of<QuantFormat::int8>(p.w, row, first, values); break;
                case QuantFormat::int4: eight_of<QuantFormat::int4>(p.w, row, first, values); break;
                case QuantFormat::fp8: eight_of<QuantFormat::fp8>(p.w, row, first, values); break;
                case QuantFormat::nvfp4: eight_of<QuantFormat::nvfp4>(p.w, row, first, values); break;
            }
        }
#pragma unroll
        for (int e = 0; e < 8; ++e) out.values[e] = convert<T>(values[e]);
        T* at = static_cast<T*>(p.out) + to * p.w.k + first;
        if (p.w.k % 8 == 0) {
            *reinterpret_cast<Vector<T, 8>*>(at) = out;
        } else {
            for (int e = 0; e < 8 && first + e < p.w.k; ++e) at[e] = out.values[e];
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
    extern "C" __global__ void __launch_bounds__(kQuantizeThreads)           \
        dequantize_##suffix(const __grid_constant__ DequantizeParams p) {    \
        weights_of<T>(p);                                                    \
    }
GPK_FLOAT_TYPES(X)
#undef X

}  // namespace gpk::kernels
