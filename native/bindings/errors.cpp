// gpk::Error as Python exceptions, and the logger's way to Python.
#include "bindings/errors.hpp"
#include "base/log.hpp"

#include <nanobind/stl/function.h>

#include <array>
#include <string_view>

namespace gpk::python {

namespace {

struct Mapping {
    ErrorKind kind;
    const char* name;
    PyObject** also;  // Python's own exception of this kind
    const char* doc;
};

const std::array kMappings{
    Mapping{ErrorKind::value, "InvalidValueError", &PyExc_ValueError,
            "A shape, size or number that does not fit."},
    Mapping{ErrorKind::type, "InvalidTypeError", &PyExc_TypeError,
            "A dtype or kind of object that does not fit."},
    Mapping{ErrorKind::index, "OutOfBoundsError", &PyExc_IndexError, "An index or axis out of range."},
    Mapping{ErrorKind::memory, "OutOfMemoryError", &PyExc_MemoryError,
            "Device or pinned memory is exhausted."},
    Mapping{ErrorKind::driver, "DriverError", &PyExc_RuntimeError,
            "A driver call failed. Attributes: call, code, code_name."},
    Mapping{ErrorKind::unsupported, "UnsupportedError", &PyExc_RuntimeError,
            "This device, driver or build cannot do that."},
    Mapping{ErrorKind::exchange, "ExchangeError", &PyExc_BufferError,
            "An array cannot be shared with another library as it is."},
    Mapping{ErrorKind::file, "FileFormatError", &PyExc_ValueError, "A file is not what it says it is."},
    Mapping{ErrorKind::compile, "CompileError", &PyExc_RuntimeError, "A kernel's source does not compile."},
};

// Owned for the process's life, as the module's attributes are.
PyObject* error_types[kMappings.size()];
PyObject* device_lost_type = nullptr;

PyObject* type_of(ErrorKind kind) {
    for (std::size_t i = 0; i < kMappings.size(); ++i) {
        if (kMappings[i].kind == kind) return error_types[i];
    }
    return PyExc_RuntimeError;
}

}  // namespace

void raise_python(const Error& failure) {
    // What a message quotes need not be UTF-8: a path, a name in a damaged file.
    const std::string_view what = failure.what();
    const nb::object message =
        nb::steal(PyUnicode_DecodeUTF8(what.data(), static_cast<Py_ssize_t>(what.size()), "replace"));
    PyObject* type = dynamic_cast<const DeviceLostError*>(&failure) != nullptr ? device_lost_type
                                                                               : type_of(failure.kind());
    nb::object instance = nb::borrow(type)(message);
    if (const auto* driver = dynamic_cast<const DriverError*>(&failure)) {
        instance.attr("call") = driver->call();
        instance.attr("code") = driver->code();
        instance.attr("code_name") = driver->code_name();
    }
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(instance.ptr())), instance.ptr());
}

void bind_errors(nb::module_& m) {
    const nb::object base = nb::steal(PyErr_NewExceptionWithDoc(
        "pygpukit.Error", "Base of every error that PyGPUkit raises.", nullptr, nullptr));
    m.attr("Error") = base;
    for (std::size_t i = 0; i < kMappings.size(); ++i) {
        const Mapping& each = kMappings[i];
        const nb::tuple bases = nb::make_tuple(base, nb::borrow(*each.also));
        const std::string full_name = std::string("pygpukit.") + each.name;
        error_types[i] = PyErr_NewExceptionWithDoc(full_name.c_str(), each.doc, bases.ptr(), nullptr);
        m.attr(each.name) = nb::borrow(error_types[i]);
    }
    device_lost_type = PyErr_NewExceptionWithDoc(
        "pygpukit.DeviceLostError",
        "An earlier failure broke the device for this process: call, code and code_name are that one's.",
        type_of(ErrorKind::driver), nullptr);
    m.attr("DeviceLostError") = nb::borrow(device_lost_type);
    nb::register_exception_translator([](const std::exception_ptr& failure, void*) {
        try {
            std::rethrow_exception(failure);
        } catch (const Error& known) {
            raise_python(known);
        } catch (const nb::cast_error&) {
            raise_python(error(ErrorKind::type,
                               {.call = "argument",
                                .expected = "an object of the kind that the function takes",
                                .got = "another, or a string with characters that UTF-8 does not have"}));
        }
    });
    m.def(
        "set_log_sink",
        [](nb::callable sink) {
            // Kept for the process's life: the logger may outlive the interpreter's modules.
            const nb::handle kept = sink.release();
            set_log_sink([kept](LogLevel level, const std::string& message) {
                if (!Py_IsInitialized()) return;
                const nb::gil_scoped_acquire locked;
                kept(static_cast<int>(level), message);
            });
        },
        nb::arg("sink"),
        nb::sig("def set_log_sink(sink: collections.abc.Callable[[int, str], None]) -> None"),
        "Sends the library's messages to sink(level, text); level 0 debug, 1 info, 2 warning.");
}

}  // namespace gpk::python
