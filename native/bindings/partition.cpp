// Partitions: gp.partition, gp.PartitionManager and what they are told.
#include "bindings/pacing.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <vector>

#include "scheduler/partition.hpp"

namespace gpk::python {

namespace {

struct PyManager {
    std::shared_ptr<PartitionManager> manager;
};

struct PyPartition {
    std::shared_ptr<Partition> partition;
    std::shared_ptr<PartitionManager> manager;

    PyPartition(std::shared_ptr<Partition> partition, std::shared_ptr<PartitionManager> manager)
        : partition(std::move(partition)), manager(std::move(manager)) {}
    PyPartition(const PyPartition&) = delete;
    PyPartition& operator=(const PyPartition&) = delete;
    PyPartition(PyPartition&&) = default;
    // The last holder of an anonymous one waits for its work.
    ~PyPartition() {
        if (!partition) return;
        if (PyGILState_Check() == 0) return;
        const Unlocked unlocked;
        partition.reset();
        manager.reset();
    }
};

// What `with partition:` has entered on this thread, the innermost last.
struct Inside {
    std::shared_ptr<Partition> partition;
    std::shared_ptr<Stream> stream;
};
thread_local std::vector<Inside> inside;

void enter_partition(PyPartition& p) {
    std::shared_ptr<Stream> stream;
    {
        const Unlocked unlocked;
        stream = p.partition->enter();
    }
    enter_scope(stream);
    inside.push_back({p.partition, std::move(stream)});
}

void leave_partition(PyPartition& p) {
    const auto left = std::find_if(inside.rbegin(), inside.rend(),
                                   [&](const Inside& each) { return each.partition == p.partition; });
    if (left == inside.rend()) {
        throw error(ErrorKind::value, {.call = "partition",
                                       .expected = "the end of a scope that this thread has entered",
                                       .got = "that of none"});
    }
    const Inside ended = *left;
    inside.erase(std::next(left).base());
    leave_scope("partition", ended.stream);
    ended.partition->leave(ended.stream);
}

nb::dict guarantees_of(PyPartition& p) {
    nb::dict out;
    for (const Guarantee& each : p.partition->guarantees()) {
        nb::dict one;
        one["level"] = std::string(to_string(each.level));
        one["mechanism"] = each.mechanism;
        one["reason"] = each.reason;
        out[each.resource.c_str()] = one;
    }
    return out;
}

nb::dict stats_of(PyPartition& p) {
    const Partition& partition = *p.partition;
    const PartitionLimits limits = partition.limits();
    const PartitionUsage usage = partition.usage();
    PacingStats pacing;
    {
        const Unlocked unlocked;
        pacing = partition.pacing();
    }
    nb::dict out;
    out["alive"] = partition.alive();
    out["qos"] = std::string(to_string(limits.qos()));
    out["memory_limit"] = limits.memory();
    out["memory_used"] = usage.memory_used;
    out["memory_peak"] = usage.memory_peak;
    out["compute_asked"] = limits.compute();
    out["compute"] = partition.compute();
    out["multiprocessors"] = partition.multiprocessors();
    out["sm_groups"] = partition.sm_groups();
    out["bandwidth"] = limits.bandwidth();
    out["stream_limit"] = limits.streams();
    out["streams"] = usage.streams;
    out["scopes"] = usage.entered;
    out["pacing"] = to_python(pacing);
    return out;
}

PartitionLimits read_limits(nb::handle memory, std::optional<double> compute, std::optional<double> bandwidth,
                            std::optional<std::int64_t> streams, nb::handle qos,
                            std::optional<SliceConfig> slicing) {
    PartitionLimits limits;
    if (slicing) limits.slicing(*slicing);
    if (!memory.is_none()) limits.memory(read_bytes("partition", "memory", memory));
    if (compute) limits.compute(*compute);
    if (bandwidth) limits.bandwidth(*bandwidth);
    if (streams) limits.streams(*streams);
    return limits.qos(read_qos("PartitionLimits", qos));
}

std::shared_ptr<PartitionManager> own_manager(Device& device) {
    // Lives as long as the device.
    return {std::shared_ptr<void>(), &PartitionManager::of(device)};
}

std::string slicing_text(const SliceConfig& config) {
    if (config == SliceConfig()) return "None";
    return str("SliceConfig(max_time=", static_cast<double>(config.max_ns) / 1e9, ")");
}

PartitionLimits& limits_of(nb::handle self) { return nb::cast<PartitionLimits&>(self); }

void bind_limits(nb::module_& m) {
    nb::class_<PartitionLimits>(
        m, "PartitionLimits",
        "What a partition is given. Each method sets one limit and returns the object itself:\n\n"
        "    gp.PartitionLimits().memory(\"4GiB\").compute(0.5).bandwidth(0.5)\n\n"
        "What is not set is not limited.")
        .def(nb::init<>())
        .def(
            "memory",
            [](nb::handle self, BytesArg bytes) {
                limits_of(self).memory(read_bytes("PartitionLimits", "memory", bytes));
                return nb::borrow(self);
            },
            nb::arg("bytes"), nb::sig("def memory(self, bytes: int | str) -> PartitionLimits"),
            "Bytes of device memory, or text such as \"4GiB\". InvalidValueError for 0 and from 2**63.")
        .def(
            "compute",
            [](nb::handle self, double share) {
                limits_of(self).compute(share);
                return nb::borrow(self);
            },
            nb::arg("share"), nb::sig("def compute(self, share: float) -> PartitionLimits"),
            "A share of the device's SMs, above 0 and at most 1: whole groups of them, at least one.\n"
            "The partition's stats() say how many it was given.")
        .def(
            "bandwidth",
            [](nb::handle self, double share) {
                limits_of(self).bandwidth(share);
                return nb::borrow(self);
            },
            nb::arg("share"), nb::sig("def bandwidth(self, share: float) -> PartitionLimits"),
            "A share of the device's memory bandwidth, above 0 and at most 1.")
        .def(
            "streams",
            [](nb::handle self, std::int64_t count) {
                limits_of(self).streams(count);
                return nb::borrow(self);
            },
            nb::arg("count"), nb::sig("def streams(self, count: int) -> PartitionLimits"),
            "How many streams it may have, 1 to 4096.")
        .def(
            "qos",
            [](nb::handle self, nb::handle qos) {
                limits_of(self).qos(read_qos("PartitionLimits", qos));
                return nb::borrow(self);
            },
            nb::arg("qos"), nb::sig("def qos(self, qos: QosClass | str) -> PartitionLimits"),
            "'guaranteed' (the default: memory and bandwidth are promised to no one else), 'burstable' or\n"
            "'best_effort' (they are upper limits only); or a QosClass.")
        .def(
            "slicing",
            [](nb::handle self, const SliceConfig& config) {
                limits_of(self).slicing(config);
                return nb::borrow(self);
            },
            nb::arg("config"), nb::sig("def slicing(self, config: SliceConfig) -> PartitionLimits"),
            "How long one launch of its matrix products and attention may be.")
        .def(
            "__eq__",
            [](const PartitionLimits& a, nb::handle b) {
                return nb::isinstance<PartitionLimits>(b) && nb::cast<PartitionLimits&>(b) == a;
            },
            nb::arg("other").none())
        .def("__repr__", [](const PartitionLimits& limits) {
            return str("PartitionLimits(memory=", limits.memory(), ", compute=", limits.compute(),
                       ", bandwidth=", limits.bandwidth(), ", streams=", limits.streams(), ", qos='",
                       to_string(limits.qos()), "', slicing=", slicing_text(limits.slicing()), ")");
        });
    m.attr("PartitionLimits").attr("__hash__") = nb::none();
}

void bind_partition_class(nb::module_& m) {
    nb::class_<PyPartition>(
        m, "Partition",
        "A part of a device. `with partition:` makes a stream of it current on the thread, so that the work\n"
        "and the memory inside are the partition's.")
        .def_prop_ro(
            "id", [](PyPartition& p) { return p.partition->id(); }, "Its id in its manager.")
        .def_prop_ro(
            "name", [](PyPartition& p) { return p.partition->name(); }, "Its name, for people.")
        .def_prop_ro(
            "device", [](PyPartition& p) -> Device& { return p.partition->device(); },
            nb::rv_policy::reference, "Its device.")
        .def_prop_ro(
            "alive", [](PyPartition& p) { return p.partition->alive(); }, "False once it was destroyed.")
        .def_prop_ro(
            "limits", [](PyPartition& p) { return p.partition->limits(); }, "What was asked for: a copy.")
        .def("guarantees", &guarantees_of, nb::sig("def guarantees(self) -> dict[str, dict[str, str]]"),
             "For 'memory', 'compute', 'bandwidth', 'streams' and 'slicing' a dict: level ('enforced', "
             "'advisory' or\n"
             "'simulated', on this device and driver), mechanism and reason.")
        .def("stats", &stats_of, nb::sig("def stats(self) -> dict[str, typing.Any]"),
             "What it was given and what it uses: memory in bytes, SMs (`multiprocessors`, `sm_groups`),\n"
             "streams and open scopes; `pacing`, since the last resize, as KernelPacingEngine.stats().")
        .def(
            "resize",
            [](PyPartition& p, const PartitionLimits& limits) {
                const PartitionLimits wanted = limits;
                const Unlocked unlocked;
                p.manager->resize(*p.partition, wanted);
            },
            nb::arg("limits"),
            "Waits for the partition's work and gives it other limits; work that is launched meanwhile "
            "waits.\n"
            "Graphs captured before a change of its SMs must be captured again. Where it raises\n"
            "(OutOfMemoryError or UnsupportedError where the device has not so much left), nothing has "
            "changed.")
        .def(
            "__enter__",
            [](nb::handle self) {
                enter_partition(nb::cast<PyPartition&>(self));
                return nb::borrow(self);
            },
            nb::sig("def __enter__(self) -> Partition"))
        .def(
            "__exit__", [](PyPartition& p, nb::args) { leave_partition(p); },
            nb::sig("def __exit__(self, *args: object) -> None"))
        .def(
            "__eq__",
            [](PyPartition& p, nb::handle other) {
                return nb::isinstance<PyPartition>(other) &&
                       nb::cast<PyPartition&>(other).partition == p.partition;
            },
            nb::arg("other").none())
        .def("__hash__", [](PyPartition& p) { return reinterpret_cast<std::uintptr_t>(p.partition.get()); })
        .def("__repr__", [](PyPartition& p) {
            return str("Partition('", p.partition->name(), "' of ", p.partition->device().name(),
                       p.partition->alive() ? ")" : ", destroyed)");
        });
}

void bind_manager(nb::module_& m) {
    nb::class_<PartitionConfig>(m, "PartitionConfig", "What a PartitionManager may give.")
        .def(
            "__init__",
            [](PartitionConfig* self, BytesArg total_memory, DeviceArg device) {
                const std::size_t total =
                    total_memory.is_none() ? 0 : read_bytes("PartitionConfig", "total_memory", total_memory);
                if (total == 0 && !total_memory.is_none()) {
                    throw error(ErrorKind::value, {.call = "PartitionConfig",
                                                   .argument = "total_memory",
                                                   .expected = "at least 1 byte",
                                                   .got = "0"});
                }
                new (self) PartitionConfig{&read_device(device), total};
            },
            nb::arg("total_memory").none() = nb::none(), nb::arg("device").none() = nb::none(),
            nb::sig("def __init__(self, total_memory: int | str | None = None, device: Device | str | None = "
                    "None) -> None"),
            "total_memory: bytes, or text such as \"8GiB\"; None for all of the device's.");
    nb::class_<PyManager>(m, "PartitionManager",
                          "Divides a device. All managers, and all processes of a user, share one account of "
                          "what a device has\nleft, so nothing is promised twice.")
        .def(
            "__init__",
            [](PyManager* self, std::optional<PartitionConfig> config) {
                new (self) PyManager{std::make_shared<PartitionManager>(
                    config.value_or(PartitionConfig{&current_device(), 0}))};
            },
            nb::arg("config") = nb::none(),
            "Raises InvalidValueError where the device has less memory than config.total_memory.")
        .def(
            "create_partition",
            [](PyManager& self, std::string id, std::string name, std::optional<PartitionLimits> limits) {
                const Unlocked unlocked;
                return PyPartition(
                    self.manager->create(std::move(id), std::move(name), limits.value_or(PartitionLimits())),
                    self.manager);
            },
            nb::arg("id"), nb::arg("name") = "", nb::arg("limits") = nb::none(),
            "A new partition, kept until destroy(id). Raises InvalidValueError for an id in use,\n"
            "OutOfMemoryError and UnsupportedError, with who holds what, where not so much is left.")
        .def(
            "get",
            [](PyManager& self, const std::string& id) {
                return PyPartition(self.manager->get(id), self.manager);
            },
            nb::arg("id"), "The partition of that id; InvalidValueError where there is none.")
        .def(
            "list",
            [](PyManager& self) {
                nb::list out;
                for (auto& each : self.manager->list())
                    out.append(PyPartition(std::move(each), self.manager));
                return out;
            },
            nb::sig("def list(self) -> list[Partition]"), "Its partitions, by id.")
        .def(
            "resize",
            [](PyManager& self, const std::string& id, const PartitionLimits& limits) {
                const PartitionLimits wanted = limits;
                const Unlocked unlocked;
                self.manager->resize(*self.manager->get(id), wanted);
            },
            nb::arg("id"), nb::arg("limits"), "As Partition.resize.")
        .def(
            "destroy", [](PyManager& self, const std::string& id) { self.manager->destroy(id); },
            nb::arg("id"), nb::call_guard<Unlocked>(),
            "Waits for the partition's work and gives back what it had; arrays made in it live on. Raises\n"
            "UnsupportedError while some thread is inside `with partition:` or captures a graph in it.\n"
            "Later use of the partition raises UnsupportedError.")
        .def_prop_ro(
            "total_memory", [](PyManager& self) { return self.manager->total_memory(); }, "In bytes.")
        .def_prop_ro(
            "device", [](PyManager& self) -> Device& { return self.manager->device(); },
            nb::rv_policy::reference, "The device that it divides.");
}

nb::list ledger_entries() {
    std::vector<LedgerView> views;
    {
        const Unlocked unlocked;
        views = read_ledgers();
    }
    nb::list out;
    for (const LedgerView& view : views) {
        for (const LedgerEntry& entry : view.entries) {
            nb::dict each;
            each["device"] = view.device;
            each["pid"] = entry.owner.pid;
            each["name"] = entry.share.name;
            each["qos"] = std::string(to_string(entry.share.qos));
            each["memory_bytes"] = entry.share.memory_bytes;
            each["compute"] = entry.share.compute;
            each["bandwidth"] = entry.share.bandwidth;
            each["sm_groups"] = entry.share.groups;
            out.append(each);
        }
    }
    return out;
}

}  // namespace

void bind_partition(nb::module_& m) {
    bind_limits(m);
    bind_partition_class(m);
    bind_manager(m);
    m.def(
        "partition",
        [](BytesArg memory, std::optional<double> compute, std::optional<double> bandwidth,
           std::optional<std::int64_t> streams, nb::handle qos, std::optional<SliceConfig> slicing,
           std::string name, DeviceArg device) {
            Device& on = read_device(device);
            const PartitionLimits limits = read_limits(memory, compute, bandwidth, streams, qos, slicing);
            const Unlocked unlocked;
            auto manager = own_manager(on);
            return PyPartition(manager->create_anonymous(std::move(name), limits), manager);
        },
        nb::kw_only(), nb::arg("memory").none() = nb::none(), nb::arg("compute") = nb::none(),
        nb::arg("bandwidth") = nb::none(), nb::arg("streams") = nb::none(), nb::arg("qos") = "guaranteed",
        nb::arg("slicing") = nb::none(), nb::arg("name") = "", nb::arg("device").none() = nb::none(),
        nb::sig(
            "def partition(*, memory: int | str | None = None, compute: float | None = None, bandwidth: "
            "float | None = None, streams: int | None = None, qos: QosClass | str = 'guaranteed', slicing: "
            "SliceConfig | None = None, name: str = '', device: Device | str | None = None) -> Partition"),
        "A part of the device, for as long as somebody holds it:\n\n"
        "    with gp.partition(memory=\"4GiB\", compute=0.5):\n        c = a @ b\n\n"
        "The arguments are those of PartitionLimits. Its end waits for its work.");
    m.def("_ledger_entries", &ledger_entries, nb::sig("def _ledger_entries() -> list[dict[str, typing.Any]]"),
          "What the partitions of all of this user's processes have, one dict a partition.");
}

}  // namespace gpk::python
