// Functions of 16-bit elements on the device, by the processor's approximations of 2^x and 1/x. Their
// relative error, 2^-14 at most, does not show in results that are rounded to 11 bits
// (tests/cpp/unary_test.cpp).
#pragma once

#include "kernels/elementwise/unary_functors.hpp"

namespace gpk::kernels {

namespace fast {

__device__ __forceinline__ float exp2(float x) {
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
}
__device__ __forceinline__ float reciprocal(float x) {
    float result;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
}

constexpr float kLog2E = 1.44269504088896340736f;

// 1 / (1 + exp(-x)): the sum is infinite where the exponential is, and its inverse 0.
__device__ __forceinline__ float sigmoid(float x) { return reciprocal(1.0f + exp2(-kLog2E * x)); }

__device__ __forceinline__ float silu(float x) { return x * sigmoid(x); }

__device__ __forceinline__ float gelu_tanh(float x) {
    const float u = 0.797884560802865356f * (x + 0.044715f * x * x * x);
    return x * sigmoid(2 * u);
}

// x * Phi(x), where Phi(-|x|) = erfc(z) / 2 with z = |x| / sqrt(2), and erfc(z) = exp(-z^2) times a
// polynomial in t = 1 / (1 + 0.54 z), fitted for the relative error (4e-5 for z up to 12), so that the left
// tail is right too.
__device__ __forceinline__ float gelu(float x) {
    const float t = reciprocal(fmaf(0.54f * 0.707106781186547524f, fabsf(x), 1.0f));
    float tail = fmaf(-0.1788180929865501f, t, 0.36856207117780854f);
    tail = fmaf(tail, t, 0.1905071078524889f);
    tail = fmaf(tail, t, 0.3156681837705873f);
    tail = fmaf(tail, t, 0.3040416389891204f);
    tail *= 0.5f * t * exp2(-0.5f * kLog2E * x * x);
    return x * (x < 0 ? tail : 1.0f - tail);
}

}  // namespace fast

// F of a value that was stored as a T and whose result will be.
template <class F, class T>
__device__ __forceinline__ auto unary_apply(float x) {
    using namespace unary_functors;
    if constexpr (sizeof(T) == 2 && std::is_same_v<F, unary_functors::sigmoid>) {
        return fast::sigmoid(x);
    } else if constexpr (sizeof(T) == 2 && std::is_same_v<F, unary_functors::silu>) {
        return fast::silu(x);
    } else if constexpr (sizeof(T) == 2 && std::is_same_v<F, unary_functors::gelu>) {
        return fast::gelu(x);
    } else if constexpr (sizeof(T) == 2 && std::is_same_v<F, unary_functors::gelu_tanh>) {
        return fast::gelu_tanh(x);
    } else {
        return F::apply(x);
    }
}

}  // namespace gpk::kernels
