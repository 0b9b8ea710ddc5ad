#include "kernels/sampling/token_logprobs.hpp"

#include "kernels/device.cuh"

namespace gpk::kernels {

extern "C" __global__ void __launch_bounds__(1024)
    token_logprobs(const __grid_constant__ TokenLogprobsParams p) {
    __shared__ float shared[32];
    wait_for_predecessor();
    const std::int64_t row = blockIdx.x;
    const std::int32_t position = p.position[row];
    if (position < 0) return;
    const float* logits = p.logits + row * p.pitch;
    float highest = -INFINITY;
#pragma unroll 4
    for (std::int32_t i = threadIdx.x; i < p.count; i += blockDim.x) highest = fmaxf(highest, logits[i]);
    highest = block_reduce(highest, [](float a, float b) { return fmaxf(a, b); }, -INFINITY, shared);
    float sum = 0;
#pragma unroll 4
    for (std::int32_t i = threadIdx.x; i < p.count; i += blockDim.x) sum += expf(logits[i] - highest);
    sum = block_reduce(sum, [](float a, float b) { return a + b; }, 0.0f, shared);
    const float log_sum = logf(sum);
    const std::int64_t entry = row * p.entries + position % p.entries;
    for (std::int32_t i = threadIdx.x; i <= p.k; i += blockDim.x) {
        const std::int32_t id = i == 0 ? p.token[row] : p.best[row * p.k + i - 1];
        const bool known = id >= 0 && id < p.count;
        p.logprobs[entry * (p.most + 1) + i] = known ? logits[id] - highest - log_sum : NAN;
        if (i > 0) p.ids[entry * p.most + i - 1] = id;
    }
}

}  // namespace gpk::kernels
