// Pacing and dispatch: gp.KernelPacingEngine, gp.KernelDispatcher and their settings.
#include "bindings/pacing.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>

#include <chrono>
#include <cmath>
#include <optional>
#include <utility>

#include "base/log.hpp"
#include "runtime/tenant.hpp"
#include "scheduler/dispatch_queue.hpp"
#include "scheduler/pacing.hpp"

namespace gpk::python {

namespace {

std::int64_t read_seconds(const char* call, const char* argument, double seconds) {
    constexpr double kMost = 9e9;
    if (seconds >= 0 && seconds <= kMost) return std::llround(seconds * 1e9);
    throw error(
        ErrorKind::value,
        {.call = call, .argument = argument, .expected = "seconds, from 0 to 9e9", .got = str(seconds)});
}

double seconds_of(std::int64_t ns) { return static_cast<double>(ns) / 1e9; }

struct PyPacingConfig {
    PacingConfig config;
};

struct PyEngine {
    Device* device;
    std::shared_ptr<KernelPacingEngine> engine;
    std::shared_ptr<Tenant> tenant;
};

void bind_slicing(nb::module_& m) {
    nb::class_<SliceConfig>(
        m, "SliceConfig",
        "How long one launch may be, for a partition (`gp.partition(slicing=...)`) or a KernelPacingEngine\n"
        "whose long work is to leave gaps:\n\n"
        "    with gp.partition(qos=\"best_effort\", slicing=gp.SliceConfig(max_time=200e-6)):\n"
        "        c = a @ b   # as many launches as it takes; the same bits as in one\n\n"
        "What is cut: matrix products and attention over more than 8 tokens. Nothing else.")
        .def(
            "__init__",
            [](SliceConfig* self, double max_time) {
                const SliceConfig config{read_seconds("SliceConfig", "max_time", max_time)};
                check(config);
                new (self) SliceConfig(config);
            },
            nb::arg("max_time"),
            "max_time: seconds of device time, 1e-6 to 60, that a launch is expected to take at the most: "
            "as\n"
            "measured, before that as its bytes and operations let one expect. A launch keeps at least one\n"
            "block for each SM, so it may be longer.")
        .def_prop_ro(
            "max_time", [](const SliceConfig& self) { return seconds_of(self.max_ns); }, "In seconds.")
        .def(
            "__eq__",
            [](const SliceConfig& a, nb::handle b) {
                return nb::isinstance<SliceConfig>(b) && nb::cast<SliceConfig&>(b) == a;
            },
            nb::arg("other").none())
        .def("__hash__", [](const SliceConfig& self) { return std::hash<std::int64_t>()(self.max_ns); })
        .def("__repr__", [](const SliceConfig& self) {
            return str("SliceConfig(max_time=", seconds_of(self.max_ns), ")");
        });
}

void bind_pacing_engine(nb::module_& m) {
    nb::class_<PyPacingConfig>(m, "PacingConfig", "What a KernelPacingEngine holds work to.")
        .def(
            "__init__",
            [](PyPacingConfig* self, double time_share, double bandwidth_share, double device_bandwidth,
               bool is_protected, double queue_ahead, double max_hold, double burst,
               std::optional<SliceConfig> slicing) {
                const char* const call = "PacingConfig";
                const PacingConfig config{.time_share = time_share,
                                          .bandwidth_share = bandwidth_share,
                                          .device_bandwidth = device_bandwidth,
                                          .is_protected = is_protected,
                                          .queue_ahead_ns = read_seconds(call, "queue_ahead", queue_ahead),
                                          .max_hold_ns = read_seconds(call, "max_hold", max_hold),
                                          .burst_ns = read_seconds(call, "burst", burst),
                                          .slicing = slicing.value_or(SliceConfig())};
                PacingConfig checked = config;
                if (checked.device_bandwidth == 0)
                    checked.device_bandwidth = 1;  // the engine asks its device
                check(checked);
                new (self) PyPacingConfig{config};
            },
            nb::kw_only(), nb::arg("time_share") = 0.0, nb::arg("bandwidth_share") = 0.0,
            nb::arg("device_bandwidth") = 0.0, nb::arg("is_protected") = false,
            nb::arg("queue_ahead") = 50e-6, nb::arg("max_hold") = 2e-3, nb::arg("burst") = 5e-3,
            nb::arg("slicing") = nb::none(),
            "time_share: of device time, as measured; bandwidth_share: of device_bandwidth (bytes a second; "
            "0:\n"
            "as the device says), by the bytes that work declares; 0 for no limit. is_protected: others' "
            "work is\n"
            "held while this one has work in flight. For the others: queue_ahead, the most device time "
            "(seconds)\n"
            "that is queued and not done, and max_hold, after which held work gets that much all the same.\n"
            "burst: how far (seconds) work may be behind its share and still make up for it. slicing: a\n"
            "SliceConfig, for long work in several launches.");
    nb::class_<PyEngine>(
        m, "KernelPacingEngine",
        "Paces the work of the streams that it makes:\n\n"
        "    engine = gp.KernelPacingEngine(gp.PacingConfig(time_share=0.25))\n"
        "    with engine.stream():\n        y = gp.tanh(x)   # waits where it is ahead of its share")
        .def(
            "__init__",
            [](PyEngine* self, const PyPacingConfig& config, DeviceArg device) {
                Device& on = read_device(device);
                PacingConfig settings = config.config;
                if (settings.device_bandwidth == 0) settings.device_bandwidth = on.info().memory_bandwidth;
                auto engine = std::make_shared<KernelPacingEngine>(on, settings);
                auto tenant =
                    Tenant::create({.name = "paced", .governor = engine}, current_stream(on)->tenant());
                engine->protect(tenant);
                new (self) PyEngine{&on, std::move(engine), std::move(tenant)};
            },
            nb::arg("config"), nb::kw_only(), nb::arg("device").none() = nb::none())
        .def(
            "stream",
            [](PyEngine& self, int priority) {
                std::shared_ptr<Stream> stream;
                {
                    const Unlocked unlocked;
                    stream = Stream::create_for(self.tenant, *self.device, priority);
                }
                return to_python(stream);
            },
            nb::kw_only(), nb::arg("priority") = 0,
            nb::sig("def stream(self, *, priority: int = 0) -> Stream"), "A stream whose work it paces.")
        .def(
            "stats",
            [](PyEngine& self) {
                PacingStats stats;
                {
                    const Unlocked unlocked;
                    stats = self.engine->stats();
                }
                return to_python(stats);
            },
            nb::sig("def stats(self) -> dict[str, float]"),
            "What was launched and how long it was kept waiting; `sliced`: pieces of work that went in "
            "several\n"
            "launches. Nothing is counted while there is no share, no slicing and nobody to be protected.");
}

// The last holder of a dispatcher waits for its thread, which may want Python's lock.
struct PyDispatcher {
    std::shared_ptr<KernelDispatcher> dispatcher;

    explicit PyDispatcher(std::shared_ptr<KernelDispatcher> dispatcher) : dispatcher(std::move(dispatcher)) {}
    PyDispatcher(const PyDispatcher&) = delete;
    PyDispatcher& operator=(const PyDispatcher&) = delete;
    PyDispatcher(PyDispatcher&&) = default;
    ~PyDispatcher() {
        if (dispatcher.use_count() != 1 || PyGILState_Check() == 0) return;
        const Unlocked unlocked;
        dispatcher.reset();
    }
};

struct PyLaunch {
    PyDispatcher owner;
    KernelDispatcher::Launch launch;

    KernelDispatcher& dispatcher() const { return *owner.dispatcher; }
};

// A Python object that any thread may let go of.
std::shared_ptr<nb::object> shared(nb::object object) {
    return {new nb::object(std::move(object)), [](nb::object* kept) {
                if (!Py_IsInitialized()) return;  // nothing is left to let go of it
                const nb::gil_scoped_acquire locked;
                delete kept;
            }};
}

// What a callable raised, to be raised by everyone who waits for it.
class Raised : public std::exception {
   public:
    explicit Raised(nb::object exception) : exception_(shared(std::move(exception))) {}
    [[noreturn]] void raise() const {
        PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception_->ptr())), exception_->ptr());
        throw nb::python_error();
    }

   private:
    std::shared_ptr<nb::object> exception_;
};

std::function<void()> callable_of(nb::callable work) {
    return [kept = shared(std::move(work))] {
        std::optional<Raised> raised;
        with_python([&] {
            try {
                (*kept)();
            } catch (nb::python_error& failure) {
                raised.emplace(nb::borrow(failure.value()));
            } catch (const std::exception& failure) {  // of ours, that a callable in C++ throws
                raised.emplace(nb::module_::import_("builtins").attr("RuntimeError")(failure.what()));
            }
        });
        if (raised) throw Raised(*raised);
    };
}

void at_exit() {
    constexpr std::chrono::seconds kLongest{10};  // as of schedulers' tasks
    const Unlocked unlocked;
    if (!end_dispatch_threads(kLongest)) {
        log(LogLevel::warning, "a dispatcher's callable has not returned by the end of the program");
    }
}

void bind_dispatcher(nb::module_& m) {
    nb::module_::import_("atexit").attr("register")(nb::cpp_function(&at_exit));
    nb::class_<DispatchConfig>(m, "LaunchConfig", "The limits of a KernelDispatcher.")
        .def(
            "__init__",
            [](DispatchConfig* self, int max_outstanding, double max_outstanding_time, double watchdog) {
                const char* const call = "LaunchConfig";
                const DispatchConfig config{max_outstanding,
                                            read_seconds(call, "max_outstanding_time", max_outstanding_time),
                                            read_seconds(call, "watchdog", watchdog)};
                check(config);
                new (self) DispatchConfig(config);
            },
            nb::kw_only(), nb::arg("max_outstanding") = 64, nb::arg("max_outstanding_time") = 0.0,
            nb::arg("watchdog") = 0.0,
            "max_outstanding: launches on the device and not done, 1 to 65536; max_outstanding_time: seconds "
            "of\n"
            "device time, as earlier launches of the same names took (0: no limit); watchdog: seconds after "
            "which\n"
            "a launch that does not end is told (0: never).");
    nb::class_<PyLaunch>(m, "Launch", "One launch of a KernelDispatcher.")
        .def_prop_ro(
            "name", [](PyLaunch& l) { return l.launch->name(); }, "As given to submit.")
        .def_prop_ro(
            "state",
            [](PyLaunch& l) {
                const Unlocked unlocked;
                return std::string(to_string(l.dispatcher().state(l.launch)));
            },
            "'queued', 'launched', 'completed', 'failed' or 'cancelled'.")
        .def_prop_ro(
            "device_seconds",
            [](PyLaunch& l) -> std::optional<double> {
                std::int64_t took = -1;
                {
                    const Unlocked unlocked;
                    took = l.dispatcher().took_ns(l.launch);
                }
                return took < 0 ? std::nullopt : std::optional(seconds_of(took));
            },
            "What it took on the device; None until it is completed. Measured, or, of a short launch, what\n"
            "earlier ones of its name took.")
        .def(
            "wait",
            [](PyLaunch& l, std::optional<double> timeout) {
                const std::int64_t ns = timeout ? read_seconds("Launch.wait", "timeout", *timeout) : -1;
                try {
                    const Unlocked unlocked;
                    return l.dispatcher().wait(l.launch, ns);
                } catch (const Raised& failure) {
                    failure.raise();
                }
            },
            nb::arg("timeout") = nb::none(),
            "Waits until it has ended; False where `timeout` seconds passed first. Raises its failure, and\n"
            "DriverError where the watchdog found that a kernel does not end: that cannot be stopped.")
        .def(
            "cancel",
            [](PyLaunch& l) {
                const Unlocked unlocked;
                return l.dispatcher().cancel(l.launch);
            },
            "True where it was still queued; what is on the device cannot be taken back.");
    nb::class_<PyDispatcher>(
        m, "KernelDispatcher",
        "Launches in order, on a stream of its own, held back while too much of them is outstanding.\n\n"
        "    dispatcher = gp.KernelDispatcher(gp.LaunchConfig(max_outstanding=4))\n"
        "    launch = dispatcher.submit(lambda: kernel(x, n=100), name=\"kernel\")\n    launch.wait()\n\n"
        "What is queued goes to the device when there is room, whether anybody waits or not: its callable "
        "is\n"
        "then called on a thread of the dispatcher's or on one that asks. What is queued when nobody holds "
        "the\n"
        "dispatcher nor a launch of it any more, and at the end of the program, is cancelled. In a forked\n"
        "child every call raises UnsupportedError.")
        .def(
            "__init__",
            [](PyDispatcher* self, std::optional<DispatchConfig> config, DeviceArg device) {
                Device& on = read_device(device);
                const Unlocked unlocked;
                new (self)
                    PyDispatcher{std::make_shared<KernelDispatcher>(on, config.value_or(DispatchConfig{}))};
            },
            nb::arg("config") = nb::none(), nb::kw_only(), nb::arg("device").none() = nb::none())
        .def(
            "submit",
            [](PyDispatcher& self, nb::callable work, std::string name) {
                const auto dispatcher = self.dispatcher;
                std::function<void()> call = callable_of(std::move(work));
                const Unlocked unlocked;
                auto launch = dispatcher->submit(std::move(name), std::move(call));
                return PyLaunch{PyDispatcher(dispatcher), std::move(launch)};
            },
            nb::arg("work"), nb::arg("name") = "launch",
            nb::sig("def submit(self, work: collections.abc.Callable[[], object], name: str = 'launch') -> "
                    "Launch"),
            "Calls `work` now, or later where the limits say so, with the dispatcher's stream current. "
            "Raises\n"
            "DeviceLostError where the device is lost.")
        .def(
            "poll",
            [](PyDispatcher& self) {
                const auto dispatcher = self.dispatcher;
                const Unlocked unlocked;
                dispatcher->poll();
            },
            "Looks what is done, and launches what may go.")
        .def(
            "synchronize",
            [](PyDispatcher& self) {
                const auto dispatcher = self.dispatcher;
                const Unlocked unlocked;
                dispatcher->synchronize();
            },
            "Waits until nothing is queued and nothing outstanding.")
        .def(
            "stats",
            [](PyDispatcher& self) {
                DispatchStats stats;
                {
                    const Unlocked unlocked;
                    stats = self.dispatcher->stats();
                }
                nb::dict out;
                out["submitted"] = stats.submitted;
                out["completed"] = stats.completed;
                out["failed"] = stats.failed;
                out["cancelled"] = stats.cancelled;
                out["overdue"] = stats.overdue;
                out["queued"] = stats.queued;
                out["outstanding"] = stats.outstanding;
                out["outstanding_seconds"] = seconds_of(stats.outstanding_ns);
                return out;
            },
            nb::sig("def stats(self) -> dict[str, float]"),
            "Counts of its launches, by what became of them.");
}

}  // namespace

nb::dict to_python(const PacingStats& stats) {
    nb::dict out;
    out["launches"] = stats.launches;
    out["waits"] = stats.waits;
    out["waited_seconds"] = seconds_of(stats.waited_ns);
    out["measured"] = stats.measured;
    out["sliced"] = stats.sliced;
    out["device_seconds"] = seconds_of(stats.device_ns);
    out["bytes"] = stats.bytes;
    out["outstanding_seconds"] = seconds_of(stats.outstanding_ns);
    return out;
}

void bind_pacing(nb::module_& m) {
    bind_slicing(m);
    bind_pacing_engine(m);
    bind_dispatcher(m);
}

}  // namespace gpk::python
