#include "ops/experts.hpp"

#include <algorithm>
#include <limits>

#include "base/error.hpp"
#include "kernels/experts/combine_experts.hpp"
#include "kernels/experts/route.hpp"
#include "kernels/experts/sort_by_expert.hpp"
#include "ops/elementwise.hpp"
#include "ops/launch.hpp"
#include "ops/model_checks.hpp"

namespace gpk::ops {

static_assert(kMostExperts == kernels::kMaxRouteExperts && kMostExperts == kernels::kMaxSortExperts &&
              kMostRouteTop == kernels::kMaxRouteTop);

namespace {

constexpr std::int64_t kMostPairs = std::numeric_limits<std::int32_t>::max() - 65536;

void require(bool holds, const char* call, const char* argument, const std::string& expected,
             const std::string& got) {
    if (holds) return;
    throw error(ErrorKind::value, {.call = call, .argument = argument, .expected = expected, .got = got});
}

void require_dtype(const char* call, const char* argument, const Array& array, DType dtype) {
    if (array.dtype() == dtype) return;
    throw error(ErrorKind::type, {.call = call,
                                  .argument = argument,
                                  .expected = std::string(name(dtype)),
                                  .got = std::string(name(array.dtype()))});
}

}  // namespace

Routes route(const Array& logits, std::int64_t k, bool normalize) {
    constexpr const char* kCall = "route";
    require_model_float(kCall, "logits", logits.dtype());
    require(logits.rank() == 2 && logits.shape()[1] >= 1 && logits.shape()[1] <= kMostExperts, kCall,
            "logits", str("2 dimensions (tokens, 1 to ", kMostExperts, " experts)"),
            to_string(logits.shape()));
    const std::int64_t tokens = logits.shape()[0], experts = logits.shape()[1];
    const std::int64_t most = std::min(experts, kMostRouteTop);
    require(k >= 1 && k <= most, kCall, "k", str("1 to ", most), str(k));
    const Routes routes{.weights = Array::empty(logits.device(), {tokens, k}, DType::float32),
                        .experts = Array::empty(logits.device(), {tokens, k}, DType::int32)};
    if (tokens == 0) return routes;
    const Array rows = last_axis_dense(logits) && logits.strides()[0] >= 0 ? logits : contiguous(logits);
    const kernels::RouteParams params{.logits = rows.as<const void>(),
                                      .weights = routes.weights.as<float>(),
                                      .experts = routes.experts.as<std::int32_t>(),
                                      .tokens = tokens,
                                      .pitch = rows.strides()[0],
                                      .count = static_cast<std::int32_t>(experts),
                                      .top = static_cast<std::int32_t>(k),
                                      .normalize = normalize ? 1 : 0};
    launch(kernels::route(logits.dtype()), grid_for(tokens * 32, kernels::kRouteThreads), params,
           {.bytes = static_cast<double>(rows.nbytes() + 2 * routes.weights.nbytes())}, {&rows},
           {&routes.weights, &routes.experts});
    return routes;
}

ExpertOrder sort_by_expert(const Array& experts, std::int64_t num_experts) {
    constexpr const char* kCall = "sort_by_expert";
    require_dtype(kCall, "experts", experts, DType::int32);
    require(experts.rank() == 2 && experts.size() <= kMostPairs, kCall, "experts",
            str("2 dimensions (tokens, k), at most ", kMostPairs, " together"), to_string(experts.shape()));
    require(num_experts >= 1 && num_experts <= kMostExperts, kCall, "num_experts", str("1 to ", kMostExperts),
            str(num_experts));
    Device& device = experts.device();
    const ExpertOrder order{.tokens = Array::empty(device, {experts.size()}, DType::int32),
                            .places = Array::empty(device, experts.shape(), DType::int32),
                            .offsets = Array::empty(device, {num_experts + 1}, DType::int32)};
    if (experts.size() == 0) {
        assign(order.offsets, Scalar(false));
        return order;
    }
    const Array pairs = contiguous(experts);
    const kernels::SortByExpertParams params{.experts = pairs.as<const std::int32_t>(),
                                             .tokens = order.tokens.as<std::int32_t>(),
                                             .places = order.places.as<std::int32_t>(),
                                             .offsets = order.offsets.as<std::int32_t>(),
                                             .pairs = static_cast<std::int32_t>(experts.size()),
                                             .top = static_cast<std::int32_t>(experts.shape()[1]),
                                             .count = static_cast<std::int32_t>(num_experts)};
    launch(kernels::sort_by_expert(), {.grid = {1}, .block = {kernels::kSortThreads}}, params,
           {.bytes = 4 * static_cast<double>(pairs.nbytes())}, {&pairs},
           {&order.tokens, &order.places, &order.offsets});
    return order;
}

Array combine_experts(const Array& y, const Array& places, const Array& weights, const Array* residual,
                      const Array* out) {
    constexpr const char* kCall = "combine_experts";
    require_model_float(kCall, "y", y.dtype());
    require(y.rank() == 2, kCall, "y", "2 dimensions (rows, n)", to_string(y.shape()));
    require_dtype(kCall, "places", places, DType::int32);
    require(places.rank() == 2 && places.shape()[1] <= std::numeric_limits<std::int32_t>::max(), kCall,
            "places", "2 dimensions (tokens, k)", to_string(places.shape()));
    require_array(kCall, "weights", weights, places.shape(), DType::float32);
    const Dims shape{places.shape()[0], y.shape()[1]};
    if (residual != nullptr) require_array(kCall, "residual", *residual, shape, y.dtype());
    Device& device = common_device(kCall, {&y, &places, &weights, residual});
    const Array result = prepare_output(kCall, device, shape, y.dtype(), out);
    if (result.size() == 0) return result;
    const Array rows = contiguous(y), at = contiguous(places), by = contiguous(weights);
    const std::optional<Array> add =
        residual != nullptr ? std::optional(contiguous(*residual)) : std::nullopt;
    const bool aside = !result.is_contiguous() || overlaps(result, rows) || overlaps(result, at) ||
                       overlaps(result, by) || (add && writes_over(result, *add));
    const Array target = aside ? Array::empty(device, shape, y.dtype()) : result;
    const std::int64_t n = shape[1], per_access = 16 / static_cast<std::int64_t>(itemsize(y.dtype()));
    const bool vectorized =
        n % per_access == 0 && aligned16(rows) && aligned16(target) && (!add || aligned16(*add));
    const kernels::CombineExpertsParams params{.y = rows.as<const void>(),
                                               .places = at.as<const std::int32_t>(),
                                               .weights = by.as<const float>(),
                                               .residual = add ? add->as<const void>() : nullptr,
                                               .out = target.as<void>(),
                                               .tokens = shape[0],
                                               .rows = y.shape()[0],
                                               .n = n,
                                               .top = static_cast<std::int32_t>(places.shape()[1]),
                                               .vectorized = vectorized ? 1 : 0};
    LaunchConfig config = grid_for(vectorized ? n / per_access : n, kernels::kCombineThreads, INT32_MAX);
    config.grid.y = static_cast<std::uint32_t>(std::min<std::int64_t>(shape[0], 65535));
    launch(kernels::combine_experts(y.dtype()), config, params,
           {.flops = 2 * static_cast<double>(places.size()) * static_cast<double>(n),
            .bytes = static_cast<double>(rows.nbytes() + target.nbytes())},
           {&rows, &at, &by, add ? &*add : nullptr}, {&target});
    if (aside) assign(result, target);
    return result;
}

}  // namespace gpk::ops
