#include "kernels/elementwise/fill.hpp"

#include <cstring>

#include "kernels/elementwise/rows.hpp"
#include "runtime/kernel.hpp"

namespace gpk {

extern const Image image_fill;

namespace kernels {
namespace {

void fill_strided_host(const FillParams& p) {
    const std::int64_t stride = p.layout.axis[0].stride[0];
    with_word(p.element_bytes, [&]<class W>() {
        W value;
        std::memcpy(&value, p.value, sizeof(W));
        for_rows(p.layout, kWholeRow, [&](std::int64_t count, const std::int64_t (&at)[1]) {
            constexpr auto size = static_cast<std::int64_t>(sizeof(W));
            auto* to = static_cast<std::byte*>(p.to) + at[0] * size;
            for (std::int64_t i = 0; i < count; ++i) std::memcpy(to + i * stride * size, &value, sizeof(W));
        });
    });
}

const Kernel fill_elements(elementwise_kernel("fill_strided", image_fill,
                                              twin<FillParams, fill_strided_host>));

}  // namespace

const Kernel& fill_kernel() { return fill_elements; }

}  // namespace kernels
}  // namespace gpk
