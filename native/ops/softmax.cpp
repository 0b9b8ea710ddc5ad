#include <algorithm>

#include "kernels/norm/softmax.hpp"
#include "ops/elementwise.hpp"
#include "ops/launch.hpp"
#include "ops/model_checks.hpp"
#include "ops/norm.hpp"

namespace gpk::ops {

namespace {

Array softmax_last_axis(const Array& input) {
    const Array x = contiguous(input);
    Array y = Array::empty(x.device(), x.shape(), x.dtype());
    if (x.size() == 0) return y;
    const std::int64_t n = x.shape().back();
    const kernels::SoftmaxParams params{.x = x.as<>(), .y = y.as<>(), .rows = x.size() / n, .n = n};
    const auto threads = static_cast<std::uint32_t>(std::clamp<std::int64_t>((n + 127) / 128 * 32, 32, 1024));
    const auto blocks = static_cast<std::uint32_t>(std::min<std::int64_t>(params.rows, 1 << 20));
    const double elements = static_cast<double>(x.size());
    launch(kernels::softmax(x.dtype()), {.grid = {blocks}, .block = {threads}}, params,
           {.flops = 4 * elements, .bytes = 2 * static_cast<double>(x.nbytes())}, {&x}, {&y});
    return y;
}

}  // namespace

Array softmax(const Array& x, int axis) {
    require_model_float("softmax", "x", x.dtype());
    axis = normalize_axis("softmax", axis, x.rank());
    const int last = x.rank() - 1;
    if (axis == last) return softmax_last_axis(x);
    Dims swapped;  // its own inverse
    for (int i = 0; i <= last; ++i) swapped.push_back(i == axis ? last : i == last ? axis : i);
    return contiguous(softmax_last_axis(x.transpose(swapped)).transpose(swapped));
}

}  // namespace gpk::ops
