#include "ops/creation.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "kernels/elementwise/range.hpp"
#include "ops/elementwise.hpp"
#include "ops/launch.hpp"

namespace gpk::ops {

namespace {

Array range(Device& device, double start, double step, std::int64_t count, double last, bool has_last,
            bool floor, DType dtype) {
    const Array out = Array::empty(device, {count}, dtype);
    if (count == 0) return out;
    launch(kernels::range_kernel(), streaming_grid(device, count),
           kernels::RangeParams{.count = count,
                                .start = start,
                                .step = step,
                                .last = last,
                                .out = out.as(),
                                .dtype = dtype,
                                .has_last = has_last,
                                .floor = floor},
           {.flops = 2.0 * static_cast<double>(count), .bytes = static_cast<double>(out.nbytes())}, {},
           {&out});
    return out;
}

}  // namespace

Array full(Device& device, const Dims& shape, const Scalar& value, DType dtype) {
    const Array out = Array::empty(device, shape, dtype);
    assign(out, value);
    return out;
}

Array zeros(Device& device, const Dims& shape, DType dtype) {
    return full(device, shape, Scalar(false), dtype);
}

Array arange(Device& device, double start, double step, std::int64_t count, DType dtype) {
    return range(device, start, step, count, 0, false, false, dtype);
}

Array arange_integer(Device& device, std::int64_t start, std::int64_t step, std::int64_t count, DType dtype) {
    const Array out = Array::empty(device, {count}, dtype);
    if (count == 0) return out;
    launch(kernels::integer_range_kernel(), streaming_grid(device, count),
           kernels::IntegerRangeParams{
               .count = count, .start = start, .step = step, .out = out.as(), .dtype = dtype},
           {.flops = 2.0 * static_cast<double>(count), .bytes = static_cast<double>(out.nbytes())}, {},
           {&out});
    return out;
}

Array linspace(Device& device, double start, double stop, std::int64_t count, bool endpoint, DType dtype) {
    const std::int64_t steps = endpoint ? count - 1 : count;
    const double step = steps > 0 ? (stop - start) / static_cast<double>(steps) : 0;
    return range(device, start, step, count, stop, endpoint && count > 1, !is_floating(dtype), dtype);
}

Array eye(Device& device, std::int64_t rows, std::int64_t columns, std::int64_t diagonal, DType dtype) {
    const Array out = zeros(device, {rows, columns}, dtype);
    // Element (i, i + diagonal) for every i inside: a view that steps one row and one column.
    const std::int64_t first_row = diagonal < 0 ? std::max(diagonal, -rows) * -1 : 0;
    const std::int64_t first_column = diagonal > 0 ? std::min(diagonal, columns) : 0;
    const std::int64_t length = std::min(rows - first_row, columns - first_column);
    if (length > 0) {
        assign(Array(out.storage(), dtype, {length}, {columns + 1}, first_row * columns + first_column),
               Scalar(true));
    }
    return out;
}

}  // namespace gpk::ops
