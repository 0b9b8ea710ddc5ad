#include "scheduler/dispatch_queue.hpp"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "base/error.hpp"
#include "base/log.hpp"

namespace gpk {

namespace {

constexpr std::size_t kMostNames = 4096;
constexpr std::uint32_t kFirstRuns = 2, kEvery = 64;  // that are measured
constexpr std::int64_t kMarkNs = 50'000;              // a marker for so much work
constexpr std::uint64_t kMarkCount = 16;              // or so many launches

}  // namespace

DispatchQueue::DispatchQueue(Device& device, const DispatchConfig& config, const Clock& clock)
    : device_(device), config_((check(config), config)), clock_(clock), stream_(Stream::create(device)) {}

DispatchQueue::~DispatchQueue() { cancel_all(); }

void DispatchQueue::cancel_all() noexcept {
    std::deque<Launch> dropped;
    std::vector<std::function<void()>> functions;  // go outside the lock
    std::lock_guard lock(mutex_);
    dropped.swap(queued_);
    for (const Launch& each : dropped) {
        functions.push_back(std::exchange(each->work_, nullptr));
        finish_locked(*each, LaunchState::cancelled, nullptr);
    }
}

DispatchQueue::Launch DispatchQueue::submit(std::string name, std::function<void()> work, bool* unattended) {
    device_.check_lost();
    auto launch = std::make_shared<PendingLaunch>();
    launch->name_ = std::move(name);
    launch->work_ = std::move(work);
    Lock lock(mutex_);
    if (times_.size() < kMostNames) {
        launch->known_ = &times_[launch->name_];
    } else if (const auto known = times_.find(launch->name_); known != times_.end()) {
        launch->known_ = &known->second;
    }
    queued_.push_back(launch);
    ++stats_.submitted;
    send(lock);
    *unattended = unattended_locked();
    return launch;
}

void DispatchQueue::finish_locked(PendingLaunch& launch, LaunchState state, std::exception_ptr failure) {
    launch.state_ = state;
    launch.failure_ = std::move(failure);
    ++(state == LaunchState::completed ? stats_.completed
       : state == LaunchState::failed  ? stats_.failed
                                       : stats_.cancelled);
}

// -- What the device has done ---------------------------------------------------------------------

void DispatchQueue::complete_locked(std::uint64_t place, std::int64_t now_ns) {
    while (!outstanding_.empty() && outstanding_.front()->place_ <= place) {
        PendingLaunch& first = *outstanding_.front();
        if (first.took_ns_ < 0) first.took_ns_ = first.expected_ns_;
        outstanding_ns_ -= first.expected_ns_;
        finish_locked(first, LaunchState::completed, nullptr);
        outstanding_.pop_front();
        // The next one's time begins here.
        if (!outstanding_.empty()) outstanding_.front()->launched_at_ns_ = now_ns;
    }
}

void DispatchQueue::fail_locked(std::uint64_t up_to, const std::exception_ptr& failure) {
    while (!outstanding_.empty() && outstanding_.front()->place_ <= up_to) {
        outstanding_ns_ -= outstanding_.front()->expected_ns_;
        finish_locked(*outstanding_.front(), LaunchState::failed, failure);
        outstanding_.pop_front();
    }
    while (!markers_.empty() && markers_.front().place <= up_to) {
        keep_locked(std::move(markers_.front()));
        markers_.pop_front();
    }
}

void DispatchQueue::watch_locked(std::int64_t now_ns) {
    if (config_.watchdog_ns == 0 || outstanding_.empty()) return;
    PendingLaunch& first = *outstanding_.front();
    if (first.overdue_ || now_ns - first.launched_at_ns_ <= config_.watchdog_ns) return;
    first.overdue_ = true;
    ++stats_.overdue;
    log(LogLevel::warning, str("launch '", first.name_, "' on ", device_.name(), " has not ended in ",
                               config_.watchdog_ns / 1'000'000, " ms"));
}

void DispatchQueue::look_at_markers_locked(std::int64_t now_ns) {
    while (!markers_.empty()) {
        Marker& first = markers_.front();
        if (!first.end->query()) return watch_locked(now_ns);
        if (first.start) {
            PendingLaunch& launch = *first.measured;
            launch.took_ns_ =
                static_cast<std::int64_t>(1e6 * static_cast<double>(first.end->elapsed_ms(*first.start)));
            if (PendingLaunch::Known* known = launch.known_) {
                known->ns += known->measured == 0 ? launch.took_ns_ : (launch.took_ns_ - known->ns) / 4;
                ++known->measured;
            }
        }
        complete_locked(first.place, now_ns);
        keep_locked(std::move(first));
        markers_.pop_front();
    }
}

bool DispatchQueue::has_unmarked_locked() const {
    return !outstanding_.empty() && (markers_.empty() || markers_.back().place < outstanding_.back()->place_);
}

void DispatchQueue::look_locked(std::int64_t now_ns) {
    std::uint64_t asked = 0;  // about the launches up to this one
    try {
        device_.check_lost();
        asked = markers_.empty() ? issued_ : markers_.front().place;
        look_at_markers_locked(now_ns);
        asked = issued_;
        if (has_unmarked_locked() && stream_->query()) {
            look_at_markers_locked(now_ns);
            complete_locked(outstanding_.empty() ? 0 : outstanding_.back()->place_, now_ns);
        }
    } catch (const DriverError&) {
        const std::exception_ptr failure = std::current_exception();
        if (!device_.lost()) return fail_locked(asked, failure);
        fail_locked(issued_, failure);
        for (const Launch& each : queued_) finish_locked(*each, LaunchState::failed, failure);
        queued_.clear();
    }
}

// -- Sending --------------------------------------------------------------------------------------

bool DispatchQueue::room_locked(const PendingLaunch& next) const {
    if (outstanding_.empty()) return true;
    if (outstanding_.size() >= static_cast<std::size_t>(config_.max_outstanding)) return false;
    return config_.max_outstanding_ns == 0 ||
           outstanding_ns_ + next.expected_ns_ <= config_.max_outstanding_ns;
}

bool DispatchQueue::wants_measure(const PendingLaunch& next) const {
    const PendingLaunch::Known* known = next.known_;
    return known == nullptr || known->measured < kFirstRuns || known->launches % kEvery == 0;
}

bool DispatchQueue::wants_marker(const PendingLaunch& next) const {
    if (config_.watchdog_ns > 0) return true;
    const auto quarter = static_cast<std::uint64_t>(config_.max_outstanding) / 4;
    const std::int64_t most_ns =
        config_.max_outstanding_ns > 0 ? std::min(kMarkNs, config_.max_outstanding_ns / 4) : kMarkNs;
    return unmarked_ + 1 >= std::min(quarter, kMarkCount) || unmarked_ns_ + next.expected_ns_ >= most_ns;
}

// Recording one that measures takes the host four times as long as one that does not.
std::unique_ptr<Event> DispatchQueue::event_locked(bool measures) {
    auto& spare = spare_[measures];
    if (spare.empty()) return std::make_unique<Event>(device_, measures);
    auto event = std::move(spare.back());
    spare.pop_back();
    return event;
}

void DispatchQueue::keep_locked(Marker marker) noexcept {
    auto& spare = spare_[marker.start != nullptr];
    for (auto* event : {&marker.start, &marker.end}) {
        if (*event && spare.size() < kMarkCount) spare.push_back(std::move(*event));
    }
}

bool DispatchQueue::unattended_locked() const {
    return !queued_.empty() || (config_.watchdog_ns > 0 && !outstanding_.empty());
}

// One thread at a time, so that launches keep their order.
void DispatchQueue::send(Lock& lock) {
    if (sending_) return;
    sending_ = true;
    sender_ = std::this_thread::get_id();
    while (!queued_.empty()) {
        const Launch next = queued_.front();
        next->expected_ns_ = next->known_ != nullptr ? next->known_->ns : 0;
        if (!room_locked(*next)) {
            look_locked(clock_.now_ns());
            if (queued_.empty() || !room_locked(*next)) break;
        }
        queued_.pop_front();
        launch(lock, next);
    }
    sending_ = false;
    sender_ = {};
}

void DispatchQueue::launch(Lock& lock, const Launch& next) {
    next->state_ = LaunchState::launched;
    next->place_ = ++issued_;
    Marker marker;
    marker.place = next->place_;
    std::exception_ptr failure;
    try {
        if (wants_measure(*next)) {
            marker.start = event_locked(true);
            marker.measured = next;
        }
        if (marker.start || wants_marker(*next)) marker.end = event_locked(marker.start != nullptr);
    } catch (...) {
        failure = std::current_exception();
    }
    lock.unlock();
    if (!failure) {
        try {
            const StreamScope scope(stream_);
            if (marker.start) marker.start->record(*stream_);
            next->work_();
            if (marker.end) marker.end->record(*stream_);
        } catch (...) {
            failure = std::current_exception();
        }
    }
    next->work_ = nullptr;
    lock.lock();
    if (failure) {
        keep_locked(std::move(marker));
        return finish_locked(*next, LaunchState::failed, std::move(failure));
    }
    if (config_.watchdog_ns > 0) next->launched_at_ns_ = clock_.now_ns();
    if (next->known_ != nullptr) ++next->known_->launches;
    outstanding_.push_back(next);
    outstanding_ns_ += next->expected_ns_;
    if (!marker.end) {
        ++unmarked_;
        unmarked_ns_ += next->expected_ns_;
        return;
    }
    unmarked_ = 0;
    unmarked_ns_ = 0;
    markers_.push_back(std::move(marker));
    // So that what is done does not add up where nobody asks.
    if (markers_.size() > 1) look_locked(clock_.now_ns());
}

DispatchQueue::Pass DispatchQueue::poll() {
    Lock lock(mutex_);
    look_locked(clock_.now_ns());
    send(lock);
    return {.unattended = unattended_locked(), .issued = issued_};
}

// -- Asking ---------------------------------------------------------------------------------------

LaunchState DispatchQueue::state(const Launch& launch) {
    poll();
    std::lock_guard lock(mutex_);
    return launch->state_;
}

std::int64_t DispatchQueue::took_ns(const Launch& launch) const {
    std::lock_guard lock(mutex_);
    return launch->took_ns_;
}

bool DispatchQueue::cancel(const Launch& launch) {
    std::function<void()> dropped;  // goes outside the lock
    std::lock_guard lock(mutex_);
    const auto found = std::find(queued_.begin(), queued_.end(), launch);
    if (found == queued_.end()) return false;
    queued_.erase(found);
    dropped.swap(launch->work_);
    finish_locked(*launch, LaunchState::cancelled, nullptr);
    return true;
}

bool DispatchQueue::wait(const Launch& launch, std::int64_t timeout_ns) {
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

void DispatchQueue::synchronize() {
    for (;;) {
        Launch last;
        {
            std::lock_guard lock(mutex_);
            if (sender_ == std::this_thread::get_id()) {
                throw error(ErrorKind::unsupported,
                            {.call = "KernelDispatcher.synchronize",
                             .got = "a call from one of its launches, which it would wait for",
                             .fix = "call it from outside"});
            }
            if (!queued_.empty()) {
                last = queued_.back();
            } else if (!outstanding_.empty()) {
                last = outstanding_.back();
            } else if (!sending_) {
                return;
            }
        }
        if (last) {
            wait(last, -1);
        } else {
            std::this_thread::yield();
        }
    }
}

DispatchStats DispatchQueue::stats() {
    poll();
    std::lock_guard lock(mutex_);
    DispatchStats now = stats_;
    now.queued = queued_.size();
    now.outstanding = outstanding_.size();
    now.outstanding_ns = outstanding_ns_;
    return now;
}

}  // namespace gpk
