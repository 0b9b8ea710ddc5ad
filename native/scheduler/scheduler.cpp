#include "scheduler/scheduler.hpp"

#include <utility>

#include "scheduler/scheduler_threads.hpp"

namespace gpk {

namespace {

// Of a rejected task its request is at fault; of another, what happened to it.
ErrorKind kind_of(TaskFault fault) {
    return fault == TaskFault::rejected ? ErrorKind::value : ErrorKind::unsupported;
}

}  // namespace

TaskError::TaskError(TaskFault fault, TaskId task, TaskId cause, Decision decision, const ErrorParts& parts)
    : Error(error(kind_of(fault), parts)), fault_(fault), task_(task), cause_(cause), decision_(decision) {}

bool TaskContext::cancel_requested() const noexcept { return task_.cancel_requested(); }

void TaskContext::check_cancelled() const {
    if (!cancel_requested()) return;
    throw TaskError(TaskFault::cancelled, task_.id(), 0, {},
                    {.call = "check_cancelled", .got = str("task ", task_.id(), ", which was cancelled")});
}

Task::Task(std::shared_ptr<SchedulerThreads> owner, TaskOptions options,
           std::function<void(TaskContext&)> run)
    : owner_(std::move(owner)), options_(std::move(options)), name_(options_.name), run_(std::move(run)) {}

Task::~Task() {
    if (owner_->is_forked()) {
        new std::shared_ptr<SchedulerThreads>(std::move(owner_));  // its threads are another process's
    } else if (id_ != 0) {
        owner_->forget(id_);
    }
}

bool Task::wait(std::optional<std::chrono::nanoseconds> timeout) {
    return is_done() || owner_->wait(*this, timeout);
}

void Task::check() const {
    if (is_done() && failure_) std::rethrow_exception(failure_);
}

bool Task::cancel() { return !is_done() && owner_->cancel(*this); }

void Task::add_done_callback(std::function<void()> callback) {
    owner_->add_done_callback(*this, std::move(callback));
}

std::string Task::explain() const { return owner_->explain_text(*this); }
Explanation Task::explanation() const { return owner_->explain(*this); }

Scheduler::Scheduler(Device& device, const SchedulerOptions& options)
    : threads_(std::make_shared<SchedulerThreads>(device, options)) {}

Scheduler::~Scheduler() {
    if (!threads_) return;
    if (threads_->is_forked()) {
        new std::shared_ptr<SchedulerThreads>(std::move(threads_));
        return;
    }
    // The last to let go may be a task's function.
    if (threads_->is_inside()) {
        abandon();
        return;
    }
    threads_->shutdown(true, true, std::nullopt);
    threads_->join();
}

void Scheduler::abandon() noexcept {
    if (!threads_) return;
    if (threads_->is_forked()) {
        new std::shared_ptr<SchedulerThreads>(std::move(threads_));
    } else {
        threads_->shutdown(false, false, std::nullopt);
    }
    threads_ = nullptr;
}

Device& Scheduler::device() const noexcept { return threads_->device(); }

TaskPtr Scheduler::submit(TaskOptions options, std::function<void(TaskContext&)> run) {
    return threads_->submit(std::move(options), std::move(run));
}

void Scheduler::set_tenant(const std::shared_ptr<Tenant>& tenant, const AccountLimits& limits,
                           double weight) {
    threads_->set_tenant(tenant, limits, weight);
}

Decision Scheduler::evaluate(const TaskOptions& options) { return threads_->evaluate(options); }

bool Scheduler::shutdown(bool wait, bool cancel_waiting, std::optional<std::chrono::nanoseconds> timeout) {
    const bool ended = threads_->shutdown(wait, cancel_waiting, timeout);
    if (wait && ended) threads_->join();
    return ended;
}

Scheduler::Stats Scheduler::stats() const { return threads_->stats(); }

}  // namespace gpk
