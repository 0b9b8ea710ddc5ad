// The trace and the metrics.
#include "bindings/common.hpp"

#include <nanobind/stl/vector.h>

#include "base/utf8.hpp"
#include "observe/metrics.hpp"
#include "observe/profiler.hpp"
#include "runtime/trace.hpp"

namespace gpk::python {

namespace {

// "all" is every device, also those opened later.
TraceOptions read_options(nb::handle device, std::size_t max_events, bool device_times) {
    const bool all = nb::isinstance<nb::str>(device) && nb::cast<std::string>(device) == "all";
    return {
        .only = all ? nullptr : &read_device(device), .max_events = max_events, .device_times = device_times};
}

nb::tuple to_tuple(const Dim3& dims) { return nb::make_tuple(dims.x, dims.y, dims.z); }

nb::dict to_dict(const TraceEntry& entry) {
    static constexpr const char* kKinds[] = {"kernel",         "copy_to_device", "copy_to_host",
                                             "copy_on_device", "fill",           "graph"};
    nb::dict each;
    each["kind"] = kKinds[static_cast<int>(entry.kind)];
    const std::string name = valid_utf8(entry.name);
    each["name"] = name;
    each["stream"] = entry.stream_id;
    each["grid"] = to_tuple(entry.config.grid);
    each["block"] = to_tuple(entry.config.block);
    each["flops"] = entry.cost.flops;
    each["bytes"] = entry.cost.bytes;
    each["start_ns"] = entry.start_ns;
    each["end_ns"] = entry.end_ns;
    if (entry.device_start_ns != 0) {
        each["device_start_ns"] = entry.device_start_ns;
        each["device_end_ns"] = entry.device_end_ns;
    }
    return each;
}

}  // namespace

void bind_observe(nb::module_& m) {
    nb::class_<Trace>(m, "Trace",
                      "Records what happens on a device, in memory, from its creation until stop().\n\n"
                      "    with gp.Trace() as trace:\n        c = a + b\n    trace.entries[0]['name']\n\n"
                      "gp.trace(path) records into a file.")
        .def(
            "__init__",
            [](Trace* self, DeviceArg device, std::size_t max_events, bool device_times) {
                new (self) Trace(read_options(device, max_events, device_times));
            },
            nb::kw_only(), nb::arg("device").none() = nb::none(),
            nb::arg("max_events") = std::size_t{1} << 20, nb::arg("device_times") = false,
            "device: None is the current one; 'all' is every device, also those opened later.\n"
            "max_events: what is kept, at most some 150 bytes each; later events are counted in "
            "`dropped`.\n"
            "device_times: also when the device ran each piece of work, by events around it. That costs a\n"
            "microsecond or two a launch and keeps kernels from overlapping; stop() waits for the device.\n\n"
            "Raises InvalidValueError for max_events of 0 or more than 2**32.")
        .def("stop", &Trace::stop, nb::call_guard<Unlocked>(), "Ends the recording; what was recorded stays.")
        .def(
            "__enter__", [](nb::handle self) { return nb::borrow(self); },
            nb::sig("def __enter__(self) -> Trace"))
        .def(
            "__exit__",
            [](Trace& t, nb::args) {
                const Unlocked unlocked;
                t.stop();
            },
            nb::sig("def __exit__(self, *args: object) -> None"))
        .def_prop_ro(
            "entries",
            [](Trace& t) {
                std::vector<TraceEntry> entries;
                {
                    const Unlocked unlocked;
                    entries = t.entries();
                }
                nb::list out;
                for (const TraceEntry& entry : entries) out.append(to_dict(entry));
                return out;
            },
            nb::sig("def entries(self, /) -> list[dict[str, typing.Any]]"),
            "One dict a piece of work that was queued, in the order of the calls; start_ns and "
            "end_ns are the host's, around the call; device_start_ns and device_end_ns, where they were "
            "measured, the device's, on the same clock.")
        .def(
            "__len__", [](Trace& t) { return t.event_count(); }, nb::call_guard<Unlocked>(),
            "What was recorded: work, waits, admissions, evictions and so on.")
        .def_prop_ro("dropped", &Trace::dropped, "Events beyond max_events.")
        .def(
            "write", &Trace::write, nb::arg("path"), nb::call_guard<Unlocked>(),
            "Writes what was recorded for Perfetto (ui.perfetto.dev) or chrome://tracing, into a new file "
            "that "
            "then takes the place of `path`.\n\nRaises FileFormatError where it cannot be written; `path` is "
            "then as it was.");
    m.def("attach_profiler", &attach_profiler,
          "Gives a profiler that injects NVTX (NVTX_INJECTION64_PATH) a range for each span.");
    m.def(
        "runtime_folder",
        [] {
            std::string failed;
            std::string folder = platform::runtime_folder(&failed);
            if (!folder.empty()) return folder;
            throw error(ErrorKind::unsupported, {.call = "runtime folder",
                                                 .expected = "a folder that only this user may write to",
                                                 .got = failed,
                                                 .fix = "set PYGPUKIT_RUNTIME_DIR"});
        },
        "Where this user's programs keep what they share while they run; made where there is none.");
    m.def("metrics", &metrics_text, nb::call_guard<Unlocked>(),
          "What was counted so far in this process, as Prometheus text: seconds and bytes, with the labels "
          "device, partition and qos.");
}

}  // namespace gpk::python
