// Devices, streams, events and graphs.
#include "bindings/common.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <vector>

#include "runtime/graph.hpp"
#include "runtime/stream.hpp"

namespace gpk::python {

namespace {

struct PyStream {
    std::shared_ptr<Stream> stream;
};

struct PyGraph {
    std::shared_ptr<Stream> stream;
    std::shared_ptr<Graph> graph = nullptr;
};

// What `with` has made current on this thread, the innermost last. A stream may be there several times.
struct Scope {
    std::shared_ptr<Stream> stream, previous;
};
thread_local std::vector<Scope> scopes;

nb::dict device_properties(Device& device) {
    const DeviceInfo& info = device.info();
    nb::dict out;
    out["name"] = info.name;
    out["compute_capability"] = nb::make_tuple(info.sm / 10, info.sm % 10);
    out["multiprocessors"] = info.multiprocessors;
    out["memory_bytes"] = info.memory_bytes;
    out["l2_bytes"] = info.l2_bytes;
    out["shared_bytes_per_block"] = info.shared_bytes_per_block;
    out["max_threads_per_block"] = info.max_threads_per_block;
    out["clock_khz"] = info.clock_khz;
    out["driver_version"] = nb::make_tuple(info.driver_version / 1000, info.driver_version % 1000 / 10);
    out["stream_priorities"] = nb::make_tuple(info.highest_priority, info.lowest_priority);
    out["pci_bus_id"] = info.pci_bus_id;
    return out;
}

void bind_device(nb::module_& m) {
    nb::class_<Device>(m, "Device", "A GPU, or the simulated one. Made by the library: gp.device(name).")
        .def_prop_ro(
            "name", [](Device& d) { return d.name(); }, "'cuda:0', or 'cpu' for the simulated device.")
        .def_prop_ro("is_cuda", &Device::is_cuda, "Whether it is a GPU.")
        .def_prop_ro("properties", &device_properties,
                     nb::sig("def properties(self, /) -> dict[str, typing.Any]"),
                     "A dict of what the driver says of the device.")
        .def_prop_ro(
            "memory",
            [](Device& d) {
                const MemoryInfo memory = d.driver().memory_info();
                return nb::make_tuple(memory.free_bytes, memory.total_bytes);
            },
            nb::sig("def memory(self, /) -> tuple[int, int]"),
            "(free, total) device memory in bytes, as the driver counts it.")
        .def("synchronize", &Device::synchronize, nb::call_guard<Unlocked>(),
             "Waits for all work on the device.")
        .def("__str__", [](Device& d) { return d.name(); })
        .def("__repr__", [](Device& d) { return str("Device('", d.name(), "': ", d.info().name, ")"); })
        .def(
            "__eq__",
            [](Device& d, nb::handle other) {
                if (nb::isinstance<nb::str>(other)) return nb::cast<std::string>(other) == d.name();
                return nb::isinstance<Device>(other) && &nb::cast<Device&>(other) == &d;
            },
            nb::arg("other").none())
        .def("__hash__", [](Device& d) { return nb::hash(nb::str(d.name().c_str())); });
    m.def(
        "device", [](DeviceArg name) -> Device& { return read_device(name); },
        nb::arg("name").none() = nb::none(), nb::rv_policy::reference,
        "The device of that name: 'cpu', 'cuda' or 'cuda:1'. None is the calling thread's current device.\n\n"
        "Raises InvalidValueError for an unknown name and UnsupportedError, with the reason, where there is "
        "no GPU.");
    m.def(
        "set_device", [](nb::handle name) { set_device(read_device(name)); }, nb::arg("device"),
        "Makes a device the calling thread's current one.");
    m.def("is_cuda_available", [] { return cuda_device_count() > 0; }, "Whether a usable GPU is here.");
    m.def("cuda_device_count", &cuda_device_count, "The number of usable GPUs.");
    m.def("why_no_cuda", &why_no_cuda, "Why no GPU can be used here; an empty string when one can.");
    m.def(
        "synchronize",
        [](DeviceArg device) {
            Device& d = read_device(device);
            const Unlocked unlocked;
            d.synchronize();
        },
        nb::arg("device").none() = nb::none(), "Waits for all work on a device.");
}

void bind_stream(nb::module_& m) {
    nb::class_<PyStream>(
        m, "Stream",
        "An order of work on a device. `with stream:` makes it current for the calling thread.\n\n"
        "Arrays order themselves: work that uses an array on one stream waits for the work on\n"
        "others that it depends on.")
        .def(
            "__init__",
            [](PyStream* self, int priority, DeviceArg device) {
                Device& on = read_device(device);
                const Unlocked unlocked;  // may wait for a partition that is being resized
                new (self) PyStream{Stream::create(on, priority)};
            },
            nb::kw_only(), nb::arg("priority") = 0, nb::arg("device").none() = nb::none(),
            "priority: 0 is normal, smaller is more urgent; the device's range is in its properties.")
        .def(
            "synchronize", [](PyStream& s) { s.stream->synchronize(); }, nb::call_guard<Unlocked>(),
            "Waits for the stream's work.")
        .def_prop_ro(
            "is_done", [](PyStream& s) { return s.stream->query(); }, "Whether all its work is done.")
        .def_prop_ro(
            "priority", [](PyStream& s) { return s.stream->priority(); }, "As given at creation.")
        .def_prop_ro(
            "device", [](PyStream& s) -> Device& { return s.stream->device(); }, nb::rv_policy::reference,
            "The stream's device.")
        .def_prop_ro(
            "handle", [](PyStream& s) { return reinterpret_cast<std::uintptr_t>(s.stream->handle()); },
            "The driver's stream (a CUstream) as an integer, for other libraries.")
        .def(
            "wait", [](PyStream& s, PyStream& other) { s.stream->wait(*other.stream); }, nb::arg("other"),
            "Later work here waits for what `other` holds now. The host does not wait.")
        .def(
            "wait", [](PyStream& s, Event& event) { s.stream->wait(event); }, nb::arg("event"),
            "Later work here waits for the event. The host does not wait.")
        .def(
            "__enter__",
            [](nb::handle self) {
                enter_scope(nb::cast<PyStream&>(self).stream);
                return nb::borrow(self);
            },
            nb::sig("def __enter__(self) -> Stream"))
        .def(
            "__exit__", [](PyStream& s, nb::args) { leave_scope("Stream", s.stream); },
            nb::sig("def __exit__(self, *args: object) -> None"))
        .def(
            "__eq__",
            [](PyStream& s, nb::handle other) {
                return nb::isinstance<PyStream>(other) && nb::cast<PyStream&>(other).stream == s.stream;
            },
            nb::arg("other").none())
        .def("__hash__", [](PyStream& s) { return s.stream->id(); });
    m.def(
        "current_stream", [](DeviceArg device) { return PyStream{current_stream(read_device(device))}; },
        nb::arg("device").none() = nb::none(), "The calling thread's stream on a device.");

    nb::class_<Event>(m, "Event", "A point in a stream's work.")
        .def(
            "__init__",
            [](Event* self, bool timing, DeviceArg device) { new (self) Event(read_device(device), timing); },
            nb::kw_only(), nb::arg("timing") = false, nb::arg("device").none() = nb::none(),
            "timing: whether elapsed_ms may be asked of it.")
        .def(
            "record", [](Event& e, StreamArg stream) { e.record(*read_stream(stream, e.device())); },
            nb::arg("stream").none() = nb::none(),
            "Marks the point that `stream` (default: the current one) has reached.")
        .def_prop_ro("is_done", &Event::query, "Whether it was reached, or never recorded.")
        .def("synchronize", &Event::synchronize, nb::call_guard<Unlocked>(), "Waits until it is reached.")
        .def("elapsed_ms", &Event::elapsed_ms, nb::arg("start"),
             "Milliseconds of device time from `start` to this event; both made with timing=True and "
             "reached.");
}

void bind_graph(nb::module_& m) {
    nb::class_<PyGraph>(
        m, "Graph",
        "Work captured once and launched many times as one piece:\n\n"
        "    graph = gp.Graph()\n    with graph:\n        y = gp.tanh(x) * 2   # recorded, not run\n"
        "    graph.launch()           # now y holds the result\n\n"
        "Arrays made inside live in the graph's own memory; each launch writes them anew.")
        .def(
            "__init__",
            [](PyGraph* self, DeviceArg device) {
                Device& on = read_device(device);
                const Unlocked unlocked;  // as for a stream
                new (self) PyGraph{Stream::create(on)};
            },
            nb::kw_only(), nb::arg("device").none() = nb::none())
        .def(
            "__enter__",
            [](nb::handle self) {
                PyGraph& g = nb::cast<PyGraph&>(self);
                if (g.graph) {
                    throw error(ErrorKind::value, {.call = "Graph",
                                                   .expected = "a graph that was not captured yet",
                                                   .got = "one that was",
                                                   .fix = "make a new Graph"});
                }
                // What the captured work reads may still be under way on the current stream.
                const auto& outer = current_stream(g.stream->device());
                if (outer->capture() == nullptr) g.stream->wait(*outer);
                g.graph = Graph::begin(g.stream);
                enter_scope(g.stream);
                return nb::borrow(self);
            },
            nb::sig("def __enter__(self) -> Graph"))
        .def(
            "__exit__",
            [](PyGraph& g, nb::handle type, nb::handle, nb::handle) {
                leave_scope("Graph", g.stream);
                if (!g.graph) return;  // a further end of an abandoned capture
                if (type.is_none()) {
                    g.graph->end();
                } else {
                    g.graph->abandon();
                    g.graph.reset();
                }
            },
            nb::arg("type").none(), nb::arg("value").none(), nb::arg("traceback").none())
        .def(
            "launch",
            [](PyGraph& g) {
                if (!g.graph) {
                    throw error(ErrorKind::value, {.call = "Graph.launch",
                                                   .expected = "a captured graph",
                                                   .got = "an empty one",
                                                   .fix = "capture work with `with graph:` first"});
                }
                run_on(g.graph->device(), [&] { g.graph->launch(current_stream(g.graph->device())); });
            },
            "Queues the captured work on the current stream.")
        .def_prop_ro(
            "node_count", [](PyGraph& g) { return g.graph ? g.graph->node_count() : 0; },
            "The pieces of work in the graph.");
}

}  // namespace

void enter_scope(const std::shared_ptr<Stream>& stream) {
    scopes.push_back({stream, set_current_stream(stream)});
}

// Generators may leave their scopes in another order than they entered them: an inner one that stays leads
// back to what was before this one.
void leave_scope(const char* call, const std::shared_ptr<Stream>& stream) {
    const auto left = std::find_if(scopes.rbegin(), scopes.rend(),
                                   [&](const Scope& scope) { return scope.stream == stream; });
    if (left == scopes.rend()) {
        throw error(ErrorKind::value, {.call = call,
                                       .expected = "the end of a scope that this thread has entered",
                                       .got = "that of none"});
    }
    const auto inner = std::find_if(left.base(), scopes.end(), [&](const Scope& scope) {
        return &scope.stream->device() == &stream->device();
    });
    if (inner == scopes.end()) {
        set_current_stream(std::move(left->previous));
    } else {
        inner->previous = std::move(left->previous);
    }
    scopes.erase(std::next(left).base());
}

nb::object to_python(const std::shared_ptr<Stream>& stream) { return nb::cast(PyStream{stream}); }

std::shared_ptr<Stream> read_stream(nb::handle value, Device& device) {
    if (value.is_none()) return current_stream(device);
    if (nb::isinstance<PyStream>(value)) return nb::cast<PyStream&>(value).stream;
    throw error(ErrorKind::type, {.call = "stream", .expected = "a pygpukit Stream", .got = kind_of(value)});
}

void bind_runtime(nb::module_& m) {
    bind_device(m);
    bind_stream(m);
    bind_graph(m);
}

}  // namespace gpk::python
