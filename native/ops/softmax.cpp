#include "kernels/norm/softmax.hpp"
#include "kernels/norm/softmax_columns.hpp"
#include "ops/elementwise.hpp"
#include "ops/launch.hpp"
#include "ops/model_checks.hpp"
#include "ops/norm.hpp"
#include "ops/norm_rows.hpp"

namespace gpk::ops {

namespace {

Array softmax_last_axis(const Array& input) {
    const Array x = contiguous(input);
    Array y = Array::empty(x.device(), x.shape(), x.dtype());
    if (x.size() == 0) return y;
    const kernels::RowShape shape = row_shape(x, {&y});
    const kernels::SoftmaxParams params{.x = x.as<>(), .y = y.as<>(), .rows = shape.rows, .n = shape.n};
    const kernels::RowPlan plan = kernels::softmax(shape);
    launch(*plan.kernel, plan.config, params,
           {.flops = 4 * static_cast<double>(x.size()), .bytes = 2 * static_cast<double>(x.nbytes())}, {&x},
           {&y});
    return y;
}

// Of [outer, n, inner]: down the columns.
Array softmax_columns(const Array& input, std::int64_t outer, std::int64_t n, std::int64_t inner) {
    const Array x = contiguous(input);
    Array y = Array::empty(x.device(), x.shape(), x.dtype());
    if (x.size() == 0) return y;
    const std::int64_t width = 16 / static_cast<std::int64_t>(itemsize(x.dtype()));
    const bool vectorized = inner % width == 0 && aligned16(x) && aligned16(y);
    const std::int64_t columns = inner / (vectorized ? width : 1);
    const std::int64_t blocks = (columns + kernels::kColumnLanes - 1) / kernels::kColumnLanes;
    const kernels::SoftmaxColumnsParams params{.x = x.as<>(),
                                               .y = y.as<>(),
                                               .outer = outer,
                                               .n = n,
                                               .inner = inner,
                                               .vectorized = vectorized,
                                               .column_blocks = static_cast<std::uint32_t>(blocks)};
    launch(kernels::softmax_columns(x.dtype()),
           {.grid = {static_cast<std::uint32_t>(blocks * outer)},
            .block = {kernels::kColumnLanes, kernels::kColumnRows}},
           params, {.flops = 4 * static_cast<double>(x.size()), .bytes = 3 * static_cast<double>(x.nbytes())},
           {&x}, {&y});
    return y;
}

constexpr std::int64_t kColumnsOfABlock = 8 * kernels::kColumnLanes;  // of 16-bit elements

}  // namespace

Array softmax(const Array& x, int axis) {
    require_model_float("softmax", "x", x.dtype());
    axis = normalize_axis("softmax", axis, x.rank());
    const int last = x.rank() - 1;
    if (axis == last) return softmax_last_axis(x);
    std::int64_t outer = 1, inner = 1;
    for (int d = 0; d <= last; ++d) (d < axis ? outer : inner) *= d == axis ? 1 : x.shape()[d];
    // Columns too few to fill the device, and more than a grid has blocks, are turned into rows.
    const std::int64_t blocks = outer * ((inner + kColumnsOfABlock - 1) / kColumnsOfABlock);
    const bool fill = blocks >= std::int64_t{4} * current_stream(x.device())->multiprocessors();
    if (inner >= kColumnsOfABlock / 8 && fill && outer <= INT32_MAX / inner) {
        return softmax_columns(x, outer, x.shape()[axis], inner);
    }
    Dims swapped;  // its own inverse
    for (int i = 0; i <= last; ++i) swapped.push_back(i == axis ? last : i == last ? axis : i);
    return contiguous(softmax_last_axis(x.transpose(swapped)).transpose(swapped));
}

}  // namespace gpk::ops
