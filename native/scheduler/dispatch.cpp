#include "scheduler/dispatch.hpp"

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/error.hpp"
#include "base/log.hpp"

namespace gpk {

namespace {

constexpr std::size_t kMostNames = 4096;

[[noreturn]] void refuse(const char* argument, const char* expected, std::int64_t got) {
    throw error(ErrorKind::value,
                {.call = "LaunchConfig", .argument = argument, .expected = expected, .got = str(got)});
}

}  // namespace

std::string_view to_string(LaunchState state) noexcept {
    static constexpr std::string_view kNames[] = {"queued", "launched", "completed", "failed", "cancelled"};
    return kNames[static_cast<int>(state)];
}

void check(const DispatchConfig& config) {
    constexpr int kMost = 1 << 16;
    if (config.max_outstanding < 1 || config.max_outstanding > kMost) {
        refuse("max_outstanding", "1 to 65536 launches", config.max_outstanding);
    }
    if (config.max_outstanding_ns < 0) refuse("max_outstanding_time", "0 or more", config.max_outstanding_ns);
    if (config.watchdog_ns < 0) refuse("watchdog", "0 or more", config.watchdog_ns);
}

KernelDispatcher::KernelDispatcher(Device& device, const DispatchConfig& config, const Clock& clock)
    : device_(device), config_((check(config), config)), clock_(clock), stream_(Stream::create(device)) {}

KernelDispatcher::~KernelDispatcher() {
    std::deque<Launch> dropped;  // their functions go outside the lock
    std::lock_guard lock(mutex_);
    dropped.swap(queued_);
    for (const Launch& each : dropped) each->state_ = LaunchState::cancelled;
}

KernelDispatcher::Launch KernelDispatcher::submit(std::string name, std::function<void()> work) {
    device_.check_lost();
    auto launch = std::make_shared<PendingLaunch>();
    launch->name_ = std::move(name);
    launch->work_ = std::move(work);
    std::unique_lock lock(mutex_);
    queued_.push_back(launch);
    ++stats_.submitted;
    look_locked(clock_.now_ns());
    send(lock);
    return launch;
}

void KernelDispatcher::finish_locked(PendingLaunch& launch, LaunchState state, std::exception_ptr failure) {
    launch.state_ = state;
    launch.failure_ = std::move(failure);
    launch.start_.reset();
    launch.end_.reset();
    ++(state == LaunchState::completed ? stats_.completed
       : state == LaunchState::failed  ? stats_.failed
                                       : stats_.cancelled);
}

void KernelDispatcher::fail_all_locked(const std::exception_ptr& failure) {
    for (auto* list : {&outstanding_, &queued_}) {
        for (const Launch& each : *list) finish_locked(*each, LaunchState::failed, failure);
        list->clear();
    }
}

// What the device has done, and what it should have.
void KernelDispatcher::look_locked(std::int64_t now_ns) {
    try {
        device_.check_lost();
        while (!outstanding_.empty()) {
            PendingLaunch& first = *outstanding_.front();
            if (!first.end_->query()) {
                if (config_.watchdog_ns > 0 && !first.overdue_ &&
                    now_ns - first.launched_at_ns_ > config_.watchdog_ns) {
                    first.overdue_ = true;
                    ++stats_.overdue;
                    log(LogLevel::warning, str("launch '", first.name_, "' on ", device_.name(),
                                               " has not ended in ", config_.watchdog_ns / 1'000'000, " ms"));
                }
                return;
            }
            first.took_ns_ =
                static_cast<std::int64_t>(1e6 * static_cast<double>(first.end_->elapsed_ms(*first.start_)));
            if (times_.size() >= kMostNames) times_.clear();
            const auto [known, fresh] = times_.try_emplace(first.name_, first.took_ns_);
            if (!fresh) known->second += (first.took_ns_ - known->second) / 4;
            finish_locked(first, LaunchState::completed, nullptr);
            outstanding_.pop_front();
            // The next one's time begins here.
            if (!outstanding_.empty()) outstanding_.front()->launched_at_ns_ = now_ns;
        }
    } catch (const DeviceLostError&) {
        fail_all_locked(std::current_exception());
    } catch (const DriverError&) {
        if (device_.lost()) {
            fail_all_locked(std::current_exception());
        } else {
            finish_locked(*outstanding_.front(), LaunchState::failed, std::current_exception());
            outstanding_.pop_front();
        }
    }
}

bool KernelDispatcher::room_locked(const PendingLaunch& next) const {
    if (outstanding_.empty()) return true;
    if (outstanding_.size() >= static_cast<std::size_t>(config_.max_outstanding)) return false;
    if (config_.max_outstanding_ns == 0) return true;
    std::int64_t sum = next.expected_ns_;
    for (const Launch& each : outstanding_) sum += each->expected_ns_;
    return sum <= config_.max_outstanding_ns;
}

// One thread at a time, so that launches keep their order.
void KernelDispatcher::send(std::unique_lock<std::mutex>& lock) {
    if (sending_) return;
    sending_ = true;
    while (!queued_.empty()) {
        const Launch next = queued_.front();
        const auto known = times_.find(next->name_);
        next->expected_ns_ = known != times_.end() ? known->second : 0;
        if (!room_locked(*next)) break;
        queued_.pop_front();
        next->state_ = LaunchState::launched;
        std::exception_ptr failure;
        lock.unlock();
        try {
            next->start_ = std::make_unique<Event>(device_, true);
            next->end_ = std::make_unique<Event>(device_, true);
            const StreamScope scope(stream_);
            next->start_->record(*stream_);
            next->work_();
            next->end_->record(*stream_);
        } catch (...) {
            failure = std::current_exception();
        }
        next->work_ = nullptr;
        lock.lock();
        next->launched_at_ns_ = clock_.now_ns();
        if (failure) {
            finish_locked(*next, LaunchState::failed, failure);
        } else {
            outstanding_.push_back(next);
        }
        look_locked(clock_.now_ns());
    }
    sending_ = false;
}

void KernelDispatcher::poll() {
    std::unique_lock lock(mutex_);
    look_locked(clock_.now_ns());
    send(lock);
}

LaunchState KernelDispatcher::state(const Launch& launch) {
    poll();
    std::lock_guard lock(mutex_);
    return launch->state_;
}

std::int64_t KernelDispatcher::took_ns(const Launch& launch) const {
    std::lock_guard lock(mutex_);
    return launch->took_ns_;
}

bool KernelDispatcher::cancel(const Launch& launch) {
    std::function<void()> dropped;  // goes outside the lock
    std::lock_guard lock(mutex_);
    const auto found = std::find(queued_.begin(), queued_.end(), launch);
    if (found == queued_.end()) return false;
    queued_.erase(found);
    dropped.swap(launch->work_);
    finish_locked(*launch, LaunchState::cancelled, nullptr);
    return true;
}

bool KernelDispatcher::wait(const Launch& launch, std::int64_t timeout_ns) {
    const std::int64_t began = clock_.now_ns();
    for (int round = 0;; ++round) {
        poll();
        {
            std::lock_guard lock(mutex_);
            if (launch->failure_) std::rethrow_exception(launch->failure_);
            if (launch->state_ != LaunchState::queued && launch->state_ != LaunchState::launched) return true;
            if (!outstanding_.empty() && outstanding_.front()->overdue_) {
                throw error(ErrorKind::driver,
                            {.call = str("launch '", launch->name_, "'"),
                             .expected = str("'", outstanding_.front()->name_, "' to end within ",
                                             config_.watchdog_ns / 1'000'000, " ms"),
                             .got = "a kernel that still runs",
                             .fix = "a running kernel cannot be stopped: end the process, or go on waiting "
                                    "with a longer watchdog"});
            }
        }
        if (timeout_ns >= 0 && clock_.now_ns() - began >= timeout_ns) return false;
        // Short work is met at once; for long work the processor is left to others.
        if (round < 50) {
            std::this_thread::yield();
        } else {
            std::this_thread::sleep_for(std::chrono::microseconds(round < 500 ? 20 : 200));
        }
    }
}

void KernelDispatcher::synchronize() {
    for (;;) {
        Launch last;
        {
            std::lock_guard lock(mutex_);
            if (!queued_.empty()) {
                last = queued_.back();
            } else if (!outstanding_.empty()) {
                last = outstanding_.back();
            } else if (!sending_) {
                return;
            }
        }
        if (last) {
            wait(last);
        } else {
            std::this_thread::yield();
        }
    }
}

DispatchStats KernelDispatcher::stats() {
    poll();
    std::lock_guard lock(mutex_);
    DispatchStats now = stats_;
    now.queued = queued_.size();
    now.outstanding = outstanding_.size();
    for (const Launch& each : outstanding_) now.outstanding_ns += each->expected_ns_;
    return now;
}

}  // namespace gpk
