#include "kernels/elementwise/range_value.hpp"
#include "kernels/elementwise/rows.hpp"
#include "runtime/kernel.hpp"

namespace gpk {

extern const Image image_range;

namespace kernels {
namespace {

template <class Params>
void range_host(const Params& p) {
    parallel_for(p.count, kParallelGrain, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) write_range(p, i);
    });
}

const Kernel float64(elementwise_kernel("range_float64", image_range,
                                        twin<RangeParams, range_host<RangeParams>>));
const Kernel int64(elementwise_kernel("range_int64", image_range,
                                      twin<IntegerRangeParams, range_host<IntegerRangeParams>>));

}  // namespace

const Kernel& range_kernel() { return float64; }
const Kernel& integer_range_kernel() { return int64; }

}  // namespace kernels
}  // namespace gpk
