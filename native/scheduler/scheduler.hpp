// Scheduler: runs tasks on worker threads, in the order and within the limits of SchedulerCore.
//
// A task is a function. It runs on a stream of its own, which belongs to a tenant of its own below the one it
// was submitted for: what it allocates is charged and limited, what it launches is governed, as of any
// tenant. It is completed when the function has returned and its stream's work is done; no worker waits for
// that.
//
// A task may wait for others inside its function: another thread then works in its place, and the tasks that
// it waits for start before all others. Where they could never start, since they need what waiting tasks
// hold, the wait is refused with a TaskError instead.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "runtime/device.hpp"
#include "runtime/stream.hpp"
#include "runtime/tenant.hpp"
#include "scheduler/core.hpp"

namespace gpk {

class Meter;
class Task;
class SchedulerThreads;
using TaskPtr = std::shared_ptr<Task>;

// Why a task did not complete, where it was not its own exception or the driver's.
class TaskError : public Error {
   public:
    TaskError(TaskFault fault, TaskId task, TaskId cause, Decision decision, const ErrorParts& parts);
    TaskFault fault() const noexcept { return fault_; }
    TaskId task() const noexcept { return task_; }
    TaskId cause() const noexcept { return cause_; }  // the dependency that did not complete; 0 for none
    const Decision& decision() const noexcept { return decision_; }  // of a rejected task

   private:
    TaskFault fault_;
    TaskId task_, cause_;
    Decision decision_;
};

// What a task's function may ask while it runs.
class TaskContext {
   public:
    explicit TaskContext(Task& task) : task_(task) {}
    const Task& task() const noexcept { return task_; }
    bool cancel_requested() const noexcept;
    // Throws TaskError (cancelled) where somebody asked for it: the task is then cancelled, not failed.
    void check_cancelled() const;
    // The calling thread's, or null where it runs no task.
    static TaskContext* current() noexcept;

   private:
    Task& task_;
};

struct TaskOptions {
    std::string name;
    QosTaskMeta qos;
    double compute = 0;                        // share of the device
    std::shared_ptr<Tenant> tenant = nullptr;  // whom it is for; null: no one in particular
    std::int64_t expected_ns = 0;              // how long it will run; 0: unknown
    std::int64_t start_within_ns = kNever;     // else it fails
    std::vector<TaskPtr> after = {};           // of the same scheduler
};

struct SchedulerOptions {
    int workers = 4;       // functions that run at once, beside those that wait for other tasks
    CoreConfig core = {};  // a device memory of 0 means all that the device has
};

// A submitted task. Any thread may ask; what it returns is what was true at that moment.
class Task {
   public:
    ~Task();
    Task(const Task&) = delete;
    Task& operator=(const Task&) = delete;

    TaskId id() const noexcept { return id_; }
    const std::string& name() const noexcept { return name_; }
    TaskState state() const noexcept { return state_.load(std::memory_order_acquire); }
    bool is_done() const noexcept { return is_final(state()); }
    // Waits until it ended; false where the time went by before. Throws TaskError where a task or a done
    // callback would wait for ever.
    bool wait(std::optional<std::chrono::nanoseconds> timeout = std::nullopt);
    // Throws what it failed with: its own exception, a DriverError, or a TaskError. Nothing where it
    // completed.
    void check() const;
    // True where it is cancelled now. A running task is only told, see TaskContext.
    bool cancel();
    bool cancel_requested() const noexcept { return cancel_requested_.load(std::memory_order_acquire); }
    // Runs once it ended: on the thread that ended it, or here and now. It must not wait for tasks.
    void add_done_callback(std::function<void()> callback);
    // Why it is not running, in words.
    std::string explain() const;
    Explanation explanation() const;

   private:
    friend class SchedulerThreads;
    friend class TaskContext;
    Task(std::shared_ptr<SchedulerThreads> owner, TaskOptions options, std::function<void(TaskContext&)> run);

    std::shared_ptr<SchedulerThreads> owner_;
    TaskOptions options_;
    std::string name_;
    std::function<void(TaskContext&)> run_;
    TaskId id_ = 0;
    Meter* meter_ = nullptr;  // of whom it is for
    std::atomic<TaskState> state_{TaskState::pending};
    std::atomic<bool> cancel_requested_{false};
    // Under the owner's lock until it ended.
    std::shared_ptr<Tenant> tenant_;
    std::shared_ptr<Stream> stream_;
    std::int64_t started_ns_ = 0;
    std::exception_ptr failure_;
    std::vector<std::function<void()>> callbacks_;
};

class Scheduler {
   public:
    // Throws Error (value) for options that mean nothing. Threads start with the first task.
    Scheduler(Device& device, const SchedulerOptions& options);
    // Cancels what has not started and waits for the rest, unless abandon() was called.
    ~Scheduler();
    Scheduler(const Scheduler&) = delete;
    Scheduler& operator=(const Scheduler&) = delete;

    Device& device() const noexcept;
    // Rejected tasks come back too, ended. Throws Error (value) for options that mean nothing and Error
    // (unsupported) in a process forked from the scheduler's.
    TaskPtr submit(TaskOptions options, std::function<void(TaskContext&)> run);
    // What a tenant may have at once here, and its weight under the policy `fair`. Without it, a tenant has
    // the memory limit of its own and a weight of 1.
    void set_tenant(const std::shared_ptr<Tenant>& tenant, const AccountLimits& limits, double weight);
    // What admission would say to such a task now.
    Decision evaluate(const TaskOptions& options);
    // Accepts nothing more. Waiting: until all ended, or the time went by (then false).
    bool shutdown(bool wait = true, bool cancel_waiting = false,
                  std::optional<std::chrono::nanoseconds> timeout = std::nullopt);
    // Accepts nothing more; what was submitted runs to its end without this object.
    void abandon() noexcept;

    struct Stats {
        std::size_t waiting = 0, running = 0;  // tasks
        std::size_t threads = 0, blocked = 0;  // workers, and how many of them wait for tasks
        std::size_t memory_total = 0, memory_reserved = 0;
        double bandwidth_reserved = 0, compute_reserved = 0;  // shares
        std::uint64_t ended[7] = {};                          // by TaskState
    };
    Stats stats() const;

   private:
    std::shared_ptr<SchedulerThreads> threads_;
};

}  // namespace gpk
