// decode_step's last part: the token whose logit is the largest.
#pragma once

#include "kernels/decode/decode_exchange.cuh"
#include "kernels/sampling/candidate.cuh"

namespace gpk::kernels {

// best: the best of the rows that the thread had. Block 0 asks all others for theirs. Called by all that
// compute.
__device__ __forceinline__ void choose_token(const DecodeStepParams& p,
                                             Candidate (&of_warps)[kDecodeStepWarps], Candidate best,
                                             int position, std::uint32_t now) {
    best = warp_best(best);
    const int thread = thread_index(), warp = thread / 32;
    if (thread % 32 == 0) of_warps[warp] = best;
    computing_sync();
    if (warp != 0) return;
    best = warp_best(thread < kDecodeStepWarps ? of_warps[thread] : Candidate{-INFINITY, INT32_MAX});
    std::uint64_t* words = p.exchange + p.at.best;
    if (thread == 0) {
        publish(words + 2 * blockIdx.x, __float_as_uint(best.logit), now);
        publish(words + 2 * blockIdx.x + 1, static_cast<std::uint32_t>(best.id), now);
        p.epochs[blockIdx.x] = now;
    }
    if (blockIdx.x != 0) return;
    for (unsigned block = static_cast<unsigned>(thread); block < gridDim.x; block += 32) {
        const uint2 two = receive_two(words + 2 * block, now);
        best = better(best, {__uint_as_float(two.x), static_cast<std::int32_t>(two.y)});
    }
    best = warp_best(best);
    if (thread != 0 || !p.chooses) return;
    best.id = isfinite(best.logit) ? best.id : -1;
    *p.token = best.id;
    *p.position = position + 1;
    if (p.log != nullptr && position + 1 < p.log_size) p.log[position + 1] = best.id;
}

}  // namespace gpk::kernels
