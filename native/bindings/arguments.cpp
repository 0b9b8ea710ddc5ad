// Reading Python arguments.
#include "bindings/common.hpp"

#include "base/byte_size.hpp"

#include <string_view>

namespace gpk::python {

namespace {

nb::object dtype_objects[kDTypeCount];

std::optional<std::string> text_attribute(nb::handle value, const char* name) {
    const nb::object text = nb::getattr(value, name, nb::none());
    if (!nb::isinstance<nb::str>(text)) return std::nullopt;
    return nb::cast<std::string>(text);
}

// NumPy and ml_dtypes name one of ours differently.
DType named(const std::string& name) {
    return dtype_from_name(name == "float8_e4m3fn" ? "float8_e4m3" : name == "bool_" ? "bool" : name);
}

std::int64_t read_index(const char* call, const char* argument, nb::handle value) {
    const nb::object index = nb::steal(PyNumber_Index(value.ptr()));
    if (!index.is_valid()) {
        PyErr_Clear();
        throw error(ErrorKind::type,
                    {.call = call, .argument = argument, .expected = "integers", .got = kind_of(value)});
    }
    int overflow = 0;
    const long long number = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
    if (overflow != 0) {
        throw error(ErrorKind::value, {.call = call,
                                       .argument = argument,
                                       .expected = "integers of 64 bits",
                                       .got = nb::cast<std::string>(nb::str(index))});
    }
    return number;
}

std::optional<Number> integer_number(nb::handle value) {
    int overflow = 0;
    const long long number = PyLong_AsLongLongAndOverflow(value.ptr(), &overflow);
    if (overflow == 0) return Number{Scalar(static_cast<std::int64_t>(number)), std::nullopt};
    const unsigned long long large = overflow > 0 ? PyLong_AsUnsignedLongLong(value.ptr()) : 0;
    if (overflow < 0 || PyErr_Occurred() != nullptr) {
        PyErr_Clear();
        throw error(ErrorKind::value, {.call = "number",
                                       .expected = "an integer of 64 bits",
                                       .got = nb::cast<std::string>(nb::str(value))});
    }
    return Number{Scalar(static_cast<std::uint64_t>(large)), std::nullopt};
}

// A Python float, bool or int.
std::optional<Number> python_number(nb::handle value) {
    PyObject* const object = value.ptr();
    if (PyFloat_Check(object)) return Number{Scalar(PyFloat_AsDouble(object)), std::nullopt};
    if (PyBool_Check(object)) return Number{Scalar(object == Py_True), std::nullopt};
    if (PyLong_Check(object)) return integer_number(value);
    return std::nullopt;
}

}  // namespace

std::string kind_of(nb::handle value) {
    return nb::cast<std::string>(nb::str(value.type().attr("__name__")));
}

nb::object to_python(DType dtype) {
    nb::object& known = dtype_objects[static_cast<int>(dtype)];
    if (!known.is_valid()) {
        known = nb::cast(PyDType{dtype});
    }
    return known;
}

void release_dtypes() {
    for (nb::object& each : dtype_objects) each.reset();
}

nb::object to_python(Device& device) { return nb::cast(device, nb::rv_policy::reference); }

DType read_dtype(nb::handle value) {
    if (nb::isinstance<PyDType>(value)) return nb::cast<const PyDType&>(value).dtype;
    if (nb::isinstance<nb::str>(value)) return named(nb::cast<std::string>(value));
    if (value.ptr() == reinterpret_cast<PyObject*>(&PyBool_Type)) return DType::bool_;
    if (value.ptr() == reinterpret_cast<PyObject*>(&PyLong_Type)) return DType::int64;
    if (value.ptr() == reinterpret_cast<PyObject*>(&PyFloat_Type)) return DType::float64;
    if (const auto name = text_attribute(value, "name")) return named(*name);      // numpy.dtype
    if (const auto name = text_attribute(value, "__name__")) return named(*name);  // numpy.float32
    throw error(ErrorKind::type, {.call = "dtype", .expected = "a dtype or its name", .got = kind_of(value)});
}

DType read_dtype_or(nb::handle value, DType otherwise) {
    return value.is_none() ? otherwise : read_dtype(value);
}

Device& read_device(nb::handle value) {
    if (value.is_none()) return current_device();
    if (nb::isinstance<Device>(value)) return nb::cast<Device&>(value);
    if (nb::isinstance<nb::str>(value)) return device(nb::cast<std::string>(value));
    throw error(ErrorKind::type, {.call = "device",
                                  .expected = "a Device, or a name such as 'cuda:0' or 'cpu'",
                                  .got = kind_of(value)});
}

Dims read_dims(const char* call, const char* argument, nb::handle value) {
    Dims dims;
    if (PyIndex_Check(value.ptr())) {
        dims.push_back(read_index(call, argument, value));
        return dims;
    }
    const nb::object sequence = nb::steal(PySequence_Tuple(value.ptr()));
    if (!sequence.is_valid()) {
        PyErr_Clear();
        throw error(ErrorKind::type, {.call = call,
                                      .argument = argument,
                                      .expected = "an integer or a sequence of integers",
                                      .got = kind_of(value)});
    }
    for (nb::handle item : nb::borrow<nb::tuple>(sequence)) dims.push_back(read_index(call, argument, item));
    return dims;
}

Dims read_axes(const char* call, nb::handle value, int rank) {
    if (value.is_none()) return {};
    Dims axes = read_dims(call, "axis", value);
    unsigned seen = 0;
    for (std::int64_t& axis : axes) {
        axis = normalize_axis(call, axis, rank);
        if (seen & (1u << axis)) {
            throw error(
                ErrorKind::value,
                {.call = call, .argument = "axis", .expected = "each axis once", .got = to_string(axes)});
        }
        seen |= 1u << axis;
    }
    return axes;
}

std::optional<Number> read_number(nb::handle value) {
    PyObject* const object = value.ptr();
    if (PyFloat_CheckExact(object) || PyLong_Check(object)) return python_number(value);
    // A NumPy scalar: a number with a dtype and no dimensions. The item of some (longdouble) is no number.
    int ndim = -1;
    if (const nb::object dtype = nb::getattr(value, "dtype", nb::none());
        !dtype.is_none() && !is_array(value) &&
        nb::try_cast<int>(nb::getattr(value, "ndim", nb::none()), ndim) && ndim == 0) {
        std::optional<Number> number = python_number(value.attr("item")());
        if (number) number->dtype = read_dtype(dtype);
        return number;
    }
    return python_number(value);
}

bool is_array(nb::handle value) { return nb::isinstance<Array>(value); }

const Array* try_array(nb::handle value) {
    Array* array = nullptr;
    return nb::try_cast<Array*>(value, array) ? array : nullptr;
}

const Array& read_array(const char* call, const char* argument, nb::handle value) {
    if (const Array* array = try_array(value); array != nullptr) return *array;
    throw error(ErrorKind::type, {.call = call,
                                  .argument = argument,
                                  .expected = "a pygpukit array",
                                  .got = kind_of(value),
                                  .fix = "copy it to the device with gp.asarray"});
}

const Array* read_out(const char* call, nb::handle value) {
    return value.is_none() ? nullptr : &read_array(call, "out", value);
}

QosClass read_qos(const char* call, nb::handle value) {
    if (nb::isinstance<QosClass>(value)) return nb::cast<QosClass>(value);
    const std::string name = nb::isinstance<nb::str>(value) ? nb::cast<std::string>(value) : "";
    for (const QosClass qos : {QosClass::guaranteed, QosClass::burstable, QosClass::best_effort}) {
        if (name == to_string(qos)) return qos;
    }
    throw error(ErrorKind::value, {.call = call,
                                   .argument = "qos",
                                   .expected = "'guaranteed', 'burstable', 'best_effort' or a QosClass",
                                   .got = nb::cast<std::string>(nb::repr(value))});
}

std::size_t read_bytes(const char* call, const char* argument, nb::handle value) {
    if (nb::isinstance<nb::str>(value)) return parse_byte_size(call, nb::cast<std::string>(value));
    if (PyLong_Check(value.ptr()) && !PyBool_Check(value.ptr())) {
        const std::size_t bytes = PyLong_AsSize_t(value.ptr());
        if (!PyErr_Occurred()) return bytes;
        PyErr_Clear();
        throw error(ErrorKind::value, {.call = call,
                                       .argument = argument,
                                       .expected = "a number of bytes from 0 to 2**64 - 1",
                                       .got = nb::cast<std::string>(nb::str(value))});
    }
    throw error(ErrorKind::type, {.call = call,
                                  .argument = argument,
                                  .expected = "bytes as an int, or a string such as '4GiB'",
                                  .got = kind_of(value)});
}

}  // namespace gpk::python
