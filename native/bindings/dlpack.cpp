// DLPack in Python: capsules and the stream protocol of the array API standard.
#include "array/dlpack.hpp"

#include <nanobind/stl/optional.h>

#include <array>
#include <limits>

#include "array/exchange.hpp"
#include "bindings/common.hpp"
#include "ops/elementwise.hpp"

namespace gpk::python {

namespace {

using dlpack::DeviceId;

constexpr DeviceId kHost{dlpack::kCpu, 0};

// One row a form: its name, and the name of what was taken out of it.
template <class Struct>
struct Form;
template <>
struct Form<dlpack::Managed> {
    static constexpr const char *kName = "dltensor", *kUsed = "used_dltensor";
};
template <>
struct Form<dlpack::ManagedVersioned> {
    static constexpr const char *kName = "dltensor_versioned", *kUsed = "used_dltensor_versioned";
};

template <class Struct>
void delete_unused(PyObject* capsule) noexcept {
    if (!PyCapsule_IsValid(capsule, Form<Struct>::kName)) return;  // whoever took it deletes it
    const nb::error_scope kept;
    auto* lent = static_cast<Struct*>(PyCapsule_GetPointer(capsule, Form<Struct>::kName));
    lent->deleter(lent);
}

template <class Struct>
nb::object capsule_of(Struct* lent) {
    nb::object capsule = nb::steal(PyCapsule_New(lent, Form<Struct>::kName, &delete_unused<Struct>));
    if (!capsule.is_valid()) {
        lent->deleter(lent);
        throw nb::python_error();
    }
    return capsule;
}

std::array<std::int64_t, 2> read_pair(const char* call, const char* argument, nb::handle value) {
    const Dims pair = read_dims(call, argument, value);
    if (pair.size() != 2) {
        throw error(ErrorKind::type, {.call = call,
                                      .argument = argument,
                                      .expected = "two integers",
                                      .got = str(pair.size(), " of them")});
    }
    return {pair[0], pair[1]};
}

DeviceId read_device_id(const char* call, const char* argument, nb::handle value) {
    const auto pair = read_pair(call, argument, value);
    for (const std::int64_t each : pair) {
        if (each < 0 || each > std::numeric_limits<std::int32_t>::max()) {
            throw error(ErrorKind::value, {.call = call,
                                           .argument = argument,
                                           .expected = "a device's type and number, as DLPack has them",
                                           .got = str("(", pair[0], ", ", pair[1], ")")});
        }
    }
    return {static_cast<std::int32_t>(pair[0]), static_cast<std::int32_t>(pair[1])};
}

// The stream of the consumer's, as the array API standard numbers it: None and 1 are CUDA's legacy default
// stream, 2 is that of each thread, -1 asks for no order, and others are handles.
dlpack::Borrower read_borrower(nb::handle stream, bool on_cuda) {
    using Waits = dlpack::Borrower::Waits;
    constexpr std::int64_t kNone = -1, kLegacy = 1;
    std::int64_t number = kLegacy;
    if (!stream.is_none()) {
        if (PyBool_Check(stream.ptr()) || !PyIndex_Check(stream.ptr())) {
            throw error(ErrorKind::type, {.call = "__dlpack__",
                                          .argument = "stream",
                                          .expected = "an integer or None",
                                          .got = kind_of(stream)});
        }
        number = read_dims("__dlpack__", "stream", stream)[0];
    }
    if (!on_cuda && !stream.is_none() && number != kNone) {
        throw error(ErrorKind::value, {.call = "__dlpack__",
                                       .argument = "stream",
                                       .expected = "None for an array in host memory",
                                       .got = str(number)});
    }
    if (number == 0 || number < kNone) {
        throw error(
            ErrorKind::value,
            {.call = "__dlpack__",
             .argument = "stream",
             .expected = "None, 1 (CUDA's legacy default stream), 2 (its default stream of each thread), "
                         "-1 (no order) or a stream's handle",
             .got = str(number)});
    }
    if (!on_cuda) return {.waits = number == kNone ? Waits::not_at_all : Waits::on_host};
    const auto handle = [](std::int64_t value) { return reinterpret_cast<StreamHandle>(value); };
    // Its handle may be dead by then, but the legacy stream lives as long as CUDA.
    return {.waits = number == kNone ? Waits::not_at_all : Waits::on_stream,
            .stream = handle(number),
            .returns_on = handle(kLegacy)};
}

Array copied_to(const Array& array, Device& target) {
    return nb::cast<Array>(nb::cast(array).attr("to_device")(to_python(target)));
}

Array copy_of(const Array& array) {
    return run_on(array.device(), [&] { return ops::astype(array, array.dtype()); });
}

nb::object lend(const Array& self, nb::handle stream, nb::handle max_version, nb::handle dl_device,
                std::optional<bool> copy) {
    dlpack::Borrower borrower = read_borrower(stream, self.device().is_cuda());
    const DeviceId home = dlpack::device_id(self.device());
    const DeviceId wanted = dl_device.is_none() ? home : read_device_id("__dlpack__", "dl_device", dl_device);
    Array array = self;
    std::uint64_t flags = 0;
    if (wanted != home) {
        if (wanted != kHost || copy == false) {
            throw error(ErrorKind::exchange,
                        {.call = "__dlpack__",
                         .argument = "dl_device",
                         .expected = str(dlpack::to_string(home), ", where the array is",
                                         home == kHost || copy == false ? "" : ", or (1, 0), host memory"),
                         .got = dlpack::to_string(wanted) + (copy == false ? " without a copy" : "")});
        }
        array = copied_to(self, device("cpu"));
        borrower = {};
    } else if (copy == true) {
        array = copy_of(self);
    }
    if (wanted != home || copy == true) flags = dlpack::kCopied;
    std::array<std::int64_t, 2> version{};
    if (!max_version.is_none()) version = read_pair("__dlpack__", "max_version", max_version);
    if (version[0] < 1) {
        dlpack::Managed* lent = nullptr;
        {
            const Unlocked unlocked;
            lent = dlpack::lend_unversioned(array, borrower);
        }
        return capsule_of(lent);
    }
    const bool older = version[0] == 1 && version[1] < dlpack::kVersion.minor;
    dlpack::ManagedVersioned* lent = nullptr;
    {
        const Unlocked unlocked;
        lent = dlpack::lend(array, borrower, older ? dlpack::Version{1, 0} : dlpack::kVersion, flags);
    }
    return capsule_of(lent);
}

// -- from_dlpack -----------------------------------------------------------------------------------------

[[noreturn]] void refuse(std::string argument, std::string expected, std::string got) {
    throw error(ErrorKind::exchange, {.call = "from_dlpack",
                                      .argument = std::move(argument),
                                      .expected = std::move(expected),
                                      .got = std::move(got)});
}

// What the producer is asked for, and the device that its memory must then be on.
struct Request {
    Device* device;
    DeviceId id;
    std::shared_ptr<Stream> stream;  // that waits for its work; null for host memory
    std::optional<bool> copy;
    bool to_host;  // from a kind of device that is none of ours
};

nb::object call_producer(nb::handle x, const Request& request) {
    nb::dict plain;
    if (request.stream) plain["stream"] = reinterpret_cast<std::uintptr_t>(request.stream->handle());
    nb::dict full;
    full.update(plain);
    full["max_version"] = nb::make_tuple(dlpack::kVersion.major, dlpack::kVersion.minor);
    if (request.to_host) full["dl_device"] = nb::make_tuple(dlpack::kCpu, 0);
    if (request.copy) full["copy"] = *request.copy;
    const nb::object method = x.attr("__dlpack__");
    try {
        return method(**full);
    } catch (nb::python_error& failure) {
        if (!failure.matches(PyExc_TypeError) || request.to_host) throw;
    }
    return method(**plain);  // one from before version 1.0 of the protocol
}

template <class Struct>
Array take(nb::handle capsule, Struct* lent, const Request& request, bool read_only) {
    const DeviceId id = lent->tensor.device;
    if (dlpack::device_of(id) != request.device) {
        refuse("device", str(dlpack::to_string(request.id), ", as __dlpack_device__ says"),
               dlpack::to_string(id));
    }
    const dlpack::Layout layout = dlpack::read(lent->tensor);
    if (PyCapsule_SetName(capsule.ptr(), Form<Struct>::kUsed) != 0) throw nb::python_error();
    const Array array = dlpack::borrow(*request.device, layout, read_only, [lent] {
        if (lent->deleter != nullptr) with_python([&] { lent->deleter(lent); });
    });
    if (request.stream) {
        const UseScope scope;
        array.storage()->before_write(request.stream);
    }
    return array;
}

struct Taken {
    Array array;
    bool copied;
};

Taken take_any(nb::handle capsule, const Request& request) {
    using dlpack::Managed, dlpack::ManagedVersioned;
    if (PyCapsule_IsValid(capsule.ptr(), Form<Managed>::kName)) {
        auto* lent = static_cast<Managed*>(PyCapsule_GetPointer(capsule.ptr(), Form<Managed>::kName));
        return {take(capsule, lent, request, false), false};
    }
    if (PyCapsule_IsValid(capsule.ptr(), Form<ManagedVersioned>::kName)) {
        auto* lent = static_cast<ManagedVersioned*>(
            PyCapsule_GetPointer(capsule.ptr(), Form<ManagedVersioned>::kName));
        if (lent->version.major != dlpack::kVersion.major) {
            refuse("version", str(dlpack::kVersion.major, ".x"),
                   str(lent->version.major, ".", lent->version.minor));
        }
        const bool copied = (lent->flags & dlpack::kCopied) != 0;
        return {take(capsule, lent, request, (lent->flags & dlpack::kReadOnly) != 0), copied};
    }
    const char* name = PyCapsule_CheckExact(capsule.ptr()) ? PyCapsule_GetName(capsule.ptr()) : nullptr;
    if (name == nullptr) PyErr_Clear();
    refuse("__dlpack__", "a capsule named 'dltensor' or 'dltensor_versioned', not used yet",
           !PyCapsule_CheckExact(capsule.ptr()) ? kind_of(capsule)
           : name == nullptr                    ? "one without a name"
                                                : str("one named '", name, "'"));
}

Request request_for(nb::handle x, nb::handle device_argument, std::optional<bool> copy) {
    if (!nb::hasattr(x, "__dlpack__") || !nb::hasattr(x, "__dlpack_device__")) {
        throw error(ErrorKind::type, {.call = "from_dlpack",
                                      .argument = "x",
                                      .expected = "an object with __dlpack__ and __dlpack_device__",
                                      .got = kind_of(x)});
    }
    const DeviceId id = read_device_id("from_dlpack", "__dlpack_device__", x.attr("__dlpack_device__")());
    Device* home = dlpack::device_of(id);
    const bool to_host = home == nullptr;
    if (to_host) {
        if (device_argument.is_none() || copy == false) {
            refuse("x", "memory of the host or of a CUDA device",
                   str("that of device ", dlpack::to_string(id),
                       copy == false ? "" : "; device='cpu' asks its library for a copy"));
        }
        home = &device("cpu");
    }
    std::shared_ptr<Stream> stream;
    if (home->is_cuda()) {
        stream = current_stream(*home);
        // The handle is in the producer's hands: it must not move meanwhile, nor bring others into a capture.
        if (stream->tenant() || stream->capture() != nullptr) stream = Exchange::of(*home).stream();
    }
    return {home, id, std::move(stream), copy, to_host};
}

Array from_dlpack(nb::handle x, DeviceArg device, std::optional<bool> copy) {
    Device* target = device.is_none() ? nullptr : &read_device(device);
    Taken taken;
    if (const Array* own = try_array(x)) {
        taken = {*own, false};
    } else {
        const Request request = request_for(x, device, copy);
        if (copy == false && target != nullptr && target != request.device) {
            refuse("device", str(request.device->name(), ", where the memory is, without a copy"),
                   target->name());
        }
        taken = take_any(call_producer(x, request), request);
    }
    if (target != nullptr && target != &taken.array.device()) {
        if (copy == false) {
            refuse("device", str(taken.array.device().name(), ", where the array is, without a copy"),
                   target->name());
        }
        return copied_to(taken.array, *target);
    }
    return copy == true && !taken.copied ? copy_of(taken.array) : taken.array;
}

}  // namespace

void bind_dlpack(nb::module_& m) {
    auto type = nb::borrow<nb::class_<Array>>(m.attr("Array"));
    type.def(
        "__dlpack__", &lend, nb::kw_only(), nb::arg("stream").none() = nb::none(),
        nb::arg("max_version").none() = nb::none(), nb::arg("dl_device").none() = nb::none(),
        nb::arg("copy").none() = nb::none(),
        nb::sig(
            "def __dlpack__(self, *, stream: int | None = None, max_version: tuple[int, int] | None = None, "
            "dl_device: tuple[int, int] | None = None, copy: bool | None = None) -> typing.Any"),
        "The array as a DLPack capsule, as the array API standard says, for other libraries' from_dlpack.\n\n"
        "It is the same memory. While the borrower has it, the pool does not evict it.\n"
        "stream: of the consumer's, which is made to wait, on the device, for the array's work that is "
        "queued\n"
        "    now: None or 1 for CUDA's legacy default stream, 2 for the default stream of each thread, a\n"
        "    stream's handle, or -1 for no order. For the simulated device None: the host waits.\n"
        "max_version: from (1, 0) on, the versioned form, which alone has read-only arrays.\n"
        "dl_device: where it is, or (1, 0) for a copy in host memory.\n"
        "copy: True for a copy, False for never one.\n"
        "When the borrower lets go, later work of ours waits for what CUDA's legacy default stream, and so\n"
        "every stream that blocks with it, holds then. Who uses the array on streams that do not block\n"
        "(PyTorch's side streams) waits for them before letting go.\n"
        "Raises ExchangeError for what cannot be had so, and UnsupportedError while the current stream is\n"
        "captured.");
    type.def(
        "__dlpack_device__",
        [](const Array& self) {
            const DeviceId id = dlpack::device_id(self.device());
            return nb::make_tuple(id.type, id.id);
        },
        nb::sig("def __dlpack_device__(self) -> tuple[int, int]"),
        "DLPack's type and number of the device: (2, n) for \"cuda:n\", (1, 0) for the simulated one, whose\n"
        "memory is the host's.");
    m.def("from_dlpack", &from_dlpack, nb::arg("x").none(), nb::kw_only(),
          nb::arg("device").none() = nb::none(), nb::arg("copy").none() = nb::none(),
          nb::sig("def from_dlpack(x: typing.Any, *, device: Device | str | None = None, copy: bool | None "
                  "= None) -> Array"),
          "An array of another library's memory, by DLPack: of NumPy, PyTorch, CuPy, JAX and others.\n\n"
          "Without a copy unless asked for: on \"cuda:n\" for CUDA memory, on \"cpu\" for host memory. The\n"
          "memory is the library's until no array and no queued work uses it; it is never evicted and\n"
          "counts for no limit. Later work here waits for the producer's that is queued now. From then on\n"
          "the two libraries' work is ordered by nobody, and two arrays of the same memory know nothing of\n"
          "each other.\n\n"
          "device: where the result is to be; elsewhere than the memory is, a copy.\n"
          "copy: True for a copy in any case, False for ExchangeError where one would be needed.\n"
          "Raises ExchangeError for memory, dtypes and layouts that no array can have, InvalidTypeError for\n"
          "an object that does not know DLPack, UnsupportedError for a GPU that cannot be used.");
}

}  // namespace gpk::python
