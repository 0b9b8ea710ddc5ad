// gp.Array: properties, views, conversion, assignment.
#include "bindings/common.hpp"

#include <nanobind/ndarray.h>

#include <algorithm>
#include <bit>

#include "array/array_transfer.hpp"
#include "ops/elementwise.hpp"
#include "ops/manipulation.hpp"
#include "ops/reduce.hpp"

namespace gpk::python {

namespace {

nb::tuple to_tuple(const Dims& dims) {
    nb::list items;
    for (std::int64_t value : dims) items.append(value);
    return nb::tuple(items);
}

// a[key] for ints, slices, None and an ellipsis: always a view.
Array basic_index(const Array& array, KeyArg key) {
    const nb::tuple items = nb::isinstance<nb::tuple>(key) ? nb::borrow<nb::tuple>(key) : nb::make_tuple(key);
    int consumed = 0, ellipses = 0;
    for (nb::handle item : items) {
        if (item.ptr() == Py_Ellipsis) {
            ++ellipses;
        } else if (!item.is_none()) {
            ++consumed;
        }
    }
    if (ellipses > 1 || consumed > array.rank()) {
        throw error(ErrorKind::index, {.call = "index",
                                       .expected = str("at most ", array.rank(), " indices and one ellipsis"),
                                       .got = nb::cast<std::string>(nb::repr(key))});
    }
    Array view = array;
    int axis = 0;
    for (nb::handle item : items) {
        if (item.ptr() == Py_Ellipsis) {
            axis += array.rank() - consumed;
        } else if (item.is_none()) {
            view = view.expand_dims(axis++);
        } else if (nb::isinstance<nb::slice>(item)) {
            Py_ssize_t start = 0, stop = 0, step = 0;
            if (PySlice_Unpack(item.ptr(), &start, &stop, &step) < 0) throw nb::python_error();
            const Py_ssize_t count = PySlice_AdjustIndices(view.shape()[axis], &start, &stop, step);
            view = view.slice(axis, start, step, count);
            ++axis;
        } else if (PyIndex_Check(item.ptr()) && !PyBool_Check(item.ptr()) && !is_array(item)) {
            const Dims index = read_dims("index", "key", item);
            view = view.select(axis, index[0]);
        } else {
            throw error(ErrorKind::type,
                        {.call = "index",
                         .expected = "integers, slices, None or an ellipsis",
                         .got = nb::cast<std::string>(nb::str(item.type().attr("__name__"))),
                         .fix = "use gp.take for indices in an array and gp.where for a mask"});
        }
    }
    return view;
}

void assign_index(const Array& array, KeyArg key, OperandArg value) {
    const Array target = basic_index(array, key);
    if (const Array* source = try_array(value)) {
        run_on(array.device(), [&] { ops::assign(target, *source); });
    } else if (const auto number = read_number(value)) {
        run_on(array.device(), [&] { ops::assign(target, number->value); });
    } else {
        read_array("assignment", "value", value);  // throws
    }
}

// A 0-d or one-element array as a Python number. Waits for the device.
nb::object number_of(const Array& array, const char* call, const char* instead) {
    if (array.size() != 1) {
        throw error(ErrorKind::value, {.call = call,
                                       .expected = "an array of one element",
                                       .got = str("shape ", to_string(array.shape())),
                                       .fix = instead});
    }
    const DTypeKind kind = info(array.dtype()).kind;
    const DType wide = kind == DTypeKind::floating           ? DType::float64
                       : kind == DTypeKind::unsigned_integer ? DType::uint64
                       : kind == DTypeKind::boolean          ? DType::bool_
                                                             : DType::int64;
    std::uint64_t bits = 0;
    run_on(array.device(), [&] {
        const Array one = ops::contiguous(array.dtype() == wide ? array : ops::astype(array, wide));
        one.copy_to_host(&bits);
    });
    switch (kind) {
        case DTypeKind::floating: return nb::float_(std::bit_cast<double>(bits));
        case DTypeKind::unsigned_integer: return nb::int_(bits);
        case DTypeKind::signed_integer: return nb::int_(static_cast<std::int64_t>(bits));
        case DTypeKind::boolean: break;
    }
    return nb::bool_((bits & 0xff) != 0);
}
nb::object item(const Array& array) { return number_of(array, "item", "index it first, or use to_numpy"); }

using Bytes = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using ReadOnlyBytes = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

Array from_bytes(const ReadOnlyBytes& bytes, IntsArg shape, DTypeArg dtype, DeviceArg device) {
    Device& target = read_device(device);
    const Dims dims = read_dims("from_numpy", "shape", shape);
    const Array array = Array::empty(target, dims, read_dtype(dtype));
    if (bytes.size() != array.nbytes()) {
        throw error(
            ErrorKind::value,
            {.call = "from_numpy", .expected = str(array.nbytes(), " bytes"), .got = str(bytes.size())});
    }
    if (array.nbytes() >= kTransferBytes) {
        const Unlocked unlocked;  // other threads of ours do the copying
        array.copy_from_host(bytes.data());
    } else {
        run_on(target, [&] { array.copy_from_host(bytes.data()); });
    }
    return array;
}

void to_bytes(const Array& array, const Bytes& bytes) {
    if (bytes.size() != array.nbytes()) {
        throw error(
            ErrorKind::value,
            {.call = "to_numpy", .expected = str(array.nbytes(), " bytes"), .got = str(bytes.size())});
    }
    const Unlocked unlocked;  // waits for the device
    ops::contiguous(array).copy_to_host(bytes.data());
}

Array to_device(const Array& array, DeviceArg device) {
    Device& target = read_device(device);
    if (&target == &array.device()) return array;
    const Unlocked unlocked;
    const Array source = ops::contiguous(array);
    const std::unique_ptr<std::byte[]> staging(new std::byte[source.nbytes()]);
    source.copy_to_host(staging.get());
    const Array copy = Array::empty(target, array.shape(), array.dtype());
    copy.copy_from_host(staging.get());
    return copy;
}

// A method whose NumPy side is written in Python.
nb::object call_helper(const char* function, nb::handle self) {
    return nb::module_::import_("pygpukit._numpy").attr(function)(self);
}

Dims dims_of_arguments(const char* call, const nb::args& args) {
    if (args.size() == 1) return read_dims(call, "shape", args[0]);
    return read_dims(call, "shape", args);
}

// gp.bool_, since bool is Python's.
std::string attribute_name(DType dtype) {
    return std::string(name(dtype)) + (dtype == DType::bool_ ? "_" : "");
}

void bind_dtype(nb::module_& m) {
    nb::class_<PyDType>(m, "DType",
                        "The type of an array's elements: gp.float32 and so on. Equal to its name, too.")
        .def_prop_ro(
            "name", [](PyDType d) { return std::string(name(d.dtype)); }, "'float32' and so on.")
        .def_prop_ro(
            "itemsize", [](PyDType d) { return itemsize(d.dtype); }, "Bytes an element.")
        .def_prop_ro(
            "kind", [](PyDType d) { return std::string(1, "biuf"[static_cast<int>(info(d.dtype).kind)]); },
            "'b' bool, 'i' signed, 'u' unsigned, 'f' floating.")
        .def("__str__", [](PyDType d) { return std::string(name(d.dtype)); })
        .def("__repr__", [](PyDType d) { return str("pygpukit.", name(d.dtype)); })
        .def("__reduce__", [](PyDType d) { return attribute_name(d.dtype); })
        .def("__hash__", [](PyDType d) { return nb::hash(nb::str(std::string(name(d.dtype)).c_str())); })
        .def(
            "__eq__",
            [](PyDType d, nb::handle other) {
                try {
                    return !other.is_none() && read_dtype(other) == d.dtype;
                } catch (const Error&) {
                    return false;  // not the name of a dtype, so not equal to one
                }
            },
            nb::arg("other").none());
    for (int i = 0; i < kDTypeCount; ++i) {
        const auto dtype = static_cast<DType>(i);
        m.attr(attribute_name(dtype).c_str()) = to_python(dtype);
    }
    nb::module_::import_("atexit").attr("register")(nb::cpp_function(&release_dtypes));
    m.def(
        "result_type",
        [](DTypeArg a, DTypeArg b) { return to_python(promote(read_dtype(a), read_dtype(b))); }, nb::arg("a"),
        nb::arg("b"), nb::sig("def result_type(a: DType | str | type, b: DType | str | type) -> DType"),
        "The dtype that two arrays' dtypes promote to (NumPy's rules, NEP 50).");
}

}  // namespace

void bind_array(nb::module_& m) {
    bind_dtype(m);
    nb::class_<Array>(
        m, "Array",
        "An n-dimensional array on a device. Indexing and reshaping give views where NumPy's would;\n"
        "operators return new arrays. Work is queued and runs in the current stream's order: only\n"
        "to_numpy, item, printing and the conversions to Python numbers wait for it.")
        .def_prop_ro(
            "shape", [](const Array& a) { return to_tuple(a.shape()); },
            nb::sig("def shape(self, /) -> tuple[int, ...]"), "The extent of each axis.")
        .def_prop_ro(
            "strides",
            [](const Array& a) {
                Dims bytes = a.strides();
                for (std::int64_t& stride : bytes) stride *= static_cast<std::int64_t>(itemsize(a.dtype()));
                return to_tuple(bytes);
            },
            nb::sig("def strides(self, /) -> tuple[int, ...]"),
            "Bytes from one element to the next along each axis.")
        .def_prop_ro("ndim", &Array::rank, "The number of axes.")
        .def_prop_ro("size", &Array::size, "The number of elements.")
        .def_prop_ro("nbytes", &Array::nbytes, "Bytes of all elements.")
        .def_prop_ro(
            "itemsize", [](const Array& a) { return itemsize(a.dtype()); }, "Bytes an element.")
        .def_prop_ro(
            "dtype", [](const Array& a) { return to_python(a.dtype()); },
            nb::sig("def dtype(self, /) -> DType"), "The elements' type.")
        .def_prop_ro(
            "device", [](const Array& a) -> Device& { return a.device(); }, nb::rv_policy::reference,
            "Where the elements are.")
        .def_prop_ro("is_contiguous", &Array::is_contiguous,
                     "Whether the elements lie in row-major order without gaps.")
        .def_prop_ro("writable", &Array::writable, "Whether elements may be assigned.")
        .def_prop_ro(
            "data_ptr",
            [](const Array& a) {
                a.storage()->expose(current_stream(a.device()));
                return a.data();
            },
            "The device address of the first element. From then on the pool does not evict the array.")
        .def_prop_ro(
            "T", [](const Array& a) { return a.transpose({}); }, "The view with its axes reversed.")
        .def(
            "transpose",
            [](const Array& a, const nb::args& axes) {
                if (axes.size() == 0 || (axes.size() == 1 && axes[0].is_none())) return a.transpose({});
                return a.transpose(axes.size() == 1 ? read_dims("transpose", "axes", axes[0])
                                                    : read_dims("transpose", "axes", axes));
            },
            nb::sig("def transpose(self, *axes: int | collections.abc.Sequence[int] | None) -> Array"),
            "The view with its axes in the given order; reversed where none is given.")
        .def(
            "reshape",
            [](const Array& a, const nb::args& shape) {
                const Dims dims = dims_of_arguments("reshape", shape);
                return run_on(a.device(), [&] { return ops::reshape(a, dims); });
            },
            nb::sig("def reshape(self, *shape: int | collections.abc.Sequence[int]) -> Array"),
            "The elements in another shape; one extent may be -1. A view where the strides allow it.")
        .def(
            "ravel", [](const Array& a) { return run_on(a.device(), [&] { return ops::reshape(a, {-1}); }); },
            "The elements in one axis; a view where the strides allow it.")
        .def(
            "flatten",
            [](const Array& a) {
                return run_on(a.device(), [&] { return ops::reshape(ops::astype(a, a.dtype()), {-1}); });
            },
            "A copy of the elements in one axis.")
        .def(
            "squeeze",
            [](const Array& a, IntsArg axis) {
                Array view = a;
                const Dims wanted = read_axes("squeeze", axis, a.rank());
                for (int i = a.rank() - 1; i >= 0; --i) {
                    const bool named = std::find(wanted.begin(), wanted.end(), i) != wanted.end();
                    if (named || (axis.is_none() && a.shape()[i] == 1)) view = view.squeeze(i);
                }
                return view;
            },
            nb::arg("axis").none() = nb::none(), "The view without axes of extent 1.")
        .def(
            "astype",
            [](const Array& a, DTypeArg dtype, bool copy) {
                const DType wanted = read_dtype(dtype);
                if (!copy && wanted == a.dtype()) return a;
                return run_on(a.device(), [&] { return ops::astype(a, wanted); });
            },
            nb::arg("dtype"), nb::kw_only(), nb::arg("copy") = true,
            "A copy with another dtype. Floats out of an integer's range saturate and NaN becomes 0.")
        .def(
            "copy",
            [](const Array& a) { return run_on(a.device(), [&] { return ops::astype(a, a.dtype()); }); },
            "A contiguous copy.")
        .def(
            "contiguous",
            [](const Array& a) { return run_on(a.device(), [&] { return ops::contiguous(a); }); },
            "The array itself where it is contiguous, else a contiguous copy.")
        .def("to_device", &to_device, nb::arg("device"),
             "The array itself where it is there already, else a copy there.")
        .def("item", &item, nb::sig("def item(self) -> bool | int | float"),
             "The only element as a Python number. Waits for the device.")
        .def(
            "to_numpy", [](nb::handle self) { return call_helper("to_numpy", self); },
            nb::sig("def to_numpy(self) -> numpy.typing.NDArray[typing.Any]"),
            "A NumPy array with a copy of the elements. Waits for the device.\n\n"
            "bfloat16 and float8 arrays need the package ml_dtypes.")
        .def(
            "tolist", [](nb::handle self) { return call_helper("to_numpy", self).attr("tolist")(); },
            nb::sig("def tolist(self) -> typing.Any"),
            "The elements as nested lists of Python numbers. Waits for the device.")
        .def("_to_bytes", &to_bytes, nb::arg("target"),
             "Copies the elements, in row-major order, into a byte array.")
        .def("__getitem__", &basic_index, nb::arg("key").none())
        .def("__setitem__", &assign_index, nb::arg("key").none(), nb::arg("value").none(),
             nb::sig("def __setitem__(self, key: int | slice | types.EllipsisType | tuple[int | slice | "
                     "types.EllipsisType | None, ...] | None, value: Array | float) -> None"))
        .def("__len__",
             [](const Array& a) {
                 if (a.rank() == 0)
                     throw error(ErrorKind::type,
                                 {.call = "len", .expected = "an array with an axis", .got = "a 0-d array"});
                 return a.shape()[0];
             })
        .def(
            "__iter__",
            [](const Array& a) {
                if (a.rank() == 0)
                    throw error(
                        ErrorKind::type,
                        {.call = "iteration", .expected = "an array with an axis", .got = "a 0-d array"});
                nb::list rows;
                for (std::int64_t i = 0; i < a.shape()[0]; ++i) rows.append(a.select(0, i));
                return nb::iter(rows);
            },
            nb::sig("def __iter__(self) -> collections.abc.Iterator[Array]"))
        .def(
            "__float__", [](const Array& a) { return nb::steal(PyNumber_Float(item(a).ptr())); },
            nb::sig("def __float__(self) -> float"))
        .def(
            "__int__", [](const Array& a) { return nb::steal(PyNumber_Long(item(a).ptr())); },
            nb::sig("def __int__(self) -> int"))
        .def(
            "__index__",
            [](const Array& a) {
                if (!is_integer(a.dtype()))
                    throw error(ErrorKind::type, {.call = "index",
                                                  .expected = "an integer array",
                                                  .got = std::string(name(a.dtype()))});
                return item(a);
            },
            nb::sig("def __index__(self) -> int"))
        .def("__bool__",
             [](const Array& a) {
                 return nb::cast<bool>(nb::module_::import_("builtins")
                                           .attr("bool")(number_of(a, "bool", "use gp.any or gp.all")));
             })
        .def(
            "__repr__", [](nb::handle self) { return call_helper("format_array", self); },
            nb::sig("def __repr__(self) -> str"))
        .def(
            "__array__",
            [](nb::handle, const nb::args&, const nb::kwargs&) -> nb::object {
                throw error(ErrorKind::type,
                            {.call = "numpy.asarray",
                             .got = "a pygpukit array, which does not copy itself to the host unasked",
                             .fix = "call its to_numpy()"});
            },
            nb::sig("def __array__(self, *args: object, **kwargs: object) -> typing.NoReturn"));
    m.attr("Array").attr("__array_ufunc__") = nb::none();  // NumPy leaves mixed expressions to us
    m.def("_from_bytes", &from_bytes, nb::arg("data"), nb::arg("shape"), nb::arg("dtype"),
          nb::arg("device").none(), "An array of that shape and dtype with a copy of the bytes.");
}

}  // namespace gpk::python
