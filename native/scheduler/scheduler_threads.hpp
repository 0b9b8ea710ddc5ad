// What stands behind a Scheduler and its tasks: the core under a lock, the workers, and the keeper, one
// thread that waits for the device work of tasks whose functions have returned, and for the time to pass.
#pragma once

#include <array>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "scheduler/scheduler.hpp"

namespace gpk {

// What the calling thread does for a scheduler.
struct Place {
    SchedulerThreads* owner = nullptr;
    TaskId task = 0;  // 0: none, it announces that others ended
    TaskContext* context = nullptr;
};
inline thread_local constinit Place place;

class PlaceScope {
   public:
    explicit PlaceScope(Place next) : previous_(place) { place = next; }
    ~PlaceScope() { place = previous_; }
    PlaceScope(const PlaceScope&) = delete;
    PlaceScope& operator=(const PlaceScope&) = delete;

   private:
    Place previous_;
};

class SchedulerThreads : public std::enable_shared_from_this<SchedulerThreads> {
   public:
    SchedulerThreads(Device& device, const SchedulerOptions& options);
    ~SchedulerThreads();

    TaskPtr submit(TaskOptions options, std::function<void(TaskContext&)> run);
    void set_tenant(const std::shared_ptr<Tenant>& tenant, const AccountLimits& limits, double weight);
    Decision evaluate(const TaskOptions& options);
    bool shutdown(bool wait, bool cancel_waiting, std::optional<std::chrono::nanoseconds> timeout);
    void join();  // after a shutdown that waited
    Scheduler::Stats stats() const;
    Device& device() const noexcept { return device_; }

    bool wait(Task& task, std::optional<std::chrono::nanoseconds> timeout);
    bool cancel(Task& task);
    void add_done_callback(Task& task, std::function<void()> callback);
    Explanation explain(const Task& task) const;
    std::string explain_text(const Task& task) const;
    void forget(TaskId task) noexcept;
    // In a process forked from the one that made it there are no workers, and the lock may be held for ever.
    bool is_forked() const noexcept;
    bool is_inside() const noexcept;  // the calling thread is one of its own
    void refuse_fork(const char* call) const;

   private:
    using Lock = std::unique_lock<std::mutex>;
    using Ended = std::vector<TaskPtr>;
    // A stream and its tenant, kept for the next task of the same kind: memory that is freed on a stream is
    // found again there at once, and not cleared as what another tenant left.
    struct Slot {
        std::shared_ptr<Tenant> tenant;
        std::shared_ptr<Stream> stream;
    };
    // A task whose function has returned.
    struct Draining {
        TaskPtr task;
        TaskState outcome;
        TaskFault fault;
        std::exception_ptr failure;
    };

    void work();
    void keep();
    void run(const TaskPtr& task);
    void prepare(Task& task);
    void keep_slot(Task& task, bool healthy, std::vector<Slot>* dropped);
    // Whether the stream's work is done; a failure of it becomes the task's.
    bool is_drained(Draining& each) noexcept;
    void finish(Draining each) noexcept;
    // Tells the tasks what the core did, and whoever waits; the callbacks run after unlocking, in announce().
    Ended deliver(Lock& lock);
    // For the metrics and the trace.
    void tell_answers();
    static void count_new(const Task& task) noexcept;
    static void count_move(const Task& task, TaskState from, TaskState to) noexcept;
    void announce(const Ended& ended) noexcept;
    void wake();                                                   // as many workers as there may be work for
    bool start_thread(void (SchedulerThreads::*body)()) noexcept;  // false where the system has none
    bool start_keeper() noexcept;
    std::exception_ptr failure_of(TaskId id) const;
    AccountId account_of(const std::shared_ptr<Tenant>& tenant);
    TaskRequest request_of(const TaskOptions& options);
    bool wait_inside(Task& task, TaskId waiter, const std::function<bool()>& sleep);

    Device& device_;
    const SchedulerOptions options_;
    const unsigned generation_;  // of forks

    mutable std::mutex mutex_;  // over all below
    SchedulerCore core_;
    std::map<TaskId, TaskPtr> live_;
    struct Account {
        AccountId id;
        bool is_set;  // by set_tenant
        std::shared_ptr<Tenant> tenant;
    };
    std::unordered_map<const Tenant*, Account> accounts_;
    std::condition_variable work_;     // for workers
    std::condition_variable changed_;  // for who waits for a task or for the end
    std::condition_variable keeper_;
    std::vector<Draining> draining_;
    std::vector<Slot> slots_;  // not in use, the last used at the back
    std::vector<std::thread> threads_;
    std::vector<std::thread::id> left_;   // of threads_, those that are over
    std::int64_t keeper_until_ = kNever;  // when the keeper will look at the clock
    std::size_t workers_ = 0, idle_ = 0, blocked_ = 0;
    bool keeping_ = false;  // the keeper runs
    bool stopping_ = false;
    std::array<std::uint64_t, 7> ended_{};
};

}  // namespace gpk
