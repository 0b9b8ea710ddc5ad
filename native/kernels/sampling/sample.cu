#include "kernels/sampling/sample.hpp"

#include "kernels/floats.hpp"
#include "kernels/sampling/select.cuh"

namespace gpk::kernels {

namespace {

// By one thread of the row's.
__device__ __forceinline__ void give(const SampleParams& p, std::int64_t row, std::int32_t token) {
    p.tokens[row] = token;
    if (token >= 0 && sample_counts(p, row)) ++p.counts[row * p.n + token];
}

// A draw from the first k of a list that is sorted from the largest down, by one block.
__device__ __forceinline__ void sample_few(const SampleParams& p, const SampleRow& o, std::int64_t row_index,
                                           const std::uint64_t* list, int k, SelectShared& shared) {
    __shared__ std::uint64_t weights[kFewLargest];
    const int i = static_cast<int>(threadIdx.x), lane = i % 32;
    const auto best_key = static_cast<std::uint32_t>(list[0] >> 32);
    const float highest = key_value(best_key);
    const bool valid = best_key != kNanKey && highest - highest == 0;
    const auto id_of = [&](int at) { return ~static_cast<std::uint32_t>(list[at]); };
    if (!valid || o.greedy) {
        if (i == 0) give(p, row_index, valid ? static_cast<std::int32_t>(id_of(0)) : -1);
        return;
    }
    std::uint64_t weight = 0;
    if (i < k) weight = weight_of(key_value(static_cast<std::uint32_t>(list[i] >> 32)), highest, o.rate);
    if (i < kFewLargest) {
        const std::uint64_t of_warp = warp_sum(weight);
        if (lane == 0) shared.of_warp[i / 32] = of_warp;
    }
    __syncthreads();
    if (i < kFewLargest) {
        std::uint64_t before = warp_before(weight), total = 0;
        for (int warp = 0; warp < kFewLargest / 32; ++warp) {
            if (warp < i / 32) before += shared.of_warp[warp];
            total += shared.of_warp[warp];
        }
        if (o.top_p < 1 && before >= nucleus_goal(o.top_p, total)) weight = 0;
        if (weight < o.min_weight) weight = 0;
        weights[i] = weight;
    }
    __syncthreads();
    if (i >= k) return;
    // In the order of the ids.
    std::uint64_t before = 0, total = 0;
    for (int other = 0; other < k; ++other) {
        total += weights[other];
        if (id_of(other) < id_of(i)) before += weights[other];
    }
    const std::uint64_t target = multiply_high(o.random, total);
    if (before <= target && target - before < weight) give(p, row_index, static_cast<std::int32_t>(id_of(i)));
}

template <class T>
__device__ __forceinline__ void draw(const SampleParams& p, std::int64_t row_index, SelectShared& shared) {
    __shared__ SampleRow o;  // of all threads: there are no registers for it
    constexpr std::uint32_t kAll = 0xffffffffu;
    const T* logits = static_cast<const T*>(p.logits) + row_index * p.pitch;
    Cluster cluster(shared);
    if (threadIdx.x == 0) o = sample_row(p, row_index);
    __syncthreads();
    if (!o.valid) {
        if (cluster.rank == 0 && threadIdx.x == 0) give(p, row_index, -1);
        return;
    }
    if (o.greedy || o.top_k <= kFewLargest) {
        const int k = o.greedy ? 1 : o.top_k;
        if (cluster.few_largest(logits, p.n, k)) {
            if (cluster.rank == 0) sample_few(p, o, row_index, cluster.items(), k, shared);
            return;
        }
    }
    Row<T> row(logits, p.n);
    row.keep(p.n);
    float of_thread = -INFINITY;
    std::uint32_t lowest = 0;  // that is finite: the complement of its key
    row.each_once([&](float value) {
        asm("max.NaN.f32 %0, %0, %1;" : "+f"(of_thread) : "f"(value));
        if (o.top_k < p.n && value > -INFINITY && ~order_key(value) > lowest) lowest = ~order_key(value);
    });
    const auto best_key = static_cast<std::uint32_t>(cluster.largest(order_key(of_thread)));
    const float highest = key_value(best_key);
    if (best_key == kNanKey || highest - highest != 0) {
        if (cluster.rank == 0 && threadIdx.x == 0) give(p, row_index, -1);
        return;
    }
    const auto weight = [&](float value) { return weight_of(value, highest, o.rate); };

    // Taken are the keys above `limit`, and of those equal to it the first `ties`.
    std::uint32_t limit = 0;
    std::uint64_t ties = 0, tie_weight = 0;
    const std::uint64_t top_k = o.greedy ? 1 : o.top_k;
    // A cut to top_k, then one to top_p. A loop, as select() is most of the kernel's code.
#pragma unroll 1
    for (int cut = 0; cut < 2; ++cut) {
        const bool nucleus = cut == 1;
        if (nucleus ? o.greedy || o.top_p >= 1 : top_k >= static_cast<std::uint64_t>(p.n)) continue;
        const float range = nucleus
                                ? 41.0f / o.rate
                                : highest - key_value(~static_cast<std::uint32_t>(cluster.largest(lowest)));
        const Boundary boundary = cluster.select(
            row, Spread(highest, range),
            [&](float value, std::uint32_t key) {
                return key <= limit ? 0 : nucleus ? weight(value) : std::uint64_t{1};
            },
            [&](std::uint64_t total) { return nucleus ? nucleus_goal(o.top_p, total) : top_k; }, limit,
            ties * tie_weight);
        limit = boundary.key;
        ties = boundary.goal - boundary.above;
        tie_weight = weight(key_value(limit));
        if (nucleus) ties = (ties + tie_weight - 1) / tie_weight;
    }

    // What this warp's elements weigh. A key is `limit` only where there was a selection.
    std::uint64_t of_warp = 0, ties_of_warp = 0, total;
    row.each_once([&](float value) {
        const std::uint32_t key = limit != 0 ? order_key(value) : 1;
        if (key > limit) {
            const std::uint64_t of_value = weight(value);
            of_warp += of_value >= o.min_weight ? of_value : 0;
        } else if (key == limit) {
            ++ties_of_warp;
        }
    });
    of_warp = warp_sum(of_warp);
    if (tie_weight < o.min_weight) tie_weight = 0;
    std::uint64_t tie_rank = 0;  // of the first of this warp
    if (limit != 0) {
        ties_of_warp = warp_sum(ties_of_warp);
        tie_rank = cluster.sum(ties_of_warp, total);
        const std::uint64_t ties_left = tie_rank < ties ? ties - tie_rank : 0;
        of_warp += (ties_left < ties_of_warp ? ties_left : ties_of_warp) * tie_weight;
    }
    std::uint64_t before = cluster.sum(of_warp, total);
    const std::uint64_t target = multiply_high(o.random, total);
    if (target < before || target - before >= of_warp) return;

    const int lane = threadIdx.x % 32;
    // One warp has it. Each lane weighs a run of neighbours; then the lanes share the run that has it, and so
    // on.
    std::int32_t begin = row.begin, end = row.end;
    for (;;) {
        const std::int32_t run = (end - begin + 31) / 32;
        const std::int32_t first = min(begin + lane * run, end), last = min(first + run, end);
        std::uint64_t mine = 0, ties_of_run = 0;
        for (std::int32_t i = first; i < last; ++i) {
            const float value = convert<float>(row.values[i]);
            const std::uint32_t key = limit != 0 ? order_key(value) : 1;
            if (key > limit) {
                const std::uint64_t of_value = weight(value);
                mine += of_value >= o.min_weight ? of_value : 0;
            } else if (key == limit) {
                ++ties_of_run;
            }
        }
        const std::uint64_t rank = tie_rank + warp_before(ties_of_run);
        const std::uint64_t left = rank < ties ? ties - rank : 0;
        mine += (left < ties_of_run ? left : ties_of_run) * tie_weight;
        const std::uint64_t from = before + warp_before(mine);
        const bool here = from <= target && target - from < mine;
        if (run == 1) {
            if (here) give(p, row_index, first);
            return;
        }
        const int source = __ffs(__ballot_sync(kAll, here)) - 1;
        begin = __shfl_sync(kAll, first, source);
        end = __shfl_sync(kAll, last, source);
        before = __shfl_sync(kAll, from, source);
        tie_rank = __shfl_sync(kAll, rank, source);
    }
}

template <class T>
__device__ __forceinline__ void sample_rows(const SampleParams& p) {
    __shared__ SelectShared shared;
    wait_for_predecessor();
    const std::int64_t blocks = team_blocks();
    for (std::int64_t row = blockIdx.x / blocks; row < p.rows; row += gridDim.x / blocks) {
        draw<T>(p, row, shared);
        team_sync();  // other blocks may still read what is shared
    }
}

}  // namespace

#define X(suffix, T)                                              \
    extern "C" __global__ void __launch_bounds__(kSelectThreads)  \
        sample_##suffix(const __grid_constant__ SampleParams p) { \
        sample_rows<T>(p);                                        \
    }
GPK_FLOAT_TYPES(X)
#undef X

}  // namespace gpk::kernels
