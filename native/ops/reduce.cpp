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

// Whether all strides of the dimensions first..last-1 but the innermost are whole vectors, and that is 1.
bool begins_vectors(const ReduceLayout& layout, int first, int last, std::int64_t elements) {
    if (first == last || layout.strides[last - 1] != 1) return false;
    return std::all_of(layout.strides, layout.strides + layout.rank, [&](const std::int64_t& stride) {
        return &stride == &layout.strides[last - 1] || stride % elements == 0;
    });
}

// Which elements a thread takes at a time, of `vector` elements in 16 bytes.
ReduceWalk walk_of(const ReduceLayout& layout, DevicePtr input, std::int64_t vector) {
    const int kept = layout.kept_rank, rank = layout.rank;
    if (input % 16 != 0) return ReduceWalk::elements;
    if (begins_vectors(layout, kept, rank, vector) && layout.count >= 4 * vector &&
        (rank == kept + 1 || layout.extents[rank - 1] % vector == 0)) {
        return ReduceWalk::rows;
    }
    const bool columns = begins_vectors(layout, 0, kept, vector) && layout.extents[kept - 1] % vector == 0;
    return columns ? ReduceWalk::columns : ReduceWalk::elements;
}

// How threads share the work: see ReduceLayout. `may_split`: into parts that a second pass joins. The figures
// are from measurements on an H200 (sums of float32, 8192 x 8192 and narrower).
void share(ReduceLayout& layout, ReduceWalk walk, std::int64_t vector, const Stream& stream, bool may_split) {
    const int multiprocessors = stream.multiprocessors();
    const bool has_kept = layout.kept_rank > 0, has_reduced = layout.rank > layout.kept_rank;
    const std::int64_t kept_step = has_kept ? std::abs(layout.strides[layout.kept_rank - 1]) : 0;
    const std::int64_t reduced_step = has_reduced ? std::abs(layout.strides[layout.rank - 1]) : 0;
    layout.walk = walk;
    layout.along_lanes =
        walk == ReduceWalk::rows ||
        (walk == ReduceWalk::elements && (!has_kept || (has_reduced && reduced_step <= kept_step)));
    const std::int64_t per_item = walk == ReduceWalk::rows ? vector : 1;
    const std::int64_t items = ceil_div(layout.count, per_item);  // of an output
    const std::int64_t groups = walk == ReduceWalk::columns ? layout.outputs / vector : layout.outputs;
    if (layout.along_lanes) {
        // A lane has several items, unless the lanes of all outputs do not fill the device.
        constexpr std::int64_t kItems = 8, kLeastLanes = 4;
        layout.lanes =
            power_of_two(std::max(ceil_div(items, kItems), std::min(items, kLeastLanes)), kReduceThreads);
        while (layout.lanes < std::min<std::int64_t>(items, kReduceThreads) &&
               groups * layout.lanes < std::int64_t{1024} * multiprocessors) {
            layout.lanes *= 2;
        }
    } else {
        const std::int64_t inner = layout.extents[layout.kept_rank - 1];
        const int neighbours = power_of_two(walk == ReduceWalk::columns ? inner / vector : inner, 32);
        layout.lanes = power_of_two(layout.count, kReduceThreads / neighbours);
    }

    layout.parts = 1;
    layout.part_count = layout.count;
    if (!may_split) return;
    constexpr std::int64_t kLeastBlocks = 16, kLeastItems = 16, kMostParts = 1024;
    const std::int64_t blocks_a_multiprocessor = walk == ReduceWalk::columns ? 16 : 4;
    const std::int64_t blocks = ceil_div(groups, kReduceThreads / layout.lanes);
    const std::int64_t wanted =
        std::max<std::int64_t>(multiprocessors * blocks_a_multiprocessor, kLeastBlocks);
    const std::int64_t parts =
        std::max(std::min({wanted / blocks, items / (layout.lanes * kLeastItems), kMostParts}),
                 ceil_div(layout.count, kReducePartMost));
    if (parts < 2) return;
    layout.part_count = ceil_div(ceil_div(layout.count, parts), 16) * 16;  // whole vectors of every type
    layout.parts = ceil_div(layout.count, layout.part_count);
}

// The second pass over the parts * outputs values that a first one left.
ReduceLayout over_parts(const ReduceLayout& first) {
    ReduceLayout layout = {};
    layout.outputs = first.outputs, layout.count = first.parts;
    add_dimension(layout, 0, {first.outputs, 1});
    layout.kept_rank = layout.rank;
    add_dimension(layout, layout.kept_rank, {first.parts, first.outputs});
    return layout;
}

std::int64_t vector_elements(DType dtype) { return 16 / static_cast<std::int64_t>(itemsize(dtype)); }

LaunchConfig config_of(const ReduceLayout& layout, std::int64_t vector) {
    const std::int64_t outputs =
        layout.walk == ReduceWalk::columns ? layout.outputs / vector : layout.outputs;
    return {.grid = {static_cast<std::uint32_t>(ceil_div(outputs, kReduceThreads / layout.lanes)),
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
    const DType accumulator = reduce_accumulator(op, x.dtype());
    const DType dtype = result_dtype(op, x.dtype());
    ReduceLayout layout = dimensions_of(x, reduced, true);
    if (layout.count == 0 && layout.outputs > 0 && (op == ReduceOp::max || op == ReduceOp::min)) {
        nothing_to_compare(call, x);
    }
    Device& device = x.device();
    const Array result = Array::empty(device, result_shape(x, reduced, keepdims), dtype);
    if (layout.outputs == 0) return result;

    const Stream& stream = *current_stream(device);
    const std::int64_t vector = vector_elements(x.dtype());
    share(layout, walk_of(layout, x.data(), vector), vector, stream, true);
    const Kernel& kernel = reduce_kernel(op, x.dtype(), layout.walk);
    const double divisor = op == ReduceOp::mean ? static_cast<double>(layout.count) : 1;
    ReduceParams params = {.input = x.as<const void>(),
                           .output = result.as<void>(),
                           .layout = layout,
                           .divisor = divisor,
                           .store = store_of(dtype, accumulator)};
    if (layout.parts == 1) {
        launch(kernel, config_of(layout, vector), params, cost_of(layout, x.dtype(), dtype), {&x}, {&result});
        return result;
    }
    const Array partial = Array::empty(device, {layout.parts, layout.outputs}, accumulator);
    params.output = partial.as<void>();
    params.divisor = 1;
    params.store = ReduceStore::accumulator;
    launch(kernel, config_of(layout, vector), params, cost_of(layout, x.dtype(), accumulator), {&x},
           {&partial});

    ReduceLayout second = over_parts(layout);
    const std::int64_t partial_vector = vector_elements(accumulator);
    share(second, walk_of(second, partial.data(), partial_vector), partial_vector, stream, false);
    const ReduceParams last = {.input = partial.as<const void>(),
                               .output = result.as<void>(),
                               .layout = second,
                               .divisor = divisor,
                               .store = store_of(dtype, accumulator)};
    launch(reduce_kernel(op, accumulator, second.walk), config_of(second, partial_vector), last,
           cost_of(second, accumulator, dtype), {&partial}, {&result});
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
    ReduceLayout layout = dimensions_of(x, reduced, false);
    if (layout.count == 0) nothing_to_compare(call, x);
    Device& device = x.device();
    const Array result = Array::empty(device, result_shape(x, reduced, keepdims), DType::int64);
    if (layout.outputs == 0) return result;

    const std::int64_t vector = vector_elements(x.dtype());
    ReduceWalk walk = walk_of(layout, x.data(), vector);
    // Its rows have one reduced dimension, and its order is that of the elements.
    if (walk == ReduceWalk::rows && layout.rank != layout.kept_rank + 1) walk = ReduceWalk::elements;
    share(layout, walk, vector, *current_stream(device), true);
    const Kernel& kernel = arg_reduce_kernel(op, x.dtype(), walk);
    ArgReduceParams params = {.input = x.as<const void>(),
                              .output = result.as<std::int64_t>(),
                              .candidates = nullptr,
                              .layout = layout};
    if (layout.parts == 1) {
        launch(kernel, config_of(layout, vector), params, cost_of(layout, x.dtype(), DType::int64), {&x},
               {&result});
        return result;
    }
    const Array partial = Array::empty(device, {layout.parts, layout.outputs}, DType::int64);
    params.output = partial.as<std::int64_t>();
    launch(kernel, config_of(layout, vector), params, cost_of(layout, x.dtype(), DType::int64), {&x},
           {&partial});

    ReduceLayout second = layout;  // the same dimensions; only the candidates are looked at
    second.count = second.part_count = layout.parts;
    second.parts = 1;
    second.walk = ReduceWalk::elements;
    second.along_lanes = layout.outputs == 1;  // else neighbouring outputs have neighbouring candidates
    second.lanes = power_of_two(second.count, layout.outputs == 1 ? kReduceThreads : kReduceThreads / 32);
    const ArgReduceParams last = {.input = x.as<const void>(),
                                  .output = result.as<std::int64_t>(),
                                  .candidates = partial.as<const std::int64_t>(),
                                  .layout = second};
    launch(arg_reduce_kernel(op, x.dtype(), second.walk), config_of(second, vector), last,
           cost_of(second, DType::int64, DType::int64), {&x, &partial}, {&result});
    return result;
}

}  // namespace gpk::ops
