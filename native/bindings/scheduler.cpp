// The scheduler: quality of service, admission, and the threads behind pygpukit.scheduler.
#include "scheduler/scheduler.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <chrono>
#include <cmath>
#include <limits>

#include "bindings/common.hpp"

namespace gpk::python {

namespace {

// Takes Python's lock on a thread of ours. Where the interpreter is gone, the thread has nothing left to do.
class Locked {
   public:
    Locked() {
        if (!Py_IsInitialized()) platform::wait_forever();
        try {
            state_ = PyGILState_Ensure();
        } catch (const abi::__forced_unwind&) {
            platform::wait_forever();
        }
    }
    ~Locked() { PyGILState_Release(state_); }
    Locked(const Locked&) = delete;
    Locked& operator=(const Locked&) = delete;

   private:
    PyGILState_STATE state_;
};

// A Python object that threads of ours may hold and let go of.
class Held {
   public:
    explicit Held(nb::handle object) : object_(object.inc_ref()) {}
    ~Held() {
        if (!Py_IsInitialized()) return;
        const Locked locked;
        object_.dec_ref();
    }
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;
    // With Python's lock. Calls it without arguments.
    nb::object call() const {
        try {
            return nb::steal(PyObject_CallNoArgs(object_.ptr()));
        } catch (const abi::__forced_unwind&) {
            platform::wait_forever();  // the interpreter ended meanwhile
        }
    }

   private:
    nb::handle object_;
};

// -- Reading arguments ----------------------------------------------------------------------------

std::size_t read_bytes_or(const char* call, const char* argument, nb::handle value, std::size_t otherwise) {
    return value.is_none() ? otherwise : read_bytes(call, argument, value);
}

// Seconds as nanoseconds; what is longer than a century is for ever.
std::int64_t read_seconds(const char* call, const char* argument, double seconds) {
    if (std::isnan(seconds) || seconds < 0) {
        throw error(
            ErrorKind::value,
            {.call = call, .argument = argument, .expected = "seconds, not negative", .got = str(seconds)});
    }
    return seconds > 3e9 ? kNever : static_cast<std::int64_t>(seconds * 1e9);
}

std::optional<std::chrono::nanoseconds> read_timeout(const char* call, std::optional<double> seconds) {
    if (!seconds) return std::nullopt;
    return std::chrono::nanoseconds(read_seconds(call, "timeout", std::max(*seconds, 0.0)));
}

std::size_t count_or_unlimited(std::optional<std::size_t> count) { return count.value_or(kUnlimited); }

// -- Errors ---------------------------------------------------------------------------------------

struct Mapping {
    TaskFault fault;
    const char* name;
    const char* doc;
};

constexpr std::array kMappings{
    Mapping{TaskFault::rejected, "TaskRejectedError",
            "The task can never run, or the queue is full. retry_after: seconds, or None."},
    Mapping{TaskFault::dependency, "TaskDependencyError",
            "Another task that this one waited for did not complete: cause_id."},
    Mapping{TaskFault::deadline, "TaskDeadlineError", "The task could not start before its deadline."},
    Mapping{TaskFault::cancelled, "TaskCancelledError", "The task was cancelled."},
    Mapping{TaskFault::shutdown, "TaskShutdownError", "The scheduler was shut down before the task started."},
    Mapping{TaskFault::raised, "TaskWaitError", "A wait for a task that could never end."},
};
PyObject* task_error;  // both owned for the process's life
PyObject* task_errors[kMappings.size()];

void set_task_error(const TaskError& failure) {
    PyObject* type = task_error;
    for (std::size_t i = 0; i < kMappings.size(); ++i) {
        if (kMappings[i].fault == failure.fault()) type = task_errors[i];
    }
    nb::object instance = nb::borrow(type)(failure.what());
    instance.attr("task_id") = failure.task();
    instance.attr("cause_id") = failure.cause() != 0 ? nb::cast(failure.cause()) : nb::none();
    instance.attr("reason") = std::string(to_string(failure.decision().reason));
    const std::int64_t retry = failure.decision().retry_after_ns;
    instance.attr("retry_after") = retry != 0 ? nb::cast(static_cast<double>(retry) / 1e9) : nb::none();
    PyErr_SetObject(type, instance.ptr());
}

void bind_task_errors(nb::module_& m) {
    const nb::tuple bases = nb::make_tuple(m.attr("Error"), nb::borrow(PyExc_RuntimeError));
    task_error = PyErr_NewExceptionWithDoc(
        "pygpukit.scheduler.TaskError",
        "A task did not complete. Attributes: task_id, cause_id, reason, retry_after (seconds).", bases.ptr(),
        nullptr);
    m.attr("TaskError") = nb::borrow(task_error);
    for (std::size_t i = 0; i < kMappings.size(); ++i) {
        const std::string name = std::string("pygpukit.scheduler.") + kMappings[i].name;
        task_errors[i] = PyErr_NewExceptionWithDoc(name.c_str(), kMappings[i].doc, task_error, nullptr);
        m.attr(kMappings[i].name) = nb::borrow(task_errors[i]);
    }
    nb::register_exception_translator([](const std::exception_ptr& failure, void*) {
        try {
            std::rethrow_exception(failure);
        } catch (const TaskError& known) {
            set_task_error(known);
        }
    });
}

// -- Quality of service and admission -------------------------------------------------------------

void bind_qos(nb::module_& m) {
    nb::enum_<QosClass>(
        m, "QosClass",
        "Guaranteed: its request is its limit, and reserved. Burstable: a request, and at most a "
        "limit. BestEffort: what is left.")
        .value("Guaranteed", QosClass::guaranteed)
        .value("Burstable", QosClass::burstable)
        .value("BestEffort", QosClass::best_effort);
    nb::class_<QosTaskMeta>(
        m, "QosTaskMeta",
        "What a task asks for. Memory in bytes, or as '4GiB'; bandwidth as a share of the "
        "device, or in the unit of the QosPolicyEvaluator's total; priority 0 is normal, "
        "smaller is more urgent.")
        .def_static(
            "guaranteed",
            [](BytesArg memory, double bandwidth, int priority) {
                return QosTaskMeta::guaranteed(read_bytes("QosTaskMeta.guaranteed", "memory", memory),
                                               bandwidth, priority);
            },
            nb::arg("memory"), nb::kw_only(), nb::arg("bandwidth") = 0.0, nb::arg("priority") = 0,
            "All of it is reserved, and no more may be used.")
        .def_static(
            "burstable",
            [](BytesArg request, BytesArg limit, double bandwidth, int priority) {
                constexpr const char* kCall = "QosTaskMeta.burstable";
                return QosTaskMeta::burstable(read_bytes(kCall, "request", request),
                                              read_bytes_or(kCall, "limit", limit, kNoMemoryLimit), bandwidth,
                                              priority);
            },
            nb::arg("request"), nb::arg("limit").none() = nb::none(), nb::kw_only(),
            nb::arg("bandwidth") = 0.0, nb::arg("priority") = 0,
            "The request is reserved; up to the limit (None: no limit) may be used.")
        .def_static(
            "best_effort",
            [](BytesArg limit, double bandwidth, int priority) {
                return QosTaskMeta::best_effort(
                    read_bytes_or("QosTaskMeta.best_effort", "limit", limit, kNoMemoryLimit), bandwidth,
                    priority);
            },
            nb::arg("limit").none() = nb::none(), nb::kw_only(), nb::arg("bandwidth") = 0.0,
            nb::arg("priority") = 0, "Nothing is reserved.")
        .def_prop_ro("qos", [](const QosTaskMeta& self) { return self.qos; })
        .def_prop_ro(
            "memory_request", [](const QosTaskMeta& self) { return self.memory_request; }, "Bytes reserved.")
        .def_prop_ro(
            "memory_limit",
            [](const QosTaskMeta& self) -> std::optional<std::size_t> {
                if (self.memory_limit == kNoMemoryLimit) return std::nullopt;
                return self.memory_limit;
            },
            "Bytes that may be used; None for no limit.")
        .def_prop_ro("bandwidth", [](const QosTaskMeta& self) { return self.bandwidth; })
        .def_prop_ro("priority", [](const QosTaskMeta& self) { return self.priority; });
    nb::class_<QosEvaluation>(m, "QosEvaluation", "What a QosPolicyEvaluator answers.")
        .def_prop_ro(
            "verdict", [](const QosEvaluation& self) { return std::string(to_string(self.verdict)); },
            "'admit', 'throttle' or 'reject'.")
        .def_prop_ro(
            "reason", [](const QosEvaluation& self) { return std::string(to_string(self.reason)); },
            "'none', 'memory_total', 'memory_in_use', 'bandwidth_total', 'bandwidth_in_use' or 'pressure'.")
        .def_prop_ro(
            "factor", [](const QosEvaluation& self) { return self.factor; },
            "The part of the bandwidth asked for that may be used, 0 to 1.")
        .def_prop_ro(
            "needed", [](const QosEvaluation& self) { return self.needed; },
            "Of what the reason names: bytes, or a share.")
        .def_prop_ro("available", [](const QosEvaluation& self) { return self.available; });
    nb::class_<QosPolicyEvaluator>(
        m, "QosPolicyEvaluator",
        "Says what a memory and a bandwidth that others share can promise to a task.\n\n"
        "Not for several threads at once.")
        .def(
            "__init__",
            [](QosPolicyEvaluator* self, BytesArg memory, double bandwidth) {
                new (self)
                    QosPolicyEvaluator(read_bytes("QosPolicyEvaluator", "total_memory", memory), bandwidth);
            },
            nb::arg("total_memory"), nb::arg("total_bandwidth") = 1.0)
        .def("evaluate", &QosPolicyEvaluator::evaluate, nb::arg("meta"), "Reserves nothing.")
        .def("reserve", &QosPolicyEvaluator::reserve, nb::arg("meta"),
             "Reserves what evaluate() promises; returns the reservation, for release(). Raises "
             "InvalidValueError where it would reject.")
        .def("release", &QosPolicyEvaluator::release, nb::arg("reservation"),
             "Raises InvalidValueError for one that is not held.")
        .def_prop_ro("memory_reserved",
                     [](const QosPolicyEvaluator& self) { return self.supply().memory_reserved; })
        .def_prop_ro("bandwidth_reserved", [](const QosPolicyEvaluator& self) {
            return to_share(self.supply().bandwidth_reserved) * self.total_bandwidth();
        });
}

TaskRequest read_request(const QosTaskMeta& meta, double compute, AccountId account, double expected) {
    return {.qos = meta,
            .compute = compute,
            .account = account,
            .expected_ns = read_seconds("AdmissionController", "expected", expected)};
}

std::int64_t read_now(double now) { return read_seconds("AdmissionController", "now", now); }

AccountLimits read_limits(const char* call, nb::handle memory, double bandwidth, double compute,
                          std::optional<std::size_t> max_queued, std::optional<std::size_t> max_running) {
    if (max_running == 0) {
        throw error(ErrorKind::value, {.call = call,
                                       .argument = "max_running",
                                       .expected = "at least 1, or None for any number",
                                       .got = "0, with which no task would ever run"});
    }
    return {.memory = read_bytes_or(call, "memory", memory, kUnlimited),
            .bandwidth = bandwidth,
            .compute = compute,
            .max_queued = count_or_unlimited(max_queued),
            .max_running = count_or_unlimited(max_running)};
}

void bind_admission(nb::module_& m) {
    nb::class_<Decision>(m, "AdmissionDecision", "What admission says to a task.")
        .def_prop_ro(
            "verdict", [](const Decision& self) { return std::string(to_string(self.verdict)); },
            "'admitted', 'queued', 'throttled' or 'rejected'.")
        .def_prop_ro(
            "reason", [](const Decision& self) { return std::string(to_string(self.reason)); },
            "'none', 'dependencies', 'memory', 'bandwidth', 'compute', 'running_limit', 'pressure', "
            "'queue_full', 'exceeds_memory', 'exceeds_bandwidth', 'exceeds_compute' or 'shut_down'.")
        .def_prop_ro(
            "account", [](const Decision& self) { return self.account; }, "The account that decided.")
        .def_prop_ro(
            "needed", [](const Decision& self) { return self.needed; },
            "Of what the reason names: bytes, a share of the device, or tasks.")
        .def_prop_ro("available", [](const Decision& self) { return self.available; })
        .def_prop_ro(
            "factor", [](const Decision& self) { return self.factor; },
            "The part of the bandwidth asked for that was granted.")
        .def_prop_ro(
            "retry_after",
            [](const Decision& self) -> std::optional<double> {
                if (self.retry_after_ns == 0) return std::nullopt;
                return static_cast<double>(self.retry_after_ns) / 1e9;
            },
            "Seconds after which to try again; None where time alone changes nothing.");
    using Admission = AdmissionController;
    nb::class_<Admission>(
        m, "AdmissionController",
        "Decides which task may start. What is admitted has all it asked for reserved, in its account and in "
        "all "
        "above it. Tasks are ints of the caller's, accounts ints that add_account gives; 0 is the device.\n\n"
        "Deterministic: the time is an argument, in seconds. Not for several threads at once.")
        .def(
            "__init__",
            [](Admission* self, BytesArg memory, double bandwidth, double compute,
               std::optional<std::size_t> max_queued, std::optional<std::size_t> max_running) {
                AdmissionConfig config;
                config.device =
                    read_limits("AdmissionController", memory, bandwidth, compute, max_queued, max_running);
                new (self) Admission(config);
            },
            nb::arg("memory"), nb::kw_only(), nb::arg("bandwidth") = 1.0, nb::arg("compute") = 1.0,
            nb::arg("max_queued").none() = nb::none(), nb::arg("max_running").none() = nb::none())
        .def(
            "add_account",
            [](Admission& self, std::string name, BytesArg memory, double bandwidth, double compute,
               std::optional<std::size_t> max_queued, std::optional<std::size_t> max_running,
               AccountId parent) {
                return self.add_account(std::move(name),
                                        read_limits("AdmissionController.add_account", memory, bandwidth,
                                                    compute, max_queued, max_running),
                                        parent);
            },
            nb::arg("name"), nb::kw_only(), nb::arg("memory").none() = nb::none(), nb::arg("bandwidth") = 1.0,
            nb::arg("compute") = 1.0, nb::arg("max_queued").none() = nb::none(),
            nb::arg("max_running").none() = nb::none(), nb::arg("parent") = kDeviceAccount,
            "A partition or a tenant; its limits hold together with those of its parent.")
        .def(
            "enqueue",
            [](Admission& self, TaskId task, const QosTaskMeta& meta, double compute, AccountId account,
               std::size_t dependencies, double expected, double now) {
                return self.enqueue(task, read_request(meta, compute, account, expected), dependencies,
                                    read_now(now));
            },
            nb::arg("task"), nb::arg("meta"), nb::kw_only(), nb::arg("compute") = 0.0,
            nb::arg("account") = kDeviceAccount, nb::arg("dependencies") = 0, nb::arg("expected") = 0.0,
            nb::arg("now") = 0.0,
            "Takes a place in the queue: 'queued', or 'rejected' and then unknown. expected: seconds that it "
            "will run; dependencies: how many tasks it waits for.")
        .def("dependency_done", &Admission::dependency_done, nb::arg("task"))
        .def(
            "admit", [](Admission& self, TaskId task, double now) { return self.admit(task, read_now(now)); },
            nb::arg("task"), nb::kw_only(), nb::arg("now") = 0.0,
            "Reserves all that a queued task asked for, or nothing, and says what is missing.")
        .def(
            "evaluate",
            [](const Admission& self, const QosTaskMeta& meta, double compute, AccountId account,
               double now) { return self.evaluate(read_request(meta, compute, account, 0), read_now(now)); },
            nb::arg("meta"), nb::kw_only(), nb::arg("compute") = 0.0, nb::arg("account") = kDeviceAccount,
            nb::arg("now") = 0.0, "What would be said to such a task now; changes nothing.")
        .def("withdraw", &Admission::withdraw, nb::arg("task"), "A queued task leaves.")
        .def("release", &Admission::release, nb::arg("task"),
             "An admitted task gives all back, once; afterwards InvalidValueError.")
        .def(
            "reserved",
            [](const Admission& self, AccountId id) {
                const auto& account = self.account(id);
                nb::dict out;
                out["memory"] = account.supply.memory_reserved;
                out["bandwidth"] = to_share(account.supply.bandwidth_reserved);
                out["compute"] = to_share(account.compute_reserved);
                out["queued"] = account.queued;
                out["running"] = account.running;
                return out;
            },
            nb::arg("account") = kDeviceAccount,
            nb::sig("def reserved(self, account: int = 0) -> dict[str, typing.Any]"),
            "memory in bytes, bandwidth and compute as shares, and the numbers of queued and running tasks.")
        .def("__copy__", [](const Admission& self) { return Admission(self); });
}

// -- The threads ----------------------------------------------------------------------------------

// Shared with nobody but Python: what runs goes on when the object is dropped.
struct PyScheduler {
    explicit PyScheduler(std::unique_ptr<Scheduler> made) : scheduler(std::move(made)) {}
    ~PyScheduler() { scheduler->abandon(); }
    std::unique_ptr<Scheduler> scheduler;
    std::vector<std::pair<std::string, std::shared_ptr<Tenant>>> tenants;

    std::shared_ptr<Tenant> tenant(const std::optional<std::string>& name) const {
        if (!name) return current_stream(scheduler->device())->tenant();
        std::string known;
        for (const auto& [each, found] : tenants) {
            if (each == *name) return found;
            known += str(known.empty() ? "'" : ", '", each, "'");
        }
        throw error(ErrorKind::value, {.call = "Scheduler",
                                       .argument = "tenant",
                                       .expected = known.empty() ? "None; no tenant was added" : known,
                                       .got = str("'", *name, "'")});
    }
};

struct PyTask {
    TaskPtr task;
};

// What pygpukit.scheduler's _run tells of a function.
enum class Ran { completed, raised, cancelled };

PyTask submit(PyScheduler& self, nb::callable run, const QosTaskMeta& meta, double compute, std::string name,
              const std::optional<std::string>& tenant, double expected, std::optional<double> deadline,
              const std::vector<PyTask*>& after) {
    TaskOptions options{
        .name = std::move(name), .qos = meta, .compute = compute, .tenant = self.tenant(tenant)};
    options.expected_ns = read_seconds("Scheduler.submit", "expected", expected);
    if (deadline) options.start_within_ns = read_seconds("Scheduler.submit", "deadline", *deadline);
    for (const PyTask* each : after) options.after.push_back(each->task);
    const auto held = std::make_shared<Held>(run);
    const Unlocked unlocked;
    return {self.scheduler->submit(std::move(options), [held](TaskContext& context) {
        Ran ran = Ran::raised;
        {
            const Locked locked;
            const nb::object answer = held->call();
            if (answer.is_valid()) {
                ran = static_cast<Ran>(nb::cast<int>(answer));
            } else {
                PyErr_Clear();
            }
        }
        if (ran == Ran::cancelled) context.check_cancelled();
        if (ran != Ran::completed) {
            throw error(ErrorKind::unsupported, {.call = "task", .got = "an exception of its function"});
        }
    })};
}

void bind_task(nb::module_& m) {
    nb::class_<PyTask>(m, "_Task", "What pygpukit.scheduler.Future stands on.")
        .def_prop_ro("id", [](PyTask& self) { return self.task->id(); })
        .def_prop_ro("name", [](PyTask& self) { return self.task->name(); })
        .def_prop_ro("state", [](PyTask& self) { return std::string(to_string(self.task->state())); })
        .def("is_done", [](PyTask& self) { return self.task->is_done(); })
        .def(
            "wait",
            [](PyTask& self, std::optional<double> timeout) {
                const auto limit = read_timeout("Future.result", timeout);
                if (self.task->is_done()) return true;
                return wait_minding_signals(limit, [&](auto piece) { return self.task->wait(piece); });
            },
            nb::arg("timeout").none())
        .def("check", [](PyTask& self) { self.task->check(); })
        .def(
            "cancel", [](PyTask& self) { return self.task->cancel(); }, nb::call_guard<Unlocked>())
        .def(
            "on_done",
            [](PyTask& self, nb::callable call) {
                const auto held = std::make_shared<Held>(call);
                const Unlocked unlocked;
                self.task->add_done_callback([held] {
                    const Locked locked;
                    if (!held->call().is_valid()) PyErr_WriteUnraisable(nullptr);
                });
            },
            nb::arg("call"), nb::sig("def on_done(self, call: collections.abc.Callable[[], None]) -> None"))
        .def("explain", [](PyTask& self) { return self.task->explain(); }, nb::call_guard<Unlocked>());
    m.def("_task_cancel_requested", [] {
        const TaskContext* context = TaskContext::current();
        return context != nullptr && context->cancel_requested();
    });
    m.def("_task_check_cancelled", [] {
        if (const TaskContext* context = TaskContext::current()) context->check_cancelled();
    });
}

nb::dict stats_dict(PyScheduler& self) {
    const Scheduler::Stats stats = [&] {
        const Unlocked unlocked;
        return self.scheduler->stats();
    }();
    nb::dict out;
    out["waiting"] = stats.waiting;
    out["running"] = stats.running;
    out["threads"] = stats.threads;
    out["blocked"] = stats.blocked;
    out["memory_total"] = stats.memory_total;
    out["memory_reserved"] = stats.memory_reserved;
    out["bandwidth_reserved"] = stats.bandwidth_reserved;
    out["compute_reserved"] = stats.compute_reserved;
    for (const TaskState state :
         {TaskState::completed, TaskState::failed, TaskState::cancelled, TaskState::rejected}) {
        out[std::string(to_string(state)).c_str()] = stats.ended[static_cast<std::size_t>(state)];
    }
    return out;
}

void bind_threads(nb::module_& m) {
    nb::class_<PyScheduler>(m, "_Scheduler", "What pygpukit.scheduler.Scheduler stands on.")
        .def(
            "__init__",
            [](PyScheduler* self, int workers, const std::string& policy, DeviceArg device, BytesArg memory,
               double bandwidth, double compute, std::optional<std::size_t> max_queued,
               std::optional<std::size_t> max_running, double ageing, double patience) {
                SchedulerOptions options{.workers = workers};
                Device& on = read_device(device);
                options.core.admission.device =
                    read_limits("Scheduler", memory, bandwidth, compute, max_queued, max_running);
                if (memory.is_none()) options.core.admission.device.memory = on.info().memory_bytes;
                options.core.policy.kind = policy_named(policy);
                options.core.policy.ageing_ns = read_seconds("Scheduler", "ageing", ageing);
                options.core.policy.patience_ns = read_seconds("Scheduler", "patience", patience);
                new (self) PyScheduler(std::make_unique<Scheduler>(on, options));
            },
            nb::kw_only(), nb::arg("workers"), nb::arg("policy"), nb::arg("device").none(),
            nb::arg("memory").none(), nb::arg("bandwidth"), nb::arg("compute"), nb::arg("max_queued").none(),
            nb::arg("max_running").none(), nb::arg("ageing"), nb::arg("patience"))
        .def_prop_ro(
            "device", [](PyScheduler& self) -> Device& { return self.scheduler->device(); },
            nb::rv_policy::reference)
        .def(
            "submit", &submit, nb::arg("run"), nb::arg("meta"), nb::arg("compute"), nb::arg("name"),
            nb::arg("tenant").none(), nb::arg("expected"), nb::arg("deadline").none(), nb::arg("after"),
            nb::sig("def submit(self, run: collections.abc.Callable[[], int], meta: QosTaskMeta, "
                    "compute: float, name: str, tenant: str | None, expected: float, deadline: float | None, "
                    "after: collections.abc.Sequence[_Task]) -> _Task"))
        .def(
            "evaluate",
            [](PyScheduler& self, const QosTaskMeta& meta, double compute,
               const std::optional<std::string>& tenant) {
                const TaskOptions options{
                    .name = {}, .qos = meta, .compute = compute, .tenant = self.tenant(tenant)};
                const Unlocked unlocked;
                return self.scheduler->evaluate(options);
            },
            nb::arg("meta"), nb::arg("compute"), nb::arg("tenant").none())
        .def(
            "add_tenant",
            [](PyScheduler& self, const std::string& name, BytesArg memory, double bandwidth, double compute,
               std::optional<std::size_t> max_queued, std::optional<std::size_t> max_running, double weight) {
                for (const auto& [each, known] : self.tenants) {
                    if (each != name) continue;
                    throw error(ErrorKind::value, {.call = "Scheduler.add_tenant",
                                                   .argument = "name",
                                                   .expected = "a name that is not in use",
                                                   .got = str("'", name, "'")});
                }
                const AccountLimits limits =
                    read_limits("Scheduler.add_tenant", memory, bandwidth, compute, max_queued, max_running);
                if (limits.memory == 0) {
                    throw error(ErrorKind::value, {.call = "Scheduler.add_tenant",
                                                   .argument = "memory",
                                                   .expected = "more than 0 bytes, or None for any number",
                                                   .got = "0"});
                }
                const auto tenant = Tenant::create(
                    {.name = name, .memory_limit = limits.memory == kUnlimited ? 0 : limits.memory},
                    current_stream(self.scheduler->device())->tenant());
                {
                    const Unlocked unlocked;
                    self.scheduler->set_tenant(tenant, limits, weight);
                }
                self.tenants.emplace_back(name, tenant);
            },
            nb::arg("name"), nb::arg("memory").none(), nb::arg("bandwidth"), nb::arg("compute"),
            nb::arg("max_queued").none(), nb::arg("max_running").none(), nb::arg("weight"))
        .def(
            "shutdown",
            [](PyScheduler& self, bool wait, bool cancel_pending, std::optional<double> timeout) {
                const auto limit = read_timeout("Scheduler.shutdown", timeout);
                if (!wait) {
                    const Unlocked unlocked;
                    return self.scheduler->shutdown(false, cancel_pending, limit);
                }
                return wait_minding_signals(
                    limit, [&](auto piece) { return self.scheduler->shutdown(true, cancel_pending, piece); });
            },
            nb::arg("wait"), nb::arg("cancel_pending"), nb::arg("timeout").none())
        .def("stats", &stats_dict, nb::sig("def stats(self) -> dict[str, typing.Any]"));
}

}  // namespace

void bind_scheduler(nb::module_& m) {
    bind_task_errors(m);
    bind_qos(m);
    bind_admission(m);
    bind_task(m);
    bind_threads(m);
}

}  // namespace gpk::python
