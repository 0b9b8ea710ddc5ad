#include <algorithm>

#include "base/error.hpp"
#include "kernels/norm/rms_norm.hpp"
#include "ops/elementwise.hpp"
#include "ops/launch.hpp"
#include "ops/model_checks.hpp"
#include "ops/norm.hpp"

namespace gpk::ops {

Array rms_norm(const Array& input, const Array& weight, double eps, const Array* residual, const Array* out) {
    constexpr const char* kCall = "rms_norm";
    require_model_float(kCall, "x", input.dtype());
    if (input.rank() == 0) {
        throw error(ErrorKind::value,
                    {.call = kCall, .argument = "x", .expected = "at least one dimension", .got = "()"});
    }
    const std::int64_t n = input.shape().back();
    require_array(kCall, "weight", weight, {n}, input.dtype());
    if (!(eps >= 0)) {
        throw error(ErrorKind::value,
                    {.call = kCall, .argument = "eps", .expected = "a number >= 0", .got = str(eps)});
    }
    Device& device = common_device(kCall, {&input, &weight});
    if (residual != nullptr) {
        require_array(kCall, "residual", *residual, input.shape(), input.dtype());
        require_contiguous(kCall, "residual", *residual);
        require_writable(kCall, "residual", *residual);
        common_device(kCall, {&input, residual});
    }
    const Array x = contiguous(input), w = contiguous(weight);
    Array y = prepare_output(kCall, device, x.shape(), x.dtype(), out);
    require_contiguous(kCall, "out", y);
    require_no_overlap(kCall, y, {&x, &w});
    if (residual != nullptr && (overlaps(*residual, x) || overlaps(*residual, y))) {
        throw error(ErrorKind::value, {.call = kCall,
                                       .argument = "residual",
                                       .expected = "an array apart from x and out",
                                       .got = "one that overlaps them"});
    }
    if (x.size() == 0) return y;

    const std::size_t size = itemsize(x.dtype());
    bool vectorized = n * size % 16 == 0 && aligned16(x) && aligned16(w) && aligned16(y);
    if (residual != nullptr) vectorized = vectorized && aligned16(*residual);
    const kernels::RmsNormParams params{
        .x = x.as<>(),
        .residual = residual != nullptr ? residual->as<>() : nullptr,
        .weight = w.as<>(),
        .y = y.as<>(),
        .rows = x.size() / n,
        .n = n,
        .eps = static_cast<float>(eps),
        .vectorized = vectorized,
    };
    const std::int64_t accesses = vectorized ? n * static_cast<std::int64_t>(size) / 16 : n;
    const auto threads =
        static_cast<std::uint32_t>(std::clamp<std::int64_t>((accesses + 31) / 32 * 32, 32, 1024));
    const auto blocks = static_cast<std::uint32_t>(std::min<std::int64_t>(params.rows, 1 << 20));
    const double elements = static_cast<double>(x.size());
    const Cost cost{.flops = 4 * elements,
                    .bytes = elements * static_cast<double>(size) * (residual != nullptr ? 4 : 2)};
    const LaunchConfig config{.grid = {blocks}, .block = {threads}};
    const Kernel& kernel = kernels::rms_norm(x.dtype());
    if (residual != nullptr) {
        launch(kernel, config, params, cost, {&x, &w}, {residual, &y});
    } else {
        launch(kernel, config, params, cost, {&x, &w}, {&y});
    }
    return y;
}

}  // namespace gpk::ops
