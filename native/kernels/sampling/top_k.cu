#include "kernels/sampling/top_k.hpp"

#include "kernels/floats.hpp"
#include "kernels/sampling/select.cuh"

namespace gpk::kernels {

namespace {

template <class T>
__device__ __forceinline__ void top_k_row(const TopKParams& p, std::int64_t row_index, SelectShared& shared) {
    static_assert(kSelectItems == kMaxTopK);
    const T* values = static_cast<const T*>(p.x) + row_index * p.pitch;
    Cluster cluster(shared);
    const auto write = [&](const std::uint64_t* list) {
        for (int i = threadIdx.x; i < p.k; i += kSelectThreads) {
            const auto index = static_cast<std::int32_t>(~static_cast<std::uint32_t>(list[i]));
            static_cast<T*>(p.values)[row_index * p.k + i] = values[index];
            p.indices[row_index * p.k + i] = index;
        }
    };
    if (p.k <= kFewLargest && cluster.few_largest(values, p.n, p.k)) {
        if (cluster.rank == 0) write(cluster.items());
        return;
    }
    Row<T> row(values, p.n);
    row.keep(p.n);
    std::uint32_t highest = 0, lowest = 0;  // that are finite: as keys, and as the complement of one
    row.each_once([&](float value) {
        const std::uint32_t key = order_key(value);
        if (!(value - value == 0)) return;
        highest = key > highest ? key : highest;
        lowest = ~key > lowest ? ~key : lowest;
    });
    const float high = key_value(static_cast<std::uint32_t>(cluster.largest(highest)));
    const float low = key_value(~static_cast<std::uint32_t>(cluster.largest(lowest)));
    const Boundary boundary = cluster.select(
        row, Spread(high, high - low), [](float, std::uint32_t) { return std::uint64_t{1}; },
        [&](std::uint64_t) { return static_cast<std::uint64_t>(p.k); });

    // Those above the boundary, and of those on it the first.
    const std::uint64_t ties = boundary.goal - boundary.above;
    cluster.clear_items();
    std::uint64_t ties_of_warp = 0, total;
    row.each_once([&](float value) { ties_of_warp += order_key(value) == boundary.key ? 1 : 0; });
    std::uint64_t tie_rank = cluster.sum(warp_sum(ties_of_warp), total);
    row.each([&](float value, std::int32_t index, bool inside) {
        const std::uint32_t key = order_key(value);
        const std::uint32_t tied = __ballot_sync(0xffffffffu, inside && key == boundary.key);
        const std::uint64_t rank = tie_rank + __popc(tied & ((1u << threadIdx.x % 32) - 1));
        tie_rank += __popc(tied);
        if (inside && (key > boundary.key || (key == boundary.key && rank < ties))) {
            cluster.gather(std::uint64_t{key} << 32 | ~static_cast<std::uint32_t>(index));
        }
    });
    team_sync();
    if (cluster.rank != 0) return;
    cluster.sort_items(p.k);
    write(cluster.items());
}

template <class T>
__device__ __forceinline__ void top_k_rows(const TopKParams& p) {
    __shared__ SelectShared shared;
    wait_for_predecessor();
    const std::int64_t blocks = team_blocks();
    for (std::int64_t row = blockIdx.x / blocks; row < p.rows; row += gridDim.x / blocks) {
        top_k_row<T>(p, row, shared);
        team_sync();
    }
}

}  // namespace

#define X(suffix, T)                                             \
    extern "C" __global__ void __launch_bounds__(kSelectThreads) \
        top_k_##suffix(const __grid_constant__ TopKParams p) {   \
        top_k_rows<T>(p);                                        \
    }
GPK_FLOAT_TYPES(X)
#undef X

}  // namespace gpk::kernels
