#include "kernels/reduce/arg_reduce.hpp"

#include "kernels/device.cuh"
#include "kernels/reduce/threads.cuh"

namespace gpk::kernels {

namespace {

template <class T, bool kMax>
__device__ __forceinline__ void arg_reduce(const ArgReduceParams& p) {
    using C = compute_t<T>;
    __shared__ Candidate<C> shared[kReduceThreads];
    const ReduceLayout& layout = p.layout;
    const ReduceThread thread(layout);
    thread.for_each(layout, [&](std::int64_t output, std::int64_t part) {
        Candidate<C> best = {C(0), -1};
        if (output < layout.outputs) {
            const T* base =
                static_cast<const T*>(p.input) + reduce_offset(layout, 0, layout.kept_rank, output);
            const std::int64_t begin = part * layout.part_count, left = layout.count - begin;
            const std::int64_t count = left < layout.part_count ? left : layout.part_count;
#pragma unroll 4
            for (std::int64_t i = thread.lane; i < count; i += layout.lanes) {
                const std::int64_t at = begin + i;
                const std::int64_t index = p.candidates ? p.candidates[output * layout.count + at] : at;
                const T value = base[reduce_offset(layout, layout.kept_rank, layout.rank, index)];
                const Candidate<C> candidate = {convert<C>(value), index};
                if (arg_prefers<kMax>(candidate, best)) best = candidate;
            }
        }
        shared[threadIdx.x] = best;
        thread.join_lanes(layout, [&](int i, int j) {
            if (arg_prefers<kMax>(shared[j], shared[i])) shared[i] = shared[j];
        });
        if (thread.lane == 0 && output < layout.outputs) {
            p.output[output * layout.parts + part] = shared[threadIdx.x].index;
        }
        __syncthreads();  // before the next output overwrites
    });
}

}  // namespace

#define GPK_X(symbol, op, dtype, T, is_max)                      \
    extern "C" __global__ void __launch_bounds__(kReduceThreads) \
        symbol(const __grid_constant__ ArgReduceParams p) {      \
        wait_for_predecessor();                                  \
        arg_reduce<T, is_max>(p);                                \
    }
GPK_ARG_REDUCE_KERNELS(GPK_X)
#undef GPK_X

}  // namespace gpk::kernels
