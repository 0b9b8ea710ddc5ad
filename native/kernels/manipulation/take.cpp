#include "kernels/manipulation/take.hpp"

#include <cstring>

#include "kernels/elementwise/rows.hpp"
#include "runtime/kernel.hpp"

namespace gpk {

extern const Image image_take;

namespace kernels {
namespace {

void take_host(const TakeParams& p) {
    with_word(p.unit_bytes, [&]<class W>() {
        constexpr auto size = static_cast<std::int64_t>(sizeof(W));
        parallel_for(p.layout.count, kParallelGrain, [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t i = begin; i < end; ++i) {
                std::int64_t at[2];
                p.layout.offsets(i, at);
                const std::int64_t place = axis_place(p.index_dtype, p.indices, at[1], p.extent);
                auto* to = static_cast<std::byte*>(p.out) + i * size;
                if (place >= 0) {
                    std::memcpy(to, static_cast<const std::byte*>(p.x) + (at[0] + place * p.inner) * size,
                                sizeof(W));
                } else {
                    std::memset(to, 0, sizeof(W));
                }
            }
        });
    });
}

const Kernel take(elementwise_kernel("take_elements", image_take, twin<TakeParams, take_host>));

}  // namespace

const Kernel& take_kernel() { return take; }

}  // namespace kernels
}  // namespace gpk
