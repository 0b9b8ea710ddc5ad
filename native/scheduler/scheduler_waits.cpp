// Waiting for tasks, also inside tasks; asking about them; and the end of a scheduler.
#include <algorithm>
#include <utility>

#include "scheduler/scheduler_threads.hpp"

namespace gpk {

namespace {

using std::chrono::nanoseconds;

// Tasks that wait inside tasks, each of which keeps a thread.
constexpr std::size_t kMaxBlocked = 1024;

std::chrono::steady_clock::time_point end_of(const std::optional<nanoseconds>& timeout) {
    constexpr nanoseconds kLongest = std::chrono::hours(24 * 365);
    return std::chrono::steady_clock::now() + std::min(timeout.value_or(kLongest), kLongest);
}

}  // namespace

bool SchedulerThreads::wait(Task& task, std::optional<nanoseconds> timeout) {
    refuse_fork("Task.wait");
    const auto until = end_of(timeout);
    Lock lock(mutex_);
    // False where the time is over.
    const std::function<bool()> sleep = [&] {
        if (!timeout) {
            changed_.wait(lock);
            return true;
        }
        return changed_.wait_until(lock, until) == std::cv_status::no_timeout || task.is_done();
    };
    if (place.owner == this && !task.is_done()) {
        if (place.task != 0) return wait_inside(task, place.task, sleep);
        throw TaskError(TaskFault::raised, task.id_, 0, {},
                        {.call = "Task.wait",
                         .got = "a wait for a task in a done callback, which would keep tasks from ending",
                         .fix = "submit a task that waits, or wait elsewhere"});
    }
    while (!task.is_done()) {
        if (!sleep()) return false;
    }
    return true;
}

bool SchedulerThreads::wait_inside(Task& task, TaskId waiter, const std::function<bool()>& sleep) {
    const auto refuse = [&](const char* got, const char* fix) {
        throw TaskError(TaskFault::raised, waiter, task.id_, {},
                        {.call = str("wait in ", core_.label(waiter), " for ", core_.label(task.id_)),
                         .got = got,
                         .fix = fix});
    };
    if (blocked_ >= kMaxBlocked)
        refuse("more tasks that wait than there may be", "submit what follows with `after`");
    core_.begin_wait(waiter, task.id_);
    ++blocked_;
    changed_.notify_all();  // others that wait may be stuck by this
    bool ended = true, stuck = false;
    try {
        wake();
        while (!task.is_done() && ended && !stuck) {
            stuck = core_.is_deadlocked(waiter);
            if (!stuck) ended = sleep();
        }
    } catch (...) {
        --blocked_;
        core_.end_wait(waiter);
        throw;
    }
    --blocked_;
    core_.end_wait(waiter);
    work_.notify_one();  // one that worked in this one's place may go
    if (stuck && !task.is_done()) {
        refuse("a deadlock: it needs what tasks that wait for it hold",
               "ask for less in the waiting task, or submit what follows with `after`");
    }
    return task.is_done();
}

bool SchedulerThreads::cancel(Task& task) {
    refuse_fork("Task.cancel");
    Ended ended;
    bool cancelled = false;
    {
        Lock lock(mutex_);
        if (task.is_done()) return false;
        cancelled = core_.cancel(task.id_);
        task.cancel_requested_.store(true, std::memory_order_release);
        ended = deliver(lock);
        wake();
    }
    announce(ended);
    return cancelled;
}

void SchedulerThreads::add_done_callback(Task& task, std::function<void()> callback) {
    refuse_fork("Task.add_done_callback");
    {
        Lock lock(mutex_);
        if (!task.is_done()) {
            task.callbacks_.push_back(std::move(callback));
            return;
        }
    }
    callback();
}

Explanation SchedulerThreads::explain(const Task& task) const {
    refuse_fork("Task.explain");
    Lock lock(mutex_);
    return core_.explain(task.id_);
}

std::string SchedulerThreads::explain_text(const Task& task) const {
    refuse_fork("Task.explain");
    Lock lock(mutex_);
    return core_.explain_text(task.id_);
}

void SchedulerThreads::forget(TaskId id) noexcept {
    Lock lock(mutex_);
    if (core_.knows(id) && is_final(core_.state(id))) core_.forget(id);
}

Scheduler::Stats SchedulerThreads::stats() const {
    refuse_fork("Scheduler.stats");
    Lock lock(mutex_);
    const auto& device = core_.admission().account(kDeviceAccount);
    Scheduler::Stats out{.waiting = core_.waiting(),
                         .running = core_.running(),
                         .threads = workers_,
                         .blocked = blocked_,
                         .memory_total = device.supply.memory_total,
                         .memory_reserved = device.supply.memory_reserved,
                         .bandwidth_reserved = to_share(device.supply.bandwidth_reserved),
                         .compute_reserved = to_share(device.compute_reserved)};
    std::copy(ended_.begin(), ended_.end(), out.ended);
    return out;
}

// -- Ending ---------------------------------------------------------------------------------------

bool SchedulerThreads::shutdown(bool wait, bool cancel_waiting, std::optional<nanoseconds> timeout) {
    refuse_fork("Scheduler.shutdown");
    if (wait && is_inside()) {
        throw TaskError(TaskFault::raised, place.task, 0, {},
                        {.call = "Scheduler.shutdown",
                         .got = "a wait for all tasks inside one of them",
                         .fix = "shut down with wait=False"});
    }
    const auto until = end_of(timeout);
    Ended ended;
    std::vector<Slot> dropped;
    {
        Lock lock(mutex_);
        stopping_ = true;
        dropped.swap(slots_);
        core_.shutdown(cancel_waiting);
        ended = deliver(lock);
        wake();
        work_.notify_all();
        keeper_.notify_all();
    }
    announce(ended);
    if (!wait) return true;
    Lock lock(mutex_);
    const auto over = [&] { return workers_ == 0 && !keeping_ && core_.waiting() + core_.running() == 0; };
    if (timeout) return changed_.wait_until(lock, until, over);
    changed_.wait(lock, over);
    return true;
}

void SchedulerThreads::join() {
    std::vector<std::thread> ended;
    {
        Lock lock(mutex_);
        ended = std::exchange(threads_, {});
    }
    for (std::thread& each : ended) each.join();
}

}  // namespace gpk
