#include "kernels/elementwise/where.hpp"

#include <cstring>

#include "kernels/elementwise/rows.hpp"
#include "runtime/kernel.hpp"

namespace gpk {

extern const Image image_where;

namespace kernels {
namespace {

void where_host(const WhereParams& p) {
    const auto& stride = p.layout.axis[0].stride;
    with_word(p.element_bytes, [&]<class W>() {
        constexpr auto size = static_cast<std::int64_t>(sizeof(W));
        for_rows(p.layout, kWholeRow, [&](std::int64_t count, const std::int64_t (&at)[4]) {
            auto* out = static_cast<std::byte*>(p.out) + at[0] * size;
            const std::uint8_t* condition = p.condition + at[1];
            // A number is a row of stride 0.
            const auto* a = p.a != nullptr ? static_cast<const std::byte*>(p.a) + at[2] * size
                                           : reinterpret_cast<const std::byte*>(&p.a_bits);
            const auto* b = p.b != nullptr ? static_cast<const std::byte*>(p.b) + at[3] * size
                                           : reinterpret_cast<const std::byte*>(&p.b_bits);
            const std::int64_t a_step = p.a != nullptr ? stride[2] * size : 0;
            const std::int64_t b_step = p.b != nullptr ? stride[3] * size : 0;
            for (std::int64_t i = 0; i < count; ++i) {
                const auto* from = condition[i * stride[1]] != 0 ? a + i * a_step : b + i * b_step;
                std::memcpy(out + i * stride[0] * size, from, sizeof(W));
            }
        });
    });
}

void where_packs_host(const WherePacksParams& p) {
    where_host({.layout = in_elements(p.layout, p.count, 16 / p.element_bytes, p.is_run),
                .out = p.out,
                .condition = p.condition,
                .a = p.a,
                .b = p.b,
                .a_bits = p.a_bits,
                .b_bits = p.b_bits,
                .element_bytes = p.element_bytes});
}

const Kernel where_elements(elementwise_kernel("where_strided", image_where, twin<WhereParams, where_host>));

const Kernel packs(elementwise_kernel("where_packs", image_where, twin<WherePacksParams, where_packs_host>));

}  // namespace

const Kernel& where_kernel() { return where_elements; }
const Kernel& where_packs_kernel() { return packs; }

}  // namespace kernels
}  // namespace gpk
