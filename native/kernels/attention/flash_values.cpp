#include "kernels/attention/flash_values.hpp"

#include "kernels/host.hpp"

namespace gpk {
extern const Image image_flash_values;
}

namespace gpk::kernels {

namespace {

void flash_values_host(const FlashValuesParams& p) {
    const std::int64_t rows = std::int64_t{p.batch} * p.kv_heads * p.d;
    parallel_for(rows, 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t row = begin; row < end; ++row) {
            const std::int64_t column = row % p.d, head = row / p.d % p.kv_heads,
                               batch = row / p.d / p.kv_heads;
            const auto* from = static_cast<const std::uint8_t*>(p.in) + batch * p.batch_stride +
                               head * p.head_stride + column;
            auto* to = static_cast<std::uint8_t*>(p.out) + row * p.padded;
            for (std::int32_t place = 0; place < p.padded; ++place) {
                const std::int64_t key = key_at(place);
                to[place] = key < p.keys ? from[key * p.token_stride] : 0;
            }
        }
    });
}

}  // namespace

const Kernel& flash_values() {
    static const Kernel kernel(KernelDef{.name = "flash_values",
                                         .image = &image_flash_values,
                                         .twin = twin<FlashValuesParams, flash_values_host>,
                                         .waits_for_predecessor = true});
    return kernel;
}

}  // namespace gpk::kernels
