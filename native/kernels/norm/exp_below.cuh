// The exponential of softmax.
#pragma once

#include <cmath>

namespace gpk::kernels {

// exp(x - top). Where the result is rounded to 16 bits, the processor's exponential of base 2 is exact
// enough: its relative error, with that of the product, stays under 2^-16 for all results that do not vanish
// (tests/cpp/softmax_test.cpp). float32 takes the accurate one.
template <class T>
__device__ __forceinline__ float exp_below(float x, float top) {
    if constexpr (sizeof(T) == 2) {
        constexpr float kLog2E = 1.44269504088896340736f;
        float result;
        asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"((x - top) * kLog2E));
        return result;
    } else {
        return expf(x - top);
    }
}

// A running sum of exponentials relative to its own maximum (Milakov & Gimelshein 2018, arXiv:1805.02867).
template <class T>
struct OnlineSum {
    float top, sum;

    __device__ __forceinline__ static OnlineSum nothing() { return {-INFINITY, 0}; }

    // What was added before a larger maximum came. Of nothing there is nothing to rescale.
    __device__ __forceinline__ void raise(float new_top) {
        if (new_top <= top) return;
        sum = top == -INFINITY ? 0.0f : sum * exp_below<T>(top, new_top);
        top = new_top;
    }
    __device__ __forceinline__ void add(float x) {
        if (top != -INFINITY) sum += exp_below<T>(x, top);
    }
};

}  // namespace gpk::kernels
