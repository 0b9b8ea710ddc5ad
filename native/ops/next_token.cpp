#include "ops/next_token.hpp"

#include "base/error.hpp"
#include "kernels/sampling/next_token.hpp"
#include "ops/launch.hpp"
#include "ops/model_checks.hpp"

namespace gpk::ops {

void next_token(const Array& logits, std::int64_t count, std::int64_t advance, const Array& token,
                const Array& position, std::int32_t* log, std::int64_t log_size, const Array* drawn) {
    constexpr const char* kCall = "next_token";
    const bool fits = logits.rank() == 2 && count >= 1 && count <= logits.shape()[1] && count <= INT32_MAX;
    if (!fits || !last_axis_dense(logits)) {
        throw error(ErrorKind::value, {.call = kCall,
                                       .argument = "logits",
                                       .expected = str("rows of at least ", count, " elements without gaps"),
                                       .got = "shape " + to_string(logits.shape())});
    }
    const std::int64_t rows = logits.shape()[0];
    require_array(kCall, "logits", logits, logits.shape(), DType::float32);
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
