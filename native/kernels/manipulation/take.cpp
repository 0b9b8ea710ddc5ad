#include "kernels/manipulation/take.hpp"

#include <cstring>

#include "kernels/elementwise/rows.hpp"
#include "runtime/kernel.hpp"

namespace gpk {

extern const Image image_take;

namespace kernels {
namespace {

void take_host(const TakeParams& p) {
    const std::int64_t row_bytes = p.inner * p.unit_bytes;
    parallel_for(
        p.outer * p.count, 1 + kParallelGrain / (row_bytes + 1), [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t row = begin; row < end; ++row) {
                const std::int64_t o = row / p.count, place = axis_place(p, row - o * p.count);
                auto* to = static_cast<std::byte*>(p.out) + row * row_bytes;
                if (place >= 0) {
                    std::memcpy(to, static_cast<const std::byte*>(p.x) + (o * p.extent + place) * row_bytes,
                                static_cast<std::size_t>(row_bytes));
                } else {
                    std::memset(to, 0, static_cast<std::size_t>(row_bytes));
                }
            }
        });
}

const Kernel take(elementwise_kernel("take_rows", image_take, twin<TakeParams, take_host>));

}  // namespace

const Kernel& take_kernel() { return take; }

}  // namespace kernels
}  // namespace gpk
