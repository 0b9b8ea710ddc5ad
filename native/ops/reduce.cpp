#include "ops/reduce.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdlib>

#include "base/error.hpp"
#include "ops/launch.hpp"
#include "runtime/kernel.hpp"

namespace gpk::ops {

namespace {

constexpr const char* kNames[kReduceOpCount] = {"sum", "mean", "max", "min", "prod", "any", "all"};

// NumPy's result types.
DType result_dtype(ReduceOp op, DType dtype) {
    switch (op) {
        case ReduceOp::any:
        case ReduceOp::all: return DType::bool_;
        case ReduceOp::max:
        case ReduceOp::min: return dtype;
        case ReduceOp::mean: return is_floating(dtype) ? dtype : DType::float64;
        case ReduceOp::sum:
        case ReduceOp::prod: break;
    }
    if (is_floating(dtype)) return dtype;
    return info(dtype).kind == DTypeKind::unsigned_integer ? DType::uint64 : DType::int64;
}

struct Dimension {
    std::int64_t extent, stride;
};

// Adds a dimension inside those there are: joined with the last one where memory goes on.
void add_dimension(ReduceLayout& layout, int first, Dimension dimension) {
    if (dimension.extent == 1) return;
    if (layout.rank > first && layout.strides[layout.rank - 1] == dimension.stride * dimension.extent) {
        layout.extents[layout.rank - 1] *= dimension.extent;
        layout.strides[layout.rank - 1] = dimension.stride;
        return;
    }
    layout.extents[layout.rank] = dimension.extent;
    layout.strides[layout.rank] = dimension.stride;
    ++layout.rank;
}

// `reduced` says which axes go. Where the order of the reduced elements is free, they are taken in the
// order of memory.
ReduceLayout dimensions_of(const Array& x, const std::array<bool, kMaxRank>& reduced, bool free_order) {
    ReduceLayout layout = {};
    layout.outputs = layout.count = 1;
    std::array<Dimension, kMaxRank> inner;
    int inner_count = 0;
    for (int i = 0; i < x.rank(); ++i) {
        const Dimension dimension = {x.shape()[i], x.strides()[i]};
        if (reduced[i]) {
            layout.count *= dimension.extent;
            inner[inner_count++] = dimension;
        } else {
            layout.outputs *= dimension.extent;
            add_dimension(layout, 0, dimension);
        }
    }
    layout.kept_rank = layout.rank;
    if (free_order) {
        std::stable_sort(
            inner.begin(), inner.begin() + inner_count,
            [](const Dimension& a, const Dimension& b) { return std::abs(a.stride) > std::abs(b.stride); });
    }
    for (int i = 0; i < inner_count; ++i) add_dimension(layout, layout.kept_rank, inner[i]);
    return layout;
}

// A power of two, at most `limit` (itself one).
int power_of_two(std::int64_t at_least, int limit) {
    return at_least >= limit ? limit
                             : static_cast<int>(std::bit_ceil(
                                   static_cast<std::uint64_t>(std::max<std::int64_t>(at_least, 1))));
}

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// How threads share the work: see ReduceLayout. `may_split`: into parts that a second pass joins.
void share(ReduceLayout& layout, DevicePtr input, std::size_t item, int multiprocessors, bool may_use_vectors,
           bool may_split) {
    const bool has_kept = layout.kept_rank > 0, has_reduced = layout.rank > layout.kept_rank;
    const std::int64_t kept_step = has_kept ? std::abs(layout.strides[layout.kept_rank - 1]) : 0;
    const std::int64_t reduced_step = has_reduced ? std::abs(layout.strides[layout.rank - 1]) : 0;
    layout.along_lanes = !has_kept || (has_reduced && reduced_step <= kept_step);

    const std::int64_t chunk = 16 / static_cast<std::int64_t>(item);
    layout.vectors = may_use_vectors && layout.along_lanes && layout.rank == layout.kept_rank + 1 &&
                     layout.strides[layout.kept_rank] == 1 && layout.count >= 4 * chunk && input % 16 == 0 &&
                     std::all_of(layout.strides, layout.strides + layout.kept_rank,
                                 [&](std::int64_t stride) { return stride % chunk == 0; });
    const std::int64_t per_lane = layout.vectors ? chunk : 1;
    if (layout.along_lanes) {
        layout.lanes = power_of_two(ceil_div(layout.count, per_lane), kReduceThreads);
    } else {
        const int neighbours = power_of_two(layout.extents[layout.kept_rank - 1], 32);
        layout.lanes = power_of_two(layout.count, kReduceThreads / neighbours);
    }

    layout.parts = 1;
    layout.part_count = layout.count;
    if (!may_split) return;
    constexpr std::int64_t kBlocksPerMultiprocessor = 4, kLeastBlocks = 16, kLeastPerLane = 16,
                           kMostParts = 1024;
    const std::int64_t blocks = ceil_div(layout.outputs, kReduceThreads / layout.lanes);
    const std::int64_t wanted =
        std::max<std::int64_t>(multiprocessors * kBlocksPerMultiprocessor, kLeastBlocks);
    const std::int64_t parts =
        std::min({wanted / blocks, layout.count / (layout.lanes * per_lane * kLeastPerLane), kMostParts});
    if (parts < 2) return;
    layout.part_count = ceil_div(ceil_div(layout.count, parts), 16) * 16;  // whole vectors of every type
    layout.parts = ceil_div(layout.count, layout.part_count);
}

// The second pass over outputs * parts values that a first one left.
ReduceLayout over_parts(const ReduceLayout& first) {
    ReduceLayout layout = {};
    layout.kept_rank = 1, layout.rank = 2;
    layout.extents[0] = first.outputs, layout.extents[1] = first.parts;
    layout.strides[0] = first.parts, layout.strides[1] = 1;
    layout.outputs = first.outputs, layout.count = first.parts;
    return layout;
}

LaunchConfig config_of(const ReduceLayout& layout) {
    const std::int64_t groups = ceil_div(layout.outputs, kReduceThreads / layout.lanes);
    return {.grid = {static_cast<std::uint32_t>(std::min<std::int64_t>(groups, 1 << 30)),
                     static_cast<std::uint32_t>(layout.parts)},
            .block = {kReduceThreads}};
}

Cost cost_of(const ReduceLayout& layout, DType in, DType out) {
    const double elements = static_cast<double>(layout.outputs) * static_cast<double>(layout.count);
    return {.flops = elements,
            .bytes = elements * static_cast<double>(itemsize(in)) +
                     static_cast<double>(layout.outputs * layout.parts) * static_cast<double>(itemsize(out))};
}

ReduceStore store_of(DType result, DType accumulator) {
    if (accumulator != DType::float32) return ReduceStore::accumulator;
    return result == DType::float16    ? ReduceStore::float16
           : result == DType::bfloat16 ? ReduceStore::bfloat16
                                       : ReduceStore::accumulator;
}

Dims result_shape(const Array& x, const std::array<bool, kMaxRank>& reduced, bool keepdims) {
    Dims shape;
    for (int i = 0; i < x.rank(); ++i) {
        if (!reduced[i]) shape.push_back(x.shape()[i]);
        if (reduced[i] && keepdims) shape.push_back(1);
    }
    return shape;
}

[[noreturn]] void nothing_to_compare(const char* call, const Array& x) {
    throw error(ErrorKind::value, {.call = call,
                                   .argument = "x",
                                   .expected = "at least one element along the reduced axes",
                                   .got = str("shape ", to_string(x.shape()))});
}

void require_arithmetic(const char* call, const Array& x) {
    if (!is_float8(x.dtype())) return;
    throw error(ErrorKind::type, {.call = call,
                                  .argument = "x",
                                  .expected = "a dtype with arithmetic",
                                  .got = std::string(name(x.dtype())),
                                  .fix = "convert with astype first"});
}

}  // namespace

Array reduce(ReduceOp op, const Array& x, const Dims& axes, bool keepdims) {
    const char* call = kNames[static_cast<int>(op)];
    require_arithmetic(call, x);
    std::array<bool, kMaxRank> reduced = {};
    if (axes.empty()) std::fill_n(reduced.begin(), x.rank(), true);
    for (std::int64_t axis : axes) {
        bool& flag = reduced[normalize_axis(call, axis, x.rank())];
        if (flag) {
            throw error(
                ErrorKind::value,
                {.call = call, .argument = "axis", .expected = "each axis once", .got = to_string(axes)});
        }
        flag = true;
    }
    const Kernel& kernel = reduce_kernel(op, x.dtype());
    const DType accumulator = reduce_accumulator(op, x.dtype());
    const DType dtype = result_dtype(op, x.dtype());
    ReduceLayout layout = dimensions_of(x, reduced, true);
    if (layout.count == 0 && layout.outputs > 0 && (op == ReduceOp::max || op == ReduceOp::min)) {
        nothing_to_compare(call, x);
    }
    Device& device = x.device();
    const Array result = Array::empty(device, result_shape(x, reduced, keepdims), dtype);
    if (layout.outputs == 0) return result;

    share(layout, x.data(), itemsize(x.dtype()), current_stream(device)->multiprocessors(), true, true);
    const double divisor = op == ReduceOp::mean ? static_cast<double>(layout.count) : 1;
    ReduceParams params = {.input = x.as<const void>(),
                           .output = result.as<void>(),
                           .layout = layout,
                           .divisor = divisor,
                           .store = store_of(dtype, accumulator)};
    if (layout.parts == 1) {
        launch(kernel, config_of(layout), params, cost_of(layout, x.dtype(), dtype), {&x}, {&result});
        return result;
    }
    const Array partial = Array::empty(device, {layout.outputs, layout.parts}, accumulator);
    params.output = partial.as<void>();
    params.divisor = 1;
    params.store = ReduceStore::accumulator;
    launch(kernel, config_of(layout), params, cost_of(layout, x.dtype(), accumulator), {&x}, {&partial});

    ReduceLayout second = over_parts(layout);
    share(second, partial.data(), itemsize(accumulator), current_stream(device)->multiprocessors(), true,
          false);
    const ReduceParams last = {.input = partial.as<const void>(),
                               .output = result.as<void>(),
                               .layout = second,
                               .divisor = divisor,
                               .store = store_of(dtype, accumulator)};
    launch(reduce_kernel(op, accumulator), config_of(second), last, cost_of(second, accumulator, dtype),
           {&partial}, {&result});
    return result;
}

Array arg_reduce(ArgReduceOp op, const Array& x, int axis, bool keepdims) {
    const char* call = op == ArgReduceOp::argmax ? "argmax" : "argmin";
    require_arithmetic(call, x);
    std::array<bool, kMaxRank> reduced = {};
    if (axis == kAllAxes) {
        std::fill_n(reduced.begin(), x.rank(), true);
    } else {
        reduced[normalize_axis(call, axis, x.rank())] = true;
    }
    const Kernel& kernel = arg_reduce_kernel(op, x.dtype());
    ReduceLayout layout = dimensions_of(x, reduced, false);
    if (layout.count == 0) nothing_to_compare(call, x);
    Device& device = x.device();
    const Array result = Array::empty(device, result_shape(x, reduced, keepdims), DType::int64);
    if (layout.outputs == 0) return result;

    share(layout, x.data(), itemsize(x.dtype()), current_stream(device)->multiprocessors(), false, true);
    ArgReduceParams params = {.input = x.as<const void>(),
                              .output = result.as<std::int64_t>(),
                              .candidates = nullptr,
                              .layout = layout};
    if (layout.parts == 1) {
        launch(kernel, config_of(layout), params, cost_of(layout, x.dtype(), DType::int64), {&x}, {&result});
        return result;
    }
    const Array partial = Array::empty(device, {layout.outputs, layout.parts}, DType::int64);
    params.output = partial.as<std::int64_t>();
    launch(kernel, config_of(layout), params, cost_of(layout, x.dtype(), DType::int64), {&x}, {&partial});

    ReduceLayout second = layout;  // the same dimensions; only the candidates are looked at
    second.count = second.part_count = layout.parts;
    second.parts = 1;
    second.along_lanes = true;
    second.lanes = power_of_two(second.count, kReduceThreads);
    const ArgReduceParams last = {.input = x.as<const void>(),
                                  .output = result.as<std::int64_t>(),
                                  .candidates = partial.as<const std::int64_t>(),
                                  .layout = second};
    launch(kernel, config_of(second), last, cost_of(second, DType::int64, DType::int64), {&x, &partial},
           {&result});
    return result;
}

}  // namespace gpk::ops
