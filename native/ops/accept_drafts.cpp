#include "ops/accept_drafts.hpp"

#include <cmath>
#include <utility>

#include "base/error.hpp"
#include "ops/launch.hpp"
#include "ops/model_checks.hpp"

namespace gpk::ops {

void accept_drafts(const Array& logits, const Array& ids, const Array& position,
                   const AcceptDraftsState& state, const AcceptDraftsOptions& o) {
    constexpr const char* kCall = "accept_drafts";
    constexpr std::int64_t kMostRows = kernels::kMostDraftRows;
    const bool fits = logits.rank() == 2 && o.count >= 1 && o.count <= logits.shape()[1] &&
                      o.count <= INT32_MAX && logits.shape()[0] >= 1 && logits.shape()[0] <= kMostRows;
    if (!fits || !last_axis_dense(logits)) {
        throw error(ErrorKind::value, {.call = kCall,
                                       .argument = "logits",
                                       .expected = str("1 to ", kMostRows, " rows of at least ", o.count,
                                                       " elements without gaps"),
                                       .got = "shape " + to_string(logits.shape())});
    }
    if (!(o.margin >= 0) || std::isinf(o.margin)) {
        throw error(
            ErrorKind::value,
            {.call = kCall, .argument = "margin", .expected = "a finite number >= 0", .got = str(o.margin)});
    }
    const std::int64_t rows = logits.shape()[0];
    require_array(kCall, "logits", logits, logits.shape(), DType::float32);
    require_array(kCall, "ids", ids, {rows}, DType::int32);
    require_position(kCall, position);
    require_array(kCall, "best", state.best, {2 * kMostRows}, DType::int32);
    require_array(kCall, "ticket", state.ticket, {1}, DType::uint32);
    for (const auto& [name, array] : {std::pair{"ids", &ids},
                                      {"position", &position},
                                      {"best", &state.best},
                                      {"ticket", &state.ticket}}) {
        require_contiguous(kCall, name, *array);
        require_writable(kCall, name, *array);
    }
    common_device(kCall, {&logits, &ids, &position, &state.best, &state.ticket});
    const kernels::AcceptDraftsParams params{
        .logits = logits.as<const float>(),
        .ids = ids.as<std::int32_t>(),
        .position = position.as<std::int32_t>(),
        .log = state.log,
        .log_size = state.log_size,
        .accepted = state.accepted,
        .best = state.best.as<std::int32_t>(),
        .ticket = state.ticket.as<std::uint32_t>(),
        .pitch = rows > 1 ? logits.strides()[0] : 0,
        .rows = static_cast<std::int32_t>(rows),
        .count = static_cast<std::int32_t>(o.count),
        .margin = static_cast<float>(o.margin),
        .refill = o.refill,
    };
    launch(kernels::accept_drafts(), {.grid = {static_cast<std::uint32_t>(rows)}, .block = {1024}}, params,
           {.bytes = 4.0 * static_cast<double>(o.count * rows)}, {&logits},
           {&ids, &position, &state.best, &state.ticket});
}

}  // namespace gpk::ops
