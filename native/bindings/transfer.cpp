// Transfers and pinned memory; src/pygpukit/transfer.py and memory.py put the public names over them.
#include "bindings/common.hpp"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "array/array_transfer.hpp"
#include "memory/pinned.hpp"
#include "memory/transfer_engine.hpp"

namespace gpk::python {

namespace {

struct PyTransfer {
    std::shared_ptr<Transfer> transfer;
};

using Bytes = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using ReadOnlyBytes = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// A Python object that C++ threads may let go.
std::shared_ptr<const void> kept(nb::object object) {
    return {object.release().ptr(), [](const void* held) {
                with_python([&] { nb::handle(static_cast<PyObject*>(const_cast<void*>(held))).dec_ref(); });
            }};
}

// `call` on a thread of the engine's, with as many arguments as are given.
template <class... Arguments>
std::function<void(Arguments...)> callback(nb::handle call) {
    return [held = kept(nb::borrow(call))](Arguments... arguments) {
        with_python([&] { nb::handle(static_cast<PyObject*>(const_cast<void*>(held.get())))(arguments...); });
    };
}

TransferHow read_how(int priority, nb::handle progress, nb::handle keep) {
    TransferHow how{.priority = priority};
    if (!progress.is_none()) how.progress = callback<std::size_t, std::size_t>(progress);
    if (!keep.is_none()) how.keep.push_back(kept(nb::borrow(keep)));
    return how;
}

void check_size(std::size_t wanted, std::size_t given) {
    if (wanted == given) return;
    throw error(ErrorKind::value,
                {.call = "transfer", .expected = str(wanted, " bytes of host memory"), .got = str(given)});
}

// NumPy gives an empty array a null address.
template <class Data>
auto* address(Data& bytes) {
    static std::uint8_t nothing = 0;
    return bytes.data() != nullptr ? bytes.data() : &nothing;
}

std::pair<PyTransfer, Array> to_device(nb::handle data, IntsArg shape, DTypeArg dtype, nb::handle out,
                                       DeviceArg device, int priority, nb::handle progress) {
    const auto bytes = nb::cast<ReadOnlyBytes>(data);
    const Array* given = read_out("transfer.to_device", out);
    Device& target = given != nullptr ? given->device() : read_device(device);
    const Dims dims = read_dims("transfer.to_device", "shape", shape);
    const DType type = read_dtype(dtype);
    if (given != nullptr && (given->shape() != dims || given->dtype() != type)) {
        throw error(ErrorKind::value,
                    {.call = "transfer.to_device",
                     .argument = "out",
                     .expected = str("shape ", to_string(dims), " of ", name(type)),
                     .got = str("shape ", to_string(given->shape()), " of ", name(given->dtype()))});
    }
    TransferHow how = read_how(priority, progress, data);
    const void* const source = address(bytes);
    const std::size_t size = bytes.size();
    const Unlocked unlocked;
    const Array array = given != nullptr ? *given : empty_for_transfer(target, dims, type, priority);
    check_size(array.nbytes(), size);
    return {PyTransfer{transfer_to_device(array, source, std::move(how))}, array};
}

PyTransfer to_host(const Array& array, nb::handle target, int priority, nb::handle progress) {
    const auto bytes = nb::cast<Bytes>(target);
    check_size(array.nbytes(), bytes.size());
    TransferHow how = read_how(priority, progress, target);
    void* const to = address(bytes);
    const Unlocked unlocked;
    return {transfer_to_host(array, to, std::move(how))};
}

PyTransfer on_device(const Array& source, const Array& target, int priority, nb::handle progress) {
    TransferHow how = read_how(priority, progress, nb::none());
    const Unlocked unlocked;
    return {transfer_on_device(source, target, std::move(how))};
}

// In pieces, so that Ctrl-C is seen.
bool wait(PyTransfer& self, std::optional<double> seconds) {
    using namespace std::chrono;
    constexpr double kPiece = 0.1;
    if (seconds && std::isnan(*seconds)) {
        throw error(
            ErrorKind::value,
            {.call = "Transfer", .argument = "timeout", .expected = "seconds", .got = "not a number"});
    }
    const auto start = steady_clock::now();
    for (;;) {
        const double left =
            seconds ? std::max(0.0, *seconds - duration<double>(steady_clock::now() - start).count())
                    : kPiece;
        const auto piece = duration_cast<nanoseconds>(duration<double>(std::min(left, kPiece)));
        bool over = false;
        {
            const Unlocked unlocked;
            over = self.transfer->wait(piece);
        }
        if (over || (seconds && left <= kPiece)) return over;
        if (PyErr_CheckSignals() != 0) throw nb::python_error();
    }
}

nb::dict stats(DeviceArg device) {
    static constexpr const char* kNames[kTransferKinds] = {"to_device", "to_host", "on_device"};
    const TransferStats now = TransferEngine::of(read_device(device)).stats();
    nb::dict out;
    out["queued"] = now.queued;
    out["in_progress"] = now.in_progress;
    for (std::size_t i = 0; i < kTransferKinds; ++i) {
        const TransferStats::Direction& direction = now.directions[i];
        nb::dict each;
        each["completed"] = direction.completed;
        each["failed"] = direction.failed;
        each["cancelled"] = direction.cancelled;
        each["bytes"] = direction.bytes;
        each["staged_bytes"] = direction.staged_bytes;
        out[kNames[i]] = each;
    }
    return out;
}

void configure(DeviceArg device, const nb::kwargs& sizes) {
    TransferEngine& engine = TransferEngine::of(read_device(device));
    TransferOptions options = engine.options();
    const std::pair<const char*, std::size_t*> kSizes[] = {
        {"chunk_bytes", &options.chunk_bytes},
        {"direct_chunk_bytes", &options.direct_chunk_bytes},
        {"small_bytes", &options.small_bytes},
        {"in_flight_bytes", &options.in_flight_bytes},
        {"device_chunk_bytes", &options.device_chunk_bytes},
        {"device_in_flight_bytes", &options.device_in_flight_bytes},
        {"least_chunk_bytes", &options.least_chunk_bytes},
        {"ring_chunks", &options.ring_chunks}};
    for (const auto& [key, value] : sizes) {
        const auto named = nb::cast<std::string>(key);
        const auto* const size = std::find_if(std::begin(kSizes), std::end(kSizes),
                                              [&](const auto& each) { return named == each.first; });
        if (size != std::end(kSizes)) {
            *size->second = nb::cast<std::size_t>(value);
        } else if (named == "threads") {
            options.threads = nb::cast<unsigned>(value);
        } else if (named == "streaming_stores") {
            options.streaming_stores = nb::cast<bool>(value);
        } else if (named == "populate_targets") {
            options.populate_targets = nb::cast<bool>(value);
        } else {
            throw error(ErrorKind::value, {.call = "transfer options", .got = str("'", named, "'")});
        }
    }
    engine.configure(options);
}

// A byte array over pinned memory, which goes back to the pool with it.
nb::object pinned(std::size_t bytes, DeviceArg device) {
    struct Owner {
        PinnedPool& pool;
        PinnedBlock block;
    };
    PinnedPool& pool = PinnedPool::of(read_device(device));
    auto owner = std::make_unique<Owner>(Owner{pool, {}});
    {
        const Unlocked unlocked;
        owner->block = pool.allocate(std::max<std::size_t>(bytes, 1));
    }
    std::byte* const data = owner->block.data;
    const nb::capsule capsule(owner.release(), [](void* held) noexcept {
        const std::unique_ptr<Owner> gone(static_cast<Owner*>(held));
        gone->pool.release(gone->block);
    });
    const std::size_t shape[] = {bytes};
    return nb::cast(nb::ndarray<nb::numpy, std::uint8_t>(data, 1, shape, capsule));
}

nb::dict pinned_stats(DeviceArg device) {
    const PinnedStats now = PinnedPool::of(read_device(device)).stats();
    nb::dict out;
    out["live_bytes"] = now.live_bytes;
    out["reserved_bytes"] = now.reserved_bytes;
    out["cached_bytes"] = now.cached_bytes;
    out["peak_reserved_bytes"] = now.peak_reserved_bytes;
    out["live_blocks"] = now.live_blocks;
    out["allocations"] = now.allocations;
    out["driver_allocations"] = now.driver_allocations;
    return out;
}

}  // namespace

void bind_transfer(nb::module_& m) {
    set_around_wait([](const std::function<void()>& wait) {
        if (!Py_IsInitialized() || PyGILState_Check() == 0) return wait();
        const Unlocked unlocked;
        wait();
    });
    nb::class_<PyTransfer>(m, "_Transfer", "The engine's side of pygpukit.transfer.Transfer.")
        .def_prop_ro("state", [](PyTransfer& t) { return std::string(to_string(t.transfer->state())); })
        .def_prop_ro("nbytes", [](PyTransfer& t) { return t.transfer->bytes(); })
        .def_prop_ro("bytes_done", [](PyTransfer& t) { return t.transfer->bytes_done(); })
        .def_prop_ro("priority", [](PyTransfer& t) { return t.transfer->priority(); })
        .def_prop_ro("over", [](PyTransfer& t) { return t.transfer->over(); })
        .def("wait", &wait, nb::arg("seconds").none())
        .def(
            "get", [](PyTransfer& t) { t.transfer->get(); }, nb::call_guard<Unlocked>())
        .def(
            "cancel", [](PyTransfer& t) { return t.transfer->cancel(); }, nb::call_guard<Unlocked>())
        .def(
            "on_done",
            [](PyTransfer& t, nb::handle call) {
                auto told = callback<>(call);
                const Unlocked unlocked;
                t.transfer->on_done(std::move(told));
            },
            nb::arg("call"));
    m.def("_transfer_to_device", &to_device, nb::arg("data"), nb::arg("shape"), nb::arg("dtype"),
          nb::arg("out").none(), nb::arg("device").none(), nb::arg("priority"), nb::arg("progress").none());
    m.def("_transfer_to_host", &to_host, nb::arg("array"), nb::arg("target"), nb::arg("priority"),
          nb::arg("progress").none());
    m.def("_transfer_on_device", &on_device, nb::arg("source"), nb::arg("target"), nb::arg("priority"),
          nb::arg("progress").none());
    m.def("_transfer_stats", &stats, nb::arg("device").none(),
          nb::sig("def _transfer_stats(device: Device | str | None) -> dict[str, int]"));
    m.def("_transfer_configure", &configure, nb::arg("device").none(), nb::arg("sizes"),
          nb::sig("def _transfer_configure(device: Device | str | None, **sizes: int) -> None"),
          "For measurements: the engine's options (native/memory/transfer_engine.hpp), before its first "
          "transfer.");
    m.def(
        "_transfer_drain",
        [](DeviceArg device) {
            TransferEngine& engine = TransferEngine::of(read_device(device));
            const Unlocked unlocked;
            engine.drain();
        },
        nb::arg("device").none());
    m.def("_pinned", &pinned, nb::arg("nbytes"), nb::arg("device").none());
    m.def("_pinned_stats", &pinned_stats, nb::arg("device").none(),
          nb::sig("def _pinned_stats(device: Device | str | None) -> dict[str, int]"));
    m.def(
        "_pinned_trim",
        [](DeviceArg device) {
            PinnedPool& pool = PinnedPool::of(read_device(device));
            const Unlocked unlocked;
            return pool.trim();
        },
        nb::arg("device").none());
    m.def(
        "_pinned_limit",
        [](nb::handle bytes, DeviceArg device) {
            PinnedPool::of(read_device(device)).set_limit(read_bytes("set_pinned_limit", "nbytes", bytes));
        },
        nb::arg("bytes").none(), nb::arg("device").none(),
        nb::sig("def _pinned_limit(bytes: int | str, device: Device | str | None) -> None"));
}

}  // namespace gpk::python
