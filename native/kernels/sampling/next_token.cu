#include "kernels/sampling/next_token.hpp"

#include "kernels/sampling/candidate.cuh"

namespace gpk::kernels {

namespace {

__device__ __forceinline__ void go_on(const NextTokenParams& p, std::int64_t row, std::int32_t token) {
    p.token[row] = token;
    const std::int32_t position = p.position[row] += p.advance;
    if (position >= 0 && position < p.log_size) p.log[row * p.log_size + position] = token;
}

}  // namespace

extern "C" __global__ void next_token(const __grid_constant__ NextTokenParams p) {
    __shared__ Candidate of_warps[32];
    wait_for_predecessor();
    const std::int64_t row = blockIdx.x;
    if (p.position[row] < 0) return;
    if (p.drawn != nullptr) {
        if (threadIdx.x == 0) go_on(p, row, p.drawn[row]);
        return;
    }
    const float* logits = p.logits + row * p.pitch;
    Candidate best{-INFINITY, INT32_MAX};
    const auto take = [&](float logit, std::int32_t id) { best = better(best, {logit, id}); };
    // Four loads in flight a thread.
    const std::int32_t in_fours = reinterpret_cast<std::uintptr_t>(logits) % 16 == 0 ? p.count / 4 * 4 : 0;
    const auto* fours = reinterpret_cast<const Vector<float, 4>*>(logits);
#pragma unroll 4
    for (std::int32_t i = threadIdx.x; i < in_fours / 4; i += blockDim.x) {
        const Vector<float, 4> four = fours[i];
#pragma unroll
        for (int j = 0; j < 4; ++j) take(four.values[j], 4 * i + j);
    }
    for (std::int32_t i = in_fours + threadIdx.x; i < p.count; i += blockDim.x) take(logits[i], i);

    best = warp_best(best);
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = best;
    __syncthreads();
    if (threadIdx.x >= 32) return;
    best = threadIdx.x < blockDim.x / 32 ? of_warps[threadIdx.x] : Candidate{-INFINITY, INT32_MAX};
    best = warp_best(best);
    if (threadIdx.x == 0) go_on(p, row, isfinite(best.logit) ? best.id : -1);
}

}  // namespace gpk::kernels
