// What nanobind refuses by itself, as an error of ours. It raises a plain TypeError where no overload takes
// the arguments, and has no hook for that. Python calls a function through a pointer that lies in it (PEP
// 590): ours takes its place, calls nanobind's, and turns that one error.
#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "bindings/errors.hpp"

namespace gpk::python {

namespace {

// nanobind has one for each form of signature.
constexpr std::size_t kMostForms = 8;
std::array<vectorcallfunc, kMostForms> forms = {};

constexpr std::string_view kRefusal = "(): incompatible function arguments", kFirst = "supported:\n",
                           kGiven = "\nInvoked with types: ";

// What a refusal says of the caller's arguments: of a method without self, of __init__ by the class's name.
struct Refused {
    std::string call, signatures, got;
};

// `lines`: the signatures, "    1. f(self, x: int) -> int\n    2. ..."; `got`: the types of what was given.
Refused refused(std::string_view name, std::string_view lines, std::string_view got) {
    constexpr std::string_view kSelf = "(self";
    const std::string_view self = got.substr(0, got.find(", "));  // of a method
    Refused out{std::string(name == "__init__" ? self.substr(self.rfind('.') + 1) : name), "",
                std::string(got)};
    while (!lines.empty()) {
        std::string_view line = lines.substr(0, lines.find('\n'));
        lines.remove_prefix(std::min(line.size() + 1, lines.size()));
        const std::size_t number = line.find(". ");
        if (number == std::string_view::npos) continue;
        line.remove_prefix(number + 2);
        if (!out.signatures.empty()) out.signatures += " or ";
        const std::size_t arguments = std::min(line.find('('), line.size());
        if (!line.substr(arguments).starts_with(kSelf)) {
            out.signatures += line;
            continue;
        }
        line.remove_prefix(arguments + kSelf.size());
        if (line.starts_with(", ")) line.remove_prefix(2);
        out.signatures += str(out.call, "(", line);
        out.got = got.size() > self.size() ? std::string(got.substr(self.size() + 2)) : "nothing";
    }
    return out;
}

// The exception that is set, where it is a refusal of nanobind's.
void turn() noexcept {
    try {
        nb::python_error raised;
        const bool plain = raised.type().ptr() == PyExc_TypeError;
        const std::string text = plain ? nb::cast<std::string>(nb::str(raised.value())) : std::string();
        const std::size_t name = text.find(kRefusal), first = text.find(kFirst), given = text.find(kGiven);
        if (name == std::string::npos || first == std::string::npos || given == std::string::npos) {
            return raised.restore();
        }
        const std::size_t begin = first + kFirst.size();
        const std::string_view all = text;
        Refused what =
            refused(all.substr(0, name), all.substr(begin, given - begin), all.substr(given + kGiven.size()));
        raise_python(error(ErrorKind::type, {.call = std::move(what.call),
                                             .expected = std::move(what.signatures),
                                             .got = std::move(what.got)}));
    } catch (nb::python_error& another) {
        another.restore();
    } catch (const std::exception&) {
        PyErr_NoMemory();
    }
}

template <std::size_t form>
PyObject* call(PyObject* self, PyObject* const* arguments, std::size_t count, PyObject* names) {
    PyObject* const result = forms[form](self, arguments, count, names);
    if (result == nullptr) [[unlikely]]
        turn();
    return result;
}

template <std::size_t... form>
constexpr std::array<vectorcallfunc, kMostForms> calls(std::index_sequence<form...>) {
    return {call<form>...};
}

// Leaves what is no function of nanobind's.
void replace(nb::handle function) {
    constexpr auto kOurs = calls(std::make_index_sequence<kMostForms>());
    const PyTypeObject* const type = Py_TYPE(function.ptr());
    const std::string_view name = type->tp_name;
    if (!name.ends_with("nb_func") && !name.ends_with("nb_method")) return;
    auto* const place = reinterpret_cast<std::byte*>(function.ptr()) + type->tp_vectorcall_offset;
    vectorcallfunc known = nullptr;
    std::memcpy(&known, place, sizeof(known));
    for (std::size_t i = 0; i < kMostForms; ++i) {
        if (known == kOurs[i]) return;
        if (forms[i] == nullptr) forms[i] = known;
        if (forms[i] != known) continue;
        std::memcpy(place, &kOurs[i], sizeof(known));
        return;
    }
}

}  // namespace

void turn_signature_errors(nb::handle scope) {
    for (const nb::handle each : nb::list(scope.attr("__dict__").attr("values")())) {
        replace(each);
        if (PyObject_TypeCheck(each.ptr(), &PyProperty_Type)) {
            for (const char* part : {"fget", "fset"}) replace(each.attr(part));
        } else if (PyType_Check(each.ptr()) && nb::type_check(each)) {
            turn_signature_errors(each);
        }
    }
}

}  // namespace gpk::python
