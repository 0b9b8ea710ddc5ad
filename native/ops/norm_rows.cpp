#include "ops/norm_rows.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "ops/elementwise.hpp"
#include "ops/launch.hpp"
#include "ops/model_checks.hpp"

namespace gpk::ops {

kernels::RowShape row_shape(const Array& x, std::initializer_list<const Array*> with) {
    const std::int64_t n = x.shape().back();
    const bool whole = n * static_cast<std::int64_t>(itemsize(x.dtype())) % 16 == 0;
    return {.dtype = x.dtype(),
            .rows = x.size() / n,
            .n = n,
            .aligned = whole && aligned16(x) &&
                       std::all_of(with.begin(), with.end(),
                                   [](const Array* each) {
                                       return each == nullptr || !each->defined() || aligned16(*each);
                                   }),
            .multiprocessors = current_stream(x.device())->multiprocessors(),
            .clusters = x.device().info().sm >= 90};
}

namespace {

void check(const NormCall& c) {
    require_model_float(c.call, "x", c.x.dtype());
    if (c.x.rank() == 0) {
        throw error(ErrorKind::value,
                    {.call = c.call, .argument = "x", .expected = "at least one dimension", .got = "()"});
    }
    const Dims last = {c.x.shape().back()};
    for (const auto& [name, array] : {std::pair{"weight", &c.weight}, {"bias", &c.bias}}) {
        if (!array->defined()) continue;
        require_array(c.call, name, *array, last, c.x.dtype());
        common_device(c.call, {&c.x, array});
    }
    if (!(c.eps >= 0)) {
        throw error(ErrorKind::value,
                    {.call = c.call, .argument = "eps", .expected = "a number >= 0", .got = str(c.eps)});
    }
    for (const auto& [name, array] : {std::pair{"residual", c.residual}, {"sum", c.sum}}) {
        if (array == nullptr) continue;
        require_array(c.call, name, *array, c.x.shape(), c.x.dtype());
        common_device(c.call, {&c.x, array});
    }
    if (c.residual == nullptr) return;
    const Array& written = c.sum != nullptr ? *c.sum : *c.residual;
    const char* name = c.sum != nullptr ? "sum" : "residual";
    require_contiguous(c.call, name, written);
    require_writable(c.call, name, written);
}

void require_apart(const char* call, const char* argument, const Array& array,
                   std::initializer_list<const Array*> others) {
    for (const Array* other : others) {
        if (!overlaps(array, *other)) continue;
        throw error(ErrorKind::value, {.call = call,
                                       .argument = argument,
                                       .expected = "an array apart from x and out",
                                       .got = "one that overlaps them"});
    }
}

Array contiguous_or_none(const Array& array) { return array.defined() ? contiguous(array) : array; }

}  // namespace

Array normalize(const NormCall& c) {
    check(c);
    const Array x = contiguous(c.x), weight = contiguous_or_none(c.weight), bias = contiguous_or_none(c.bias);
    const Array residual = c.residual != nullptr ? contiguous(*c.residual) : Array();
    const Array sum = c.residual == nullptr ? Array() : c.sum != nullptr ? *c.sum : *c.residual;
    const Array y = prepare_output(c.call, x.device(), x.shape(), x.dtype(), c.out);
    require_contiguous(c.call, "out", y);
    require_no_overlap(c.call, y, {&x});
    for (const Array* each : {&weight, &bias}) {
        if (each->defined()) require_no_overlap(c.call, y, {each});
    }
    if (residual.defined()) {
        require_apart(c.call, "residual", residual, {&x, &y});
        if (c.sum != nullptr) require_apart(c.call, "sum", sum, {&x, &y});
        require_no_overlap(c.call, sum, {&residual});
    }
    if (x.size() == 0) return y;

    const auto pointer = [](const Array& array) { return array.defined() ? array.as<>() : nullptr; };
    const kernels::RowShape shape = row_shape(x, {&y, &weight, &bias, &residual, &sum});
    const kernels::NormParams params{.x = x.as<>(),
                                     .residual = pointer(residual),
                                     .sum = pointer(sum),
                                     .weight = pointer(weight),
                                     .bias = pointer(bias),
                                     .y = y.as<>(),
                                     .rows = shape.rows,
                                     .n = shape.n,
                                     .share = static_cast<float>(1.0 / static_cast<double>(shape.n)),
                                     .eps = static_cast<float>(c.eps)};
    const double elements = static_cast<double>(x.size());
    const Cost cost{.flops = 4 * elements,
                    .bytes = static_cast<double>(x.nbytes()) * (residual.defined() ? 4 : 2)};
    const kernels::RowPlan plan = c.plan(shape, residual.defined());
    const Array &w = weight.defined() ? weight : x, &b = bias.defined() ? bias : x;
    if (residual.defined()) {
        launch(*plan.kernel, plan.config, params, cost, {&x, &w, &b, &residual}, {&sum, &y});
    } else {
        launch(*plan.kernel, plan.config, params, cost, {&x, &w, &b}, {&y});
    }
    return y;
}

}  // namespace gpk::ops
