// The largest logit and its id: the lowest one among equals; a NaN counts as the largest.
#pragma once

#include "kernels/device.cuh"

namespace gpk::kernels {

struct Candidate {
    float logit;
    std::int32_t id;
};

__device__ __forceinline__ Candidate better(Candidate a, Candidate b) {
    const bool a_nan = a.logit != a.logit, b_nan = b.logit != b.logit;
    if (a_nan != b_nan) return a_nan ? a : b;
    if (!a_nan && a.logit != b.logit) return a.logit > b.logit ? a : b;
    return a.id < b.id ? a : b;
}

__device__ __forceinline__ Candidate warp_best(Candidate c) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        c = better(c,
                   {__shfl_xor_sync(0xffffffffu, c.logit, step), __shfl_xor_sync(0xffffffffu, c.id, step)});
    }
    return c;
}

}  // namespace gpk::kernels
