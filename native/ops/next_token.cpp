#include "ops/next_token.hpp"

#include "kernels/sampling/next_token.hpp"
#include "ops/launch.hpp"
#include "ops/model_checks.hpp"

namespace gpk::ops {

void next_token(const Array& logits, std::int64_t count, std::int64_t advance, const Array& token,
                const Array& position, std::int32_t* log, std::int64_t log_size, const Array* drawn) {
    constexpr const char* kCall = "next_token";
    require_logit_rows(kCall, logits, count);
    const std::int64_t rows = logits.shape()[0];
    for (const auto& [name, array] : {std::pair{"token", &token}, {"position", &position}}) {
        require_array(kCall, name, *array, {rows}, DType::int32);
        require_contiguous(kCall, name, *array);
        require_writable(kCall, name, *array);
    }
    if (drawn != nullptr) {
        require_array(kCall, "drawn", *drawn, {rows}, DType::int32);
        require_contiguous(kCall, "drawn", *drawn);
    }
    common_device(kCall, {&logits, &token, &position, drawn});
    if (rows == 0) return;
    const kernels::NextTokenParams params{
        .logits = logits.as<const float>(),
        .drawn = drawn != nullptr ? drawn->as<const std::int32_t>() : nullptr,
        .token = token.as<std::int32_t>(),
        .position = position.as<std::int32_t>(),
        .log = log,
        .log_size = log != nullptr ? log_size : 0,
        .rows = rows,
        .pitch = rows > 1 ? logits.strides()[0] : 0,
        .count = static_cast<std::int32_t>(count),
        .advance = static_cast<std::int32_t>(advance),
    };
    launch(kernels::next_token(), {.grid = {static_cast<std::uint32_t>(rows)}, .block = {1024}}, params,
           {.bytes = drawn != nullptr ? 16.0 * static_cast<double>(rows)
                                      : 4.0 * static_cast<double>(count * rows)},
           {&logits, drawn}, {&token, &position});
}

}  // namespace gpk::ops
