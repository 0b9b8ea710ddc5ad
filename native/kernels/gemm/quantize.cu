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

template <class T>
__device__ __forceinline__ void weights_of(const DequantizeParams& p) {
    wait_for_predecessor();
    const std::int64_t eights = (p.w.k + 7) / 8;
    for (std::int64_t i = global_thread(); i < p.rows * eights; i += grid_threads()) {
        const std::int64_t row = i / eights, first = i % eights * 8;
        T* out = static_cast<T*>(p.out) + row * p.w.k;
        for (std::int64_t column = first; column < first + 8 && column < p.w.k; ++column) {
            out[column] = convert<T>(dequantized(p.w, p.first_row + row, column));
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
