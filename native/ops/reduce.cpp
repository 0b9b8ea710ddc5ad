#include "ops/reduce.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "ops/launch.hpp"
#include "ops/reduce_layout.hpp"
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

// What elements are compared in: compute_t.
DType compared_dtype(DType dtype) {
    return dtype == DType::float16 || dtype == DType::bfloat16 ? DType::float32 : dtype;
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
    const ReducedAxes reduced = reduced_axes(call, axes, x.rank());
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
    ReducedAxes reduced = {};
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
                              .values = nullptr,
                              .candidates = nullptr,
                              .layout = layout};
    if (layout.parts == 1) {
        launch(kernel, config_of(layout, vector), params, cost_of(layout, x.dtype(), DType::int64), {&x},
               {&result});
        return result;
    }
    const Array indices = Array::empty(device, {layout.parts, layout.outputs}, DType::int64);
    const Array values = Array::empty(device, indices.shape(), compared_dtype(x.dtype()));
    params.output = indices.as<std::int64_t>();
    params.values = values.as<void>();
    launch(kernel, config_of(layout, vector), params, cost_of(layout, x.dtype(), DType::int64), {&x},
           {&indices, &values});

    ReduceLayout second = over_parts(layout);
    share(second, ReduceWalk::elements, 1, *current_stream(device), false);
    const ArgReduceParams last = {.input = values.as<const void>(),
                                  .output = result.as<std::int64_t>(),
                                  .values = nullptr,
                                  .candidates = indices.as<const std::int64_t>(),
                                  .layout = second};
    launch(arg_reduce_kernel(op, values.dtype(), second.walk), config_of(second, 1), last,
           cost_of(second, DType::int64, DType::int64), {&indices, &values}, {&result});
    return result;
}

}  // namespace gpk::ops
