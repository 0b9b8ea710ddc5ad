#include "scheduler/scheduler_threads.hpp"

#include <algorithm>
#include <system_error>
#include <utility>

#include "base/platform.hpp"
#include "runtime/meter.hpp"
#include "runtime/observe.hpp"

namespace gpk {

namespace {

using std::chrono::nanoseconds;

constexpr nanoseconds kShortestPoll{20'000}, kLongestPoll{1'000'000};

std::atomic<unsigned> fork_generation{0};

unsigned current_generation() {
    static const bool watched = [] {
        platform::on_fork_in_child([] { fork_generation.fetch_add(1, std::memory_order_relaxed); });
        return true;
    }();
    static_cast<void>(watched);
    return fork_generation.load(std::memory_order_relaxed);
}

// A guaranteed task's stream goes before a best-effort one's, and a task's own priority one step further.
int stream_priority(const DeviceInfo& info, const QosTaskMeta& qos) {
    constexpr double kPart[] = {0.6, 0.3, 0};  // of the device's range, by QosClass
    const double range = info.lowest_priority - info.highest_priority;
    const int base =
        info.lowest_priority - static_cast<int>(range * kPart[static_cast<std::size_t>(qos.qos)] + 0.5);
    return std::clamp(base + std::clamp(qos.priority, -1, 1), info.highest_priority, info.lowest_priority);
}

CoreConfig core_config(Device& device, CoreConfig config) {
    if (config.admission.device.memory == 0 || config.admission.device.memory == kUnlimited) {
        config.admission.device.memory = device.info().memory_bytes;
    }
    return config;
}

}  // namespace

TaskContext* TaskContext::current() noexcept { return place.context; }

SchedulerThreads::SchedulerThreads(Device& device, const SchedulerOptions& options)
    : device_(device),
      options_(options),
      generation_(current_generation()),
      core_(core_config(device, options.core), steady_clock()) {
    if (options.workers < 1 || options.workers > 1024) {
        throw error(ErrorKind::value, {.call = "Scheduler",
                                       .argument = "workers",
                                       .expected = "1 to 1024",
                                       .got = str(options.workers)});
    }
}

// The last to let go may be one of the threads.
SchedulerThreads::~SchedulerThreads() {
    for (std::thread& each : threads_) each.detach();
}

bool SchedulerThreads::is_forked() const noexcept {
    return fork_generation.load(std::memory_order_relaxed) != generation_;
}

bool SchedulerThreads::is_inside() const noexcept { return place.owner == this; }

void SchedulerThreads::refuse_fork(const char* call) const {
    if (!is_forked()) return;
    throw error(ErrorKind::unsupported, {.call = call,
                                         .got = "a scheduler of the process that this one was forked from",
                                         .fix = "make a Scheduler after the fork"});
}

// -- Submitting -----------------------------------------------------------------------------------

// The tenant's account, and those above it. With the lock held.
AccountId SchedulerThreads::account_of(const std::shared_ptr<Tenant>& tenant) {
    if (!tenant) return kDeviceAccount;
    const std::size_t own = tenant->memory_limit();
    const AccountLimits limits{.memory = own != 0 ? own : kUnlimited};
    const auto known = accounts_.find(tenant.get());
    if (known != accounts_.end()) {
        if (!known->second.is_set) core_.set_limits(known->second.id, limits);
        return known->second.id;
    }
    // A parent outlives its children, so it needs no pointer of its own to be kept.
    const std::shared_ptr<Tenant> parent(tenant, tenant->parent());
    const AccountId above = account_of(tenant->parent() != nullptr ? parent : nullptr);
    const AccountId id = core_.add_account(tenant->name(), limits, above);
    accounts_.emplace(tenant.get(), Account{id, false, tenant});
    return id;
}

void SchedulerThreads::set_tenant(const std::shared_ptr<Tenant>& tenant, const AccountLimits& limits,
                                  double weight) {
    refuse_fork("Scheduler.set_tenant");
    Lock lock(mutex_);
    const AccountId id = account_of(tenant);
    core_.set_weight(id, weight);
    core_.set_limits(id, limits);
    if (tenant) accounts_.at(tenant.get()).is_set = true;
    wake();
}

TaskRequest SchedulerThreads::request_of(const TaskOptions& options) {
    return {.qos = options.qos,
            .compute = options.compute,
            .account = account_of(options.tenant),
            .expected_ns = options.expected_ns};
}

Decision SchedulerThreads::evaluate(const TaskOptions& options) {
    refuse_fork("Scheduler.evaluate");
    Lock lock(mutex_);
    if (stopping_) return {.verdict = Verdict::rejected, .reason = Reason::shut_down};
    return core_.admission().evaluate(request_of(options), core_.clock().now_ns());
}

TaskPtr SchedulerThreads::submit(TaskOptions options, std::function<void(TaskContext&)> run) {
    constexpr const char* kCall = "Scheduler.submit";
    refuse_fork(kCall);
    if (!run) throw error(ErrorKind::value, {.call = kCall, .expected = "a function", .got = "none"});
    if (options.start_within_ns < 0) {
        throw error(ErrorKind::value, {.call = kCall,
                                       .argument = "deadline",
                                       .expected = "a time that is not negative",
                                       .got = str(options.start_within_ns, " ns")});
    }
    TaskSpec spec{.name = options.name};
    for (const TaskPtr& each : options.after) {
        if (each && each->owner_.get() == this) {
            spec.after.push_back(each->id());
            continue;
        }
        throw error(ErrorKind::value, {.call = kCall,
                                       .argument = "after",
                                       .expected = "tasks of this scheduler",
                                       .got = each ? "a task of another" : "none"});
    }
    const std::shared_ptr<SchedulerThreads> self = shared_from_this();
    const TaskPtr task(new Task(self, std::move(options), std::move(run)));
    task->meter_ = &meter_of(device_, task->options_.tenant.get());
    Ended ended;
    {
        Lock lock(mutex_);
        spec.request = request_of(task->options_);
        const std::int64_t now = core_.clock().now_ns();
        if (task->options_.start_within_ns < kNever - now)
            spec.deadline_ns = now + task->options_.start_within_ns;
        task->id_ = core_.submit(std::move(spec));
        live_.emplace(task->id_, task);
        count_new(*task);
        ended = deliver(lock);
        wake();
        if (!task->is_done() && workers_ == 0) {
            core_.cancel(task->id_);
            for (TaskPtr& each : deliver(lock)) ended.push_back(std::move(each));
            task->failure_ = std::make_exception_ptr(
                error(ErrorKind::unsupported,
                      {.call = kCall, .expected = "a thread of the system", .got = "none"}));
        }
    }
    announce(ended);
    return task;
}

// -- Threads --------------------------------------------------------------------------------------

bool SchedulerThreads::start_thread(void (SchedulerThreads::*body)()) noexcept {
    for (const std::thread::id over : std::exchange(left_, {})) {
        const auto thread = std::find_if(threads_.begin(), threads_.end(),
                                         [&](const std::thread& each) { return each.get_id() == over; });
        if (thread == threads_.end()) continue;
        thread->join();  // it has nothing left to do
        threads_.erase(thread);
    }
    try {
        threads_.emplace_back([self = shared_from_this(), body] { (self.get()->*body)(); });
        return true;
    } catch (const std::system_error&) {
        return false;
    }
}

bool SchedulerThreads::start_keeper() noexcept {
    if (!keeping_) keeping_ = start_thread(&SchedulerThreads::keep);
    return keeping_;
}

void SchedulerThreads::wake() {
    if (core_.waiting() == 0 && !stopping_) return;
    if (idle_ != 0) {
        work_.notify_one();
    } else if (core_.waiting() != 0 && workers_ - blocked_ < static_cast<std::size_t>(options_.workers)) {
        // Where the system has no thread for it, those that there are will take its tasks.
        if (start_thread(&SchedulerThreads::work)) ++workers_;
    }
    const std::int64_t timer = core_.next_time_ns();
    if (timer != kNever) start_keeper();
    if (timer < keeper_until_ || stopping_) keeper_.notify_one();
}

void SchedulerThreads::work() {
    set_device(device_);
    Lock lock(mutex_);
    // One that worked in the place of a waiting one goes when that works again.
    while (workers_ - blocked_ <= static_cast<std::size_t>(options_.workers)) {
        const auto next = core_.start_next();
        // Released without the lock, which the last one's end takes.
        Ended ended = deliver(lock);  // a deadline may have passed on the way
        TaskPtr task = next ? live_.at(*next) : nullptr;
        if (task || !ended.empty()) {
            if (task) wake();  // perhaps not the only one that may start
            lock.unlock();
            announce(ended);
            if (task) run(task);
            ended.clear();
            task.reset();
            lock.lock();
            continue;
        }
        if (stopping_ && core_.waiting() == 0) break;
        if (core_.next_time_ns() != kNever) wake();  // somebody must look at the clock
        ++idle_;
        work_.wait(lock);
        --idle_;
    }
    --workers_;
    left_.push_back(std::this_thread::get_id());
    work_.notify_all();
    changed_.notify_all();
}

void SchedulerThreads::keep() {
    nanoseconds poll = kShortestPoll;
    Lock lock(mutex_);
    while (!stopping_ || core_.waiting() + core_.running() != 0) {
        std::vector<Draining> asked = std::exchange(draining_, {}), open;
        core_.tick();
        Ended ended = deliver(lock);
        lock.unlock();
        bool moved = !ended.empty();
        announce(ended);
        ended.clear();
        for (Draining& each : asked) {
            if (is_drained(each)) {
                finish(std::move(each));
                moved = true;
            } else {
                open.push_back(std::move(each));
            }
        }
        asked.clear();
        lock.lock();
        std::move(open.begin(), open.end(), std::back_inserter(draining_));
        if (moved) {
            poll = kShortestPoll;
            continue;
        }
        const std::int64_t timer = core_.next_time_ns();
        const std::int64_t now = core_.clock().now_ns();
        keeper_until_ = timer;
        if (!draining_.empty()) {
            keeper_.wait_for(lock, poll);
            poll = std::min(poll * 2, kLongestPoll);
        } else if (timer != kNever) {
            keeper_.wait_for(lock, nanoseconds(std::max<std::int64_t>(timer - now, 1000)));
        } else if (!stopping_ || core_.waiting() + core_.running() != 0) {
            keeper_.wait(lock);
            poll = kShortestPoll;
        }
        keeper_until_ = kNever;
        if (timer != kNever && core_.clock().now_ns() >= timer) work_.notify_one();
    }
    keeping_ = false;
    left_.push_back(std::this_thread::get_id());
    changed_.notify_all();
}

// -- Running --------------------------------------------------------------------------------------

void SchedulerThreads::prepare(Task& task) {
    const QosTaskMeta& qos = task.options_.qos;
    const std::size_t limit =
        qos.memory_limit == kNoMemoryLimit ? 0 : std::max<std::size_t>(qos.memory_limit, 1);
    const std::string name = task.name_.empty() ? "task" : task.name_;
    const int priority = stream_priority(device_.info(), qos);
    {
        Lock lock(mutex_);
        const auto slot = std::find_if(slots_.rbegin(), slots_.rend(), [&](const Slot& each) {
            const Tenant& tenant = *each.tenant;
            return tenant.parent() == task.options_.tenant.get() && tenant.qos() == qos.qos &&
                   each.stream->priority() == priority && tenant.name() == name &&
                   tenant.memory_used() == 0;  // what an earlier task left would count against the limit
        });
        if (slot != slots_.rend()) {
            task.tenant_ = std::move(slot->tenant);
            task.stream_ = std::move(slot->stream);
            slots_.erase(std::next(slot).base());
        }
    }
    if (task.stream_) {
        task.tenant_->set_memory_limit(limit);
        return;
    }
    task.tenant_ = Tenant::create({.name = name, .qos = qos.qos, .memory_limit = limit, .shown = false},
                                  task.options_.tenant);
    try {
        task.stream_ = Stream::create_for(task.tenant_, device_, priority);
    } catch (const Error&) {
        std::vector<Slot> unused;
        {
            Lock lock(mutex_);
            unused.swap(slots_);
        }
        if (unused.empty()) throw;
        unused.clear();  // a tenant may have as many streams as it may, and these are some of them
        task.stream_ = Stream::create_for(task.tenant_, device_, priority);
    }
}

// With the lock held; what is not kept goes into `dropped`, to be destroyed without it.
void SchedulerThreads::keep_slot(Task& task, bool healthy, std::vector<Slot>* dropped) {
    Slot slot{std::move(task.tenant_), std::move(task.stream_)};
    if (!slot.stream) return;
    const Tenant* parent = slot.tenant->parent();
    // A partition whose last task this was gets its streams back.
    const bool idle = parent != nullptr && core_.active(accounts_.at(parent).id) <= 1;
    if (!healthy || idle || stopping_ || slot.stream->capture() != nullptr) {
        dropped->push_back(std::move(slot));
    } else {
        slots_.push_back(std::move(slot));
    }
    const std::size_t most = 2 * static_cast<std::size_t>(options_.workers);
    const auto goes = [&](const Slot& each) { return idle && each.tenant->parent() == parent; };
    for (Slot& each : slots_) {
        if (goes(each)) dropped->push_back(each);
    }
    std::erase_if(slots_, goes);
    if (slots_.size() > most) {
        dropped->push_back(std::move(slots_.front()));
        slots_.erase(slots_.begin());
    }
}

void SchedulerThreads::run(const TaskPtr& task) {
    Draining after{task, TaskState::completed, TaskFault::none, nullptr};
    task->started_ns_ = core_.clock().now_ns();
    try {
        prepare(*task);
        TaskContext context(*task);
        const PlaceScope here({this, task->id_, &context});
        const StreamScope scope(task->stream_);
        const observe::Span span(observe::Topic::task, task->name_.empty() ? "task" : task->name_,
                                 {device_, task->options_.tenant.get()});
        task->run_(context);
    } catch (const TaskError& failure) {
        const bool cancelled = failure.fault() == TaskFault::cancelled && failure.task() == task->id_;
        after.outcome = cancelled ? TaskState::cancelled : TaskState::failed;
        after.fault = cancelled ? TaskFault::cancelled : TaskFault::raised;
        after.failure = std::current_exception();
    } catch (...) {
        after.outcome = TaskState::failed;
        after.fault = TaskFault::raised;
        after.failure = std::current_exception();
    }
    task->run_ = nullptr;
    if (is_drained(after)) {
        finish(std::move(after));
        return;
    }
    {
        Lock lock(mutex_);
        if (start_keeper()) {
            draining_.push_back(std::move(after));
            keeper_.notify_one();
            return;
        }
    }
    // No thread is to be had: this one waits. What fails shows when it asks again.
    try {
        task->stream_->synchronize();
    } catch (const Error&) {
    }
    is_drained(after);
    finish(std::move(after));
}

bool SchedulerThreads::is_drained(Draining& each) noexcept {
    if (!each.task->stream_) return true;  // there was none to be had
    try {
        return each.task->stream_->query();
    } catch (...) {
        // The task's own exception says more, where it has one.
        if (!each.failure) {
            each.outcome = TaskState::failed;
            each.fault = TaskFault::device;
            each.failure = std::current_exception();
        }
        return true;
    }
}

void SchedulerThreads::finish(Draining each) noexcept {
    Task& task = *each.task;
    std::vector<Slot> dropped;
    Ended ended;
    {
        Lock lock(mutex_);
        task.failure_ = std::move(each.failure);
        keep_slot(task, each.fault != TaskFault::device, &dropped);
        lock.unlock();
        dropped.clear();  // before anybody hears of the end, so that whoever does finds it gone
        lock.lock();
        core_.finish(task.id_, each.outcome, each.fault, core_.clock().now_ns() - task.started_ns_);
        ended = deliver(lock);
        wake();
    }
    announce(ended);
}

SchedulerThreads::Ended SchedulerThreads::deliver(Lock&) {
    Ended ended;
    tell_answers();
    for (const Transition& each : core_.take_transitions()) {
        const auto live = live_.find(each.task);
        if (live == live_.end()) continue;
        Task& task = *live->second;
        count_move(task, each.from, each.to);
        if (is_final(each.to)) {
            if (!task.failure_ && each.to != TaskState::completed) task.failure_ = failure_of(each.task);
            ++ended_[static_cast<std::size_t>(each.to)];
            ended.push_back(std::move(live->second));
            live_.erase(live);
        }
        task.state_.store(each.to, std::memory_order_release);
    }
    // Those that wait inside tasks look again whether they may.
    if (!ended.empty() || blocked_ != 0) changed_.notify_all();
    return ended;
}

std::exception_ptr SchedulerThreads::failure_of(TaskId id) const {
    const TaskFault fault = core_.fault(id);
    const Decision& decision = core_.decision(id);
    const TaskId cause = core_.cause(id);
    ErrorParts parts{.call = core_.label(id)};
    switch (fault) {
        case TaskFault::dependency:
            parts.got = str(core_.label(cause), " did not complete, which it waited for");
            break;
        case TaskFault::deadline: parts.got = "a deadline that passed before it could start"; break;
        case TaskFault::rejected:
            parts.got =
                str("a rejection: ", describe(decision, core_.admission().account(decision.account).name));
            break;
        default: parts.got = str("its end: ", to_string(fault)); break;
    }
    return std::make_exception_ptr(TaskError(fault, id, cause, decision, parts));
}

void SchedulerThreads::announce(const Ended& ended) noexcept {
    const PlaceScope here({this, 0, nullptr});
    for (const TaskPtr& task : ended) {
        std::vector<std::function<void()>> callbacks;
        {
            Lock lock(mutex_);
            callbacks = std::exchange(task->callbacks_, {});
        }
        for (const auto& each : callbacks) each();
        // Of one that never ran; it may hold whatever its submitter gave it.
        task->run_ = nullptr;
        task->options_.after.clear();
    }
}

}  // namespace gpk
