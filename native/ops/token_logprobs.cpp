#include "ops/token_logprobs.hpp"

#include <utility>

#include "base/error.hpp"
#include "kernels/sampling/token_logprobs.hpp"
#include "ops/launch.hpp"
#include "ops/model_checks.hpp"

namespace gpk::ops {

void token_logprobs(const Array& logits, std::int64_t count, const Array& token, const Array& position,
                    const Array& best, const LogprobsLog& log) {
    constexpr const char* kCall = "token_logprobs";
    require_logit_rows(kCall, logits, count);
    const std::int64_t rows = logits.shape()[0];
    if (best.rank() != 2 || best.shape()[1] > log.most) {
        throw error(ErrorKind::value, {.call = kCall,
                                       .argument = "best",
                                       .expected = str("shape (", rows, ", at most ", log.most, ")"),
                                       .got = "shape " + to_string(best.shape())});
    }
    require_array(kCall, "best", best, {rows, best.shape()[1]}, DType::int32);
    require_contiguous(kCall, "best", best);
    for (const auto& [name, array] : {std::pair{"token", &token}, {"position", &position}}) {
        require_array(kCall, name, *array, {rows}, DType::int32);
        require_contiguous(kCall, name, *array);
    }
    common_device(kCall, {&logits, &token, &position, &best});
    if (rows == 0) return;
    const kernels::TokenLogprobsParams params{
        .logits = logits.as<const float>(),
        .token = token.as<const std::int32_t>(),
        .position = position.as<const std::int32_t>(),
        .best = best.as<const std::int32_t>(),
        .logprobs = log.logprobs,
        .ids = log.ids,
        .rows = rows,
        .pitch = rows > 1 ? logits.strides()[0] : 0,
        .count = static_cast<std::int32_t>(count),
        .k = static_cast<std::int32_t>(best.shape()[1]),
        .entries = static_cast<std::int32_t>(log.entries),
        .most = static_cast<std::int32_t>(log.most),
    };
    // The log is no array: it stands in order behind the token.
    launch(kernels::token_logprobs(), {.grid = {static_cast<std::uint32_t>(rows)}, .block = {1024}}, params,
           {.bytes = 8.0 * static_cast<double>(count * rows)}, {&logits, &position, &best}, {&token});
}

}  // namespace gpk::ops
