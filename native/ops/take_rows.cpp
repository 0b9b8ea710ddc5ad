#include "ops/take_rows.hpp"

#include <algorithm>
#include <bit>

#include "kernels/manipulation/take.hpp"
#include "ops/launch.hpp"

namespace gpk::ops {

void take_rows(const Array& out, const Array& x, const Array& indices, std::int64_t outer,
               std::int64_t extent, std::int64_t row_bytes, bool wraps) {
    if (out.size() == 0) return;
    // Whole units of 16 bytes where every row and every address allows it.
    std::int64_t unit_bytes = 16;
    while (row_bytes % unit_bytes != 0 ||
           (x.data() | out.data()) % static_cast<std::uint64_t>(unit_bytes) != 0) {
        unit_bytes /= 2;
    }
    const std::int64_t inner = row_bytes / unit_bytes, count = indices.size();
    // Each has four units on their way, unless the rows are too few to fill the device so.
    std::int64_t lanes = std::min<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>((inner + 3) / 4)),
                                                kernels::kTakeThreads);
    const std::int64_t wanted = std::int64_t{1024} * current_stream(out.device())->multiprocessors();
    while (lanes < std::min<std::int64_t>(inner, kernels::kTakeThreads) && outer * count * lanes < wanted) {
        lanes *= 2;
    }
    const kernels::TakeParams params{.out = out.as(),
                                     .x = x.as(),
                                     .indices = indices.as(),
                                     .outer = outer,
                                     .count = count,
                                     .inner = inner,
                                     .extent = extent,
                                     .index_dtype = indices.dtype(),
                                     .wraps = wraps,
                                     .unit_bytes = static_cast<std::int32_t>(unit_bytes),
                                     .lanes = static_cast<std::int32_t>(lanes)};
    launch(kernels::take_kernel(), grid_for(outer * count * lanes, kernels::kTakeThreads, INT32_MAX), params,
           {.bytes = 2.0 * static_cast<double>(out.nbytes()) + static_cast<double>(indices.nbytes())},
           {&x, &indices}, {&out});
}

}  // namespace gpk::ops
