#include "kernels/sampling/accept_drafts.hpp"

#include "kernels/device.cuh"

namespace gpk::kernels {

namespace {

// Of some logits: the largest, the lowest id among equals, a NaN counting as the largest; and the next one.
struct Leaders {
    float first;
    std::int32_t id;
    float second;
};

__device__ __forceinline__ bool before(float a, std::int32_t a_id, float b, std::int32_t b_id) {
    const bool a_nan = a != a, b_nan = b != b;
    if (a_nan != b_nan) return a_nan;
    return !a_nan && a != b ? a > b : a_id < b_id;
}

__device__ __forceinline__ Leaders merge(Leaders a, Leaders b) {
    if (before(b.first, b.id, a.first, a.id)) {
        const Leaders c = a;
        a = b;
        b = c;
    }
    a.second = fmaxf(a.second, b.first);
    return a;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(1024)
    accept_drafts(const __grid_constant__ AcceptDraftsParams p) {
    __shared__ float shared[32];
    __shared__ Leaders of_warps[32];
    __shared__ bool last;
    wait_for_predecessor();
    const std::int32_t row = static_cast<std::int32_t>(blockIdx.x);
    const float* logits = p.logits + row * p.pitch;
    const float middle = logits[0];  // the sums are of differences from it, which are about the deviation
    Leaders leaders{-INFINITY, INT32_MAX, -INFINITY};
    float sum = 0, squares = 0;
#pragma unroll 8
    for (std::int32_t i = threadIdx.x; i < p.count; i += blockDim.x) {
        const float logit = logits[i], away = logit - middle;
        leaders = merge(leaders, {logit, i, -INFINITY});
        sum += away;
        squares = fmaf(away, away, squares);
    }
    const auto add = [](float a, float b) { return a + b; };
    sum = block_reduce(sum, add, 0.0f, shared);
    squares = block_reduce(squares, add, 0.0f, shared);
    const auto join_warp = [](Leaders mine) {
#pragma unroll
        for (int step = 16; step > 0; step /= 2) {
            mine = merge(mine, {__shfl_xor_sync(0xffffffffu, mine.first, step),
                                __shfl_xor_sync(0xffffffffu, mine.id, step),
                                __shfl_xor_sync(0xffffffffu, mine.second, step)});
        }
        return mine;
    };
    leaders = join_warp(leaders);
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = leaders;
    __syncthreads();
    if (threadIdx.x < 32) leaders = join_warp(of_warps[threadIdx.x]);
    if (threadIdx.x == 0) {
        const float n = static_cast<float>(p.count), mean = sum / n;
        const float deviation = sqrtf(fmaxf(squares / n - mean * mean, 0.0f));
        const bool finite = isfinite(leaders.first);
        p.best[row] = finite ? leaders.id : -1;
        p.best[p.rows + row] = !finite || leaders.first - leaders.second >= p.margin * deviation;
        __threadfence();
        last = atomicInc(p.ticket, static_cast<std::uint32_t>(p.rows - 1)) ==
               static_cast<std::uint32_t>(p.rows - 1);
    }
    __syncthreads();
    if (!last || threadIdx.x != 0) return;
    __threadfence();
    std::int32_t best[kMostDraftRows], clear[kMostDraftRows];
    for (std::int32_t i = 0; i < p.rows; ++i) {
        best[i] = __ldcg(p.best + i);
        clear[i] = __ldcg(p.best + p.rows + i);
    }
    accept_rows(p, best, clear);
}

}  // namespace gpk::kernels
