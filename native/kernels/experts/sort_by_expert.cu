#include "kernels/experts/sort_by_expert.hpp"

#include "kernels/device.cuh"

namespace gpk::kernels {

namespace {

constexpr unsigned kAll = 0xffffffffu;
constexpr int kCounters = 8192;  // of a warp and an expert
constexpr int kAhead = 8;        // pairs of a lane that are on their way

// Calls use(pair, expert) for this warp's pairs, 32 at a time and in order; expert -1 is nobody's.
template <class Use>
__device__ __forceinline__ void each_pair(const SortByExpertParams& p, int warp, int warps, Use use) {
    const int each = (p.pairs + warps * 32 - 1) / (warps * 32) * 32, lane = threadIdx.x % 32;
    const int begin = warp * each, end = min(begin + each, p.pairs);
    for (int first = begin; first < end; first += 32 * kAhead) {
        int experts[kAhead];
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
            const int pair = first + i * 32 + lane;
            experts[i] = pair < end ? p.experts[pair] : -1;
        }
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
            if (first + i * 32 >= end) break;
            const bool known = experts[i] >= 0 && experts[i] < p.count;
            use(first + i * 32 + lane, known ? experts[i] : -1);
        }
    }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kSortThreads)
    sort_by_expert(const __grid_constant__ SortByExpertParams p) {
    __shared__ int counters[kCounters];  // [warp][expert]: how many, then where the next one goes
    __shared__ int of_warp[32];
    wait_for_predecessor();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int warps = min(kSortThreads / 32, kCounters / max(p.count, 1));  // that divide the pairs
    for (int i = threadIdx.x; i < warps * p.count; i += kSortThreads) counters[i] = 0;
    __syncthreads();
    int* own = counters + warp * p.count;
    if (warp < warps) {
        each_pair(p, warp, warps, [&](int, int expert) {
            if (expert >= 0) atomicAdd(own + expert, 1);
        });
    }
    __syncthreads();

    // Each thread has neighbouring experts: their sums, those of all before, and from these each warp's
    // place.
    constexpr int kEach = kMaxSortExperts / kSortThreads;
    int sums[kEach], sum = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
        const int expert = threadIdx.x * kEach + i;
        sums[i] = 0;
        for (int w = 0; expert < p.count && w < warps; ++w) sums[i] += counters[w * p.count + expert];
        sum += sums[i];
    }
    int upto = sum;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(kAll, upto, step);
        if (lane >= step) upto += other;
    }
    if (lane == 31) of_warp[warp] = upto;
    __syncthreads();
    int before = upto - sum, all = 0;
    for (int w = 0; w < kSortThreads / 32; ++w) {
        if (w < warp) before += of_warp[w];
        all += of_warp[w];
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
        const int expert = threadIdx.x * kEach + i;
        if (expert >= p.count) break;
        p.offsets[expert] = before;
        int place = before;
        for (int w = 0; w < warps; ++w) {
            const int here = counters[w * p.count + expert];
            counters[w * p.count + expert] = place;
            place += here;
        }
        before += sums[i];
    }
    if (threadIdx.x == 0) p.offsets[p.count] = all;
    for (int row = all + threadIdx.x; row < p.pairs; row += kSortThreads) p.tokens[row] = -1;
    __syncthreads();
    if (warp >= warps) return;
    each_pair(p, warp, warps, [&](int pair, int expert) {
        // Lanes of one expert keep their order.
        const unsigned peers = __match_any_sync(kAll, expert);
        int place = -1;
        if (expert >= 0) place = own[expert] + __popc(peers & ((1u << lane) - 1));
        __syncwarp();
        if (expert >= 0 && (peers >> lane) == 1) own[expert] = place + 1;  // the last of them
        __syncwarp();
        if (pair < p.pairs) p.places[pair] = place;
        if (place >= 0) p.tokens[place] = pair / p.top;
    });
}

}  // namespace gpk::kernels
