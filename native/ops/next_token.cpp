#include "ops/next_token.hpp"

#include "base/error.hpp"
#include "kernels/sampling/next_token.hpp"
#include "ops/launch.hpp"
#include "ops/model_checks.hpp"

namespace gpk::ops {

void next_token(const Array& logits, std::int64_t count, std::int64_t advance, const Array& token,
                const Array& position, std::span<std::int32_t> log) {
    constexpr const char* kCall = "next_token";
    if (logits.rank() != 1 || count < 1 || count > logits.shape()[0] || count > INT32_MAX ||
        !logits.is_contiguous() || !aligned16(logits)) {
        throw error(ErrorKind::value,
                    {.call = kCall,
                     .argument = "logits",
                     .expected = str("a contiguous, aligned array of at least ", count, " elements"),
                     .got = "shape " + to_string(logits.shape())});
    }
    require_array(kCall, "logits", logits, logits.shape(), DType::float32);
    require_array(kCall, "token", token, {1}, DType::int32);
    require_writable(kCall, "token", token);
    require_position(kCall, position);
    require_writable(kCall, "position", position);
    common_device(kCall, {&logits, &token, &position});
    const kernels::NextTokenParams params{
        .logits = logits.as<const float>(),
        .token = token.as<std::int32_t>(),
        .position = position.as<std::int32_t>(),
        .log = log.data(),
        .log_size = static_cast<std::int64_t>(log.size()),
        .count = static_cast<std::int32_t>(count),
        .advance = static_cast<std::int32_t>(advance),
    };
    launch(kernels::next_token(), {.grid = {1}, .block = {1024}}, params,
           {.bytes = 4.0 * static_cast<double>(count)}, {&logits}, {&token, &position});
}

}  // namespace gpk::ops
