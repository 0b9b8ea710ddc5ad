// Creation, selection, manipulation and reductions.
#include "bindings/common.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <cmath>

#include "ops/creation.hpp"
#include "ops/elementwise.hpp"
#include "ops/manipulation.hpp"
#include "ops/reduce.hpp"

namespace gpk::python {

namespace {

constexpr DType kDefault = DType::float32;

const Number read_required_number(const char* call, const char* argument, nb::handle value) {
    if (auto number = read_number(value)) return *number;
    throw error(ErrorKind::type, {.call = call,
                                  .argument = argument,
                                  .expected = "a number",
                                  .got = nb::cast<std::string>(nb::str(value.type().attr("__name__")))});
}

DType dtype_of(const Number& number) {
    if (number.dtype) return *number.dtype;
    switch (number.value.kind()) {
        case ScalarKind::boolean: return DType::bool_;
        case ScalarKind::integer: return number.value.is_unsigned() ? DType::uint64 : DType::int64;
        case ScalarKind::floating: break;
    }
    return kDefault;
}

// How many numbers there are from start to stop by step.
std::optional<std::int64_t> count_of(double start, double stop, double step) {
    const double count = std::ceil((stop - start) / step);
    if (!(step != 0) || !(count < 9e18)) return std::nullopt;
    return static_cast<std::int64_t>(std::max(count, 0.0));
}

// The same of integers, exactly, as Python's range counts them, with the first and the last of them.
struct IntegerRange {
    std::int64_t count = 0;
    std::optional<Number> first, last;  // of a range that has any

    bool fits(DType dtype) const { return !first || (first->value.fits(dtype) && last->value.fits(dtype)); }
};

std::optional<IntegerRange> integer_range(const nb::tuple& start_stop_step) {
    const nb::object range =
        nb::steal(PyObject_Call(reinterpret_cast<PyObject*>(&PyRange_Type), start_stop_step.ptr(), nullptr));
    const Py_ssize_t count = range.is_valid() ? PyObject_Size(range.ptr()) : -1;
    if (count < 0) {
        PyErr_Clear();
        return std::nullopt;
    }
    if (count == 0) return IntegerRange{};
    return IntegerRange{count, read_number(range[0]), read_number(range[count - 1])};
}

void bind_creation(nb::module_& m) {
    m.def(
        "empty",
        [](IntsArg shape, DTypeArg dtype, DeviceArg device) {
            return Array::empty(read_device(device), read_dims("empty", "shape", shape),
                                read_dtype_or(dtype, kDefault));
        },
        nb::arg("shape"), nb::arg("dtype").none() = nb::none(), nb::arg("device").none() = nb::none(),
        "An array whose elements are not set. dtype defaults to float32.\n\n"
        "Raises InvalidValueError for a negative extent and OutOfMemoryError where the device has no room.");
    auto filled = [&m](const char* name, int value, const char* doc) {
        m.def(
            name,
            [name, value](IntsArg shape, DTypeArg dtype, DeviceArg device) {
                Device& d = read_device(device);
                const Dims dims = read_dims(name, "shape", shape);
                const DType type = read_dtype_or(dtype, kDefault);
                return run_on(d, [&] { return ops::full(d, dims, value, type); });
            },
            nb::arg("shape"), nb::arg("dtype").none() = nb::none(), nb::arg("device").none() = nb::none(),
            doc);
    };
    filled("zeros", 0, "An array of zeros. dtype defaults to float32.");
    filled("ones", 1, "An array of ones. dtype defaults to float32.");
    m.def(
        "full",
        [](IntsArg shape, NumberArg value, DTypeArg dtype, DeviceArg device) {
            Device& d = read_device(device);
            const Number number = read_required_number("full", "fill_value", value);
            const Dims dims = read_dims("full", "shape", shape);
            const DType type = read_dtype_or(dtype, dtype_of(number));
            return run_on(d, [&] { return ops::full(d, dims, number.value, type); });
        },
        nb::arg("shape"), nb::arg("fill_value"), nb::arg("dtype").none() = nb::none(),
        nb::arg("device").none() = nb::none(),
        "An array of one value. dtype defaults to bool, int64 or float32 by the value's kind.");
    auto like = [&m](const char* name, std::optional<int> value, const char* doc) {
        m.def(
            name,
            [value](const Array& x, DTypeArg dtype, DeviceArg device) {
                Device& d = device.is_none() ? x.device() : read_device(device);
                const DType type = read_dtype_or(dtype, x.dtype());
                if (!value) return Array::empty(d, x.shape(), type);
                return run_on(d, [&] { return ops::full(d, x.shape(), *value, type); });
            },
            nb::arg("x"), nb::arg("dtype").none() = nb::none(), nb::arg("device").none() = nb::none(), doc);
    };
    like("empty_like", std::nullopt, "An array of x's shape, dtype and device whose elements are not set.");
    like("zeros_like", 0, "Zeros of x's shape, dtype and device.");
    like("ones_like", 1, "Ones of x's shape, dtype and device.");
    m.def(
        "full_like",
        [](const Array& x, NumberArg value, DTypeArg dtype, DeviceArg device) {
            Device& d = device.is_none() ? x.device() : read_device(device);
            const Number number = read_required_number("full_like", "fill_value", value);
            const DType type = read_dtype_or(dtype, x.dtype());
            return run_on(d, [&] { return ops::full(d, x.shape(), number.value, type); });
        },
        nb::arg("x"), nb::arg("fill_value"), nb::arg("dtype").none() = nb::none(),
        nb::arg("device").none() = nb::none(), "One value in x's shape, dtype and device.");
    m.def(
        "arange",
        [](NumberArg start, NumberArg stop, NumberArg step, DTypeArg dtype, DeviceArg device) {
            Device& d = read_device(device);
            const Number first =
                stop.is_none() ? Number{Scalar(0), {}} : read_required_number("arange", "start", start);
            const Number last = read_required_number("arange", "stop", stop.is_none() ? start : stop);
            const Number by = read_required_number("arange", "step", step);
            const bool floating = first.value.kind() == ScalarKind::floating ||
                                  last.value.kind() == ScalarKind::floating ||
                                  by.value.kind() == ScalarKind::floating;
            const nb::tuple all = nb::make_tuple(stop.is_none() ? nb::int_(0) : nb::borrow(start),
                                                 nb::borrow(stop.is_none() ? start : stop), nb::borrow(step));
            std::optional<IntegerRange> integers;
            std::optional<std::int64_t> size;
            if (floating) {
                size = count_of(first.value.as_double(), last.value.as_double(), by.value.as_double());
            } else if ((integers = integer_range(all))) {
                size = integers->count;
            }
            if (!size) {
                throw error(ErrorKind::value, {.call = "arange",
                                               .expected = "finite numbers and a step other than 0",
                                               .got = nb::cast<std::string>(nb::str(all))});
            }
            const DType whole = floating || integers->fits(DType::int64) ? DType::int64 : DType::uint64;
            const DType type = read_dtype_or(dtype, floating ? kDefault : whole);
            if (!floating && !integers->fits(type)) {
                throw error(ErrorKind::value, {.call = "arange",
                                               .expected = str("integers in the range of ", name(type)),
                                               .got = nb::cast<std::string>(nb::str(all)),
                                               .fix = "choose a wider dtype"});
            }
            return run_on(d, [&] {
                return floating
                           ? ops::arange(d, first.value.as_double(), by.value.as_double(), *size, type)
                           : ops::arange_integer(d, first.value.as_int64(), by.value.as_int64(), *size, type);
            });
        },
        nb::arg("start"), nb::arg("stop").none() = nb::none(), nb::arg("step") = 1,
        nb::arg("dtype").none() = nb::none(), nb::arg("device").none() = nb::none(),
        "start, start + step, ... below stop; arange(n) counts from 0. dtype defaults to int64, or float32 "
        "where an\n"
        "argument is a float.");
    m.def(
        "linspace",
        [](double start, double stop, std::int64_t num, bool endpoint, DTypeArg dtype, DeviceArg device) {
            if (num < 0) {
                throw error(
                    ErrorKind::value,
                    {.call = "linspace", .argument = "num", .expected = "0 or more", .got = str(num)});
            }
            Device& d = read_device(device);
            const DType type = read_dtype_or(dtype, kDefault);
            return run_on(d, [&] { return ops::linspace(d, start, stop, num, endpoint, type); });
        },
        nb::arg("start"), nb::arg("stop"), nb::arg("num") = 50, nb::arg("endpoint") = true,
        nb::arg("dtype").none() = nb::none(), nb::arg("device").none() = nb::none(),
        "num evenly spaced numbers from start to stop. dtype defaults to float32.");
    m.def(
        "eye",
        [](std::int64_t n, std::optional<std::int64_t> columns, std::int64_t k, DTypeArg dtype,
           DeviceArg device) {
            Device& d = read_device(device);
            const DType type = read_dtype_or(dtype, kDefault);
            return run_on(d, [&] { return ops::eye(d, n, columns.value_or(n), k, type); });
        },
        nb::arg("n"), nb::arg("m").none() = nb::none(), nb::arg("k") = 0,
        nb::arg("dtype").none() = nb::none(), nb::arg("device").none() = nb::none(),
        "An n x m array with ones on the k-th diagonal. dtype defaults to float32.");
}

void bind_selection(nb::module_& m) {
    m.def(
        "where",
        [](const Array& condition, OperandArg x, OperandArg y) {
            const Array* a = try_array(x);
            const Array* b = try_array(y);
            if (a != nullptr && b != nullptr)
                return run_on(condition.device(), [&] { return ops::where(condition, *a, *b); });
            if (a != nullptr) {
                const Number n = read_required_number("where", "y", y);
                return run_on(condition.device(),
                              [&] { return ops::where(condition, promoted_for(*a, n), n.value); });
            }
            const Number n = read_required_number("where", "x", x);
            if (b != nullptr)
                return run_on(condition.device(),
                              [&] { return ops::where(condition, n.value, promoted_for(*b, n)); });
            const Number other = read_required_number("where", "y", y);
            const DType type = promote(dtype_of(n), dtype_of(other));
            Device& d = condition.device();
            return run_on(d, [&] {
                return ops::where(condition, ops::full(d, {}, n.value, type),
                                  ops::full(d, {}, other.value, type));
            });
        },
        nb::arg("condition"), nb::arg("x"), nb::arg("y"),
        "x where the bool array `condition` is true, else y. The three broadcast together.");
    m.def(
        "clip",
        [](const Array& x, NumberArg low, NumberArg high, ArrayArg out) {
            std::optional<Scalar> lo, hi;
            if (!low.is_none()) lo = read_required_number("clip", "min", low).value;
            if (!high.is_none()) hi = read_required_number("clip", "max", high).value;
            const Array* target = read_out("clip", out);
            return run_on(x.device(), [&] { return ops::clip(x, lo, hi, target); });
        },
        nb::arg("x"), nb::arg("min").none() = nb::none(), nb::arg("max").none() = nb::none(), nb::kw_only(),
        nb::arg("out").none() = nb::none(), "x limited to [min, max]; None for no limit. NaN stays.");
    m.def(
        "take",
        [](const Array& x, const Array& indices, std::optional<int> axis) {
            return run_on(x.device(), [&] {
                return axis ? ops::take(x, indices, *axis) : ops::take(ops::reshape(x, {-1}), indices, 0);
            });
        },
        nb::arg("x"), nb::arg("indices"), nb::arg("axis").none() = nb::none(),
        "The elements of x at integer `indices` along an axis (None: of the flattened x). Negative indices "
        "count from\n"
        "the end; one out of range gives 0, since raising would have to wait for the device.");
}

std::vector<Array> read_arrays(const char* call, ArraysArg arrays) {
    std::vector<Array> out;
    for (nb::handle each : nb::borrow<nb::iterable>(arrays)) out.push_back(read_array(call, "arrays", each));
    return out;
}

void bind_manipulation(nb::module_& m) {
    m.def(
        "concat",
        [](ArraysArg arrays, std::optional<int> axis) {
            std::vector<Array> items = read_arrays("concat", arrays);
            if (items.empty())
                throw error(
                    ErrorKind::value,
                    {.call = "concat", .argument = "arrays", .expected = "at least one", .got = "none"});
            return run_on(items[0].device(), [&] {
                if (!axis) {
                    for (Array& each : items) each = ops::reshape(each, {-1});
                }
                return ops::concat(items, axis.value_or(0));
            });
        },
        nb::arg("arrays"), nb::arg("axis").none() = 0,
        "The arrays one after another along an axis; None flattens them first.");
    m.def(
        "stack",
        [](ArraysArg arrays, int axis) {
            const std::vector<Array> items = read_arrays("stack", arrays);
            if (items.empty())
                throw error(
                    ErrorKind::value,
                    {.call = "stack", .argument = "arrays", .expected = "at least one", .got = "none"});
            return run_on(items[0].device(), [&] { return ops::stack(items, axis); });
        },
        nb::arg("arrays"), nb::arg("axis") = 0,
        "The arrays, all of one shape, side by side along a new axis.");
    m.def(
        "reshape",
        [](const Array& x, IntsArg shape) {
            const Dims dims = read_dims("reshape", "shape", shape);
            return run_on(x.device(), [&] { return ops::reshape(x, dims); });
        },
        nb::arg("x"), nb::arg("shape"), "The elements in another shape; one extent may be -1.");
    m.def(
        "transpose",
        [](const Array& x, IntsArg axes) {
            return x.transpose(axes.is_none() ? Dims{} : read_dims("transpose", "axes", axes));
        },
        nb::arg("x"), nb::arg("axes").none() = nb::none(),
        "The view with its axes in the given order, reversed for None.");
    m.def(
        "broadcast_to",
        [](const Array& x, IntsArg shape) {
            return x.broadcast_to(read_dims("broadcast_to", "shape", shape)).readonly();
        },
        nb::arg("x"), nb::arg("shape"), "A read-only view of x repeated to `shape`.");
    m.def(
        "expand_dims", [](const Array& x, int axis) { return x.expand_dims(axis); }, nb::arg("x"),
        nb::arg("axis"), "The view with a new axis of extent 1.");
}

struct ReduceRow {
    const char* name;
    ReduceOp op;
    const char* doc;
};
constexpr ReduceRow kReductions[] = {
    {"sum", ReduceOp::sum, "The sum; integers and bools add in 64 bits."},
    {"mean", ReduceOp::mean, "The mean; float64 of integers and bools, NaN of nothing."},
    {"max", ReduceOp::max,
     "The largest element; NaN where there is one. Raises InvalidValueError for nothing."},
    {"min", ReduceOp::min,
     "The smallest element; NaN where there is one. Raises InvalidValueError for nothing."},
    {"prod", ReduceOp::prod, "The product; integers and bools multiply in 64 bits."},
    {"any", ReduceOp::any, "Whether an element is not 0, as bool."},
    {"all", ReduceOp::all, "Whether no element is 0, as bool."},
};

struct ArgReduceRow {
    const char* name;
    ArgReduceOp op;
    const char* doc;
};
constexpr ArgReduceRow kArgReductions[] = {
    {"argmax", ArgReduceOp::argmax, "The int64 index of the first largest element, or of the first NaN."},
    {"argmin", ArgReduceOp::argmin, "The int64 index of the first smallest element, or of the first NaN."},
};

void bind_variance(nb::module_& m) {
    nb::object array_class = m.attr("Array");
    for (const bool root : {false, true}) {
        const char* name = root ? "std" : "var";
        const auto function = [name, root](const Array& x, IntsArg axis, double correction, bool keepdims) {
            const Dims axes = read_axes(name, axis, x.rank());
            return run_on(x.device(), [&] {
                if (!axis.is_none() && axes.empty()) {  // as of the others: every element is its own group
                    return ops::variance(x.expand_dims(x.rank()), {x.rank()}, correction, false, root);
                }
                return ops::variance(x, axes, correction, keepdims, root);
            });
        };
        const std::string doc = str(
            root ? "The standard deviation: the root of the variance." : "The variance.",
            "\n\nThe squares of the differences from the mean, added up and divided by the count less "
            "`correction`\n"
            "(1: an unbiased estimate from a sample; NumPy's ddof). float64 of integers and bools; float16 "
            "and\n"
            "bfloat16 compute in float32. One pass, by Chan, Golub and LeVeque's updates (1979), so a mean "
            "much\n"
            "larger than the spread costs few digits. NaN of nothing.\n\n"
            "axis: an axis, a tuple of them, or None for all; keepdims leaves them with extent 1. Raises\n"
            "InvalidTypeError for float8.");
        m.def(name, function, nb::arg("x"), nb::arg("axis").none() = nb::none(), nb::kw_only(),
              nb::arg("correction") = 0.0, nb::arg("keepdims") = false, doc.c_str());
        array_class.attr(name) =
            nb::cpp_function(function, nb::is_method(), nb::scope(array_class), nb::name(name),
                             nb::arg("axis").none() = nb::none(), nb::kw_only(), nb::arg("correction") = 0.0,
                             nb::arg("keepdims") = false, doc.c_str());
    }
}

void bind_reductions(nb::module_& m) {
    nb::object array_class = m.attr("Array");
    // As a function and as a method.
    auto both = [&](const char* name, auto function, const std::string& doc) {
        m.def(name, function, nb::arg("x"), nb::arg("axis").none() = nb::none(), nb::kw_only(),
              nb::arg("keepdims") = false, doc.c_str());
        array_class.attr(name) = nb::cpp_function(function, nb::is_method(), nb::scope(array_class),
                                                  nb::name(name), nb::arg("axis").none() = nb::none(),
                                                  nb::kw_only(), nb::arg("keepdims") = false, doc.c_str());
    };
    for (const ReduceRow& row : kReductions) {
        both(
            row.name,
            [row](const Array& x, IntsArg axis, bool keepdims) {
                const Dims axes = read_axes(row.name, axis, x.rank());
                // An empty tuple reduces nothing in NumPy: every element is its own group.
                if (!axis.is_none() && axes.empty()) {
                    return run_on(x.device(), [&] {
                        return ops::reduce(row.op, x.expand_dims(x.rank()), {x.rank()}, false);
                    });
                }
                return run_on(x.device(), [&] { return ops::reduce(row.op, x, axes, keepdims); });
            },
            str(row.doc,
                "\n\naxis: an axis, a tuple of them, or None for all; keepdims leaves them with extent 1."));
    }
    bind_variance(m);
    for (const ArgReduceRow& row : kArgReductions) {
        both(
            row.name,
            [row](const Array& x, IntsArg axis, bool keepdims) {
                const Dims axes = read_axes(row.name, axis, x.rank());
                if (axes.size() > 1 || (!axis.is_none() && axes.empty())) {
                    throw error(ErrorKind::type, {.call = row.name,
                                                  .argument = "axis",
                                                  .expected = "an integer or None",
                                                  .got = to_string(axes)});
                }
                return run_on(x.device(), [&] {
                    return ops::arg_reduce(
                        row.op, x, axis.is_none() ? ops::kAllAxes : static_cast<int>(axes[0]), keepdims);
                });
            },
            str(row.doc,
                "\n\naxis: one axis, or None for the flattened array. Raises InvalidValueError for "
                "nothing."));
    }
}

}  // namespace

void bind_functions(nb::module_& m) {
    bind_creation(m);
    bind_selection(m);
    bind_manipulation(m);
    bind_reductions(m);
}

}  // namespace gpk::python
