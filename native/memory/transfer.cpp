#include "memory/transfer.hpp"

#include <algorithm>
#include <thread>
#include <utility>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/platform.hpp"
#include "memory/transfer_lane.hpp"

namespace gpk {

namespace {

// A short copy ends sooner than a sleeping thread wakes.
constexpr std::chrono::microseconds kSpin{100};

std::atomic<unsigned> forks{0};
std::atomic<void (*)(const std::function<void()>&)> around_wait{nullptr};

void blocking(const std::function<void()>& wait) {
    if (const auto around = around_wait.load(std::memory_order_acquire)) return around(wait);
    wait();
}

}  // namespace

void set_around_wait(void (*around)(const std::function<void()>& wait)) {
    around_wait.store(around, std::memory_order_release);
}

unsigned process_generation() noexcept {
    static const bool told = [] {
        platform::on_fork_in_child([] { forks.fetch_add(1, std::memory_order_relaxed); });
        return true;
    }();
    static_cast<void>(told);
    return forks.load(std::memory_order_relaxed);
}

std::string_view to_string(TransferState state) noexcept {
    static constexpr std::string_view kNames[] = {"queued", "in_progress", "completed", "failed",
                                                  "cancelled"};
    return kNames[static_cast<std::size_t>(state)];
}

Transfer::Transfer(TransferRequest request, std::shared_ptr<TransferSync> sync,
                   std::shared_ptr<Stream> stream)
    : request_(std::move(request)),
      sync_(std::move(sync)),
      stream_(std::move(stream)),
      process_(process_generation()) {}

// The threads that would end it run in the parent, and the mutex may be held there for ever.
void Transfer::check_process(const char* call) const {
    if (process_ == process_generation()) return;
    throw error(ErrorKind::unsupported,
                {.call = call,
                 .got = "a transfer of the process from which this one was forked",
                 .fix = "wait for it before the fork, or start child processes with 'spawn'"});
}

bool Transfer::wait(Timeout timeout) {
    if (over()) return true;
    check_process("transfer");
    const auto start = std::chrono::steady_clock::now();
    const auto spin = timeout ? std::min<std::chrono::nanoseconds>(*timeout, kSpin) : kSpin;
    while (std::chrono::steady_clock::now() - start < spin) {
        if (over()) return true;
        if (priority() < 0) help();
        std::this_thread::yield();
    }
    std::unique_lock lock(sync_->mutex);
    const auto is_over = [this] { return over(); };
    // Longer than a century is for ever; the clock's arithmetic would overflow.
    if (!timeout || *timeout > std::chrono::hours(24 * 36500)) {
        sync_->changed.wait(lock, is_over);
        return true;
    }
    return sync_->changed.wait_until(lock, start + *timeout, is_over);
}

// Whoever waits for an urgent transfer sees to its end, since the lane's thread may yet have to wake.
void Transfer::help() {
    std::unique_lock lock(sync_->mutex);
    if (lane_ != nullptr) lane_->help(lock);
}

void Transfer::get() {
    wait();
    if (state() == TransferState::failed) std::rethrow_exception(failure());
    if (state() == TransferState::cancelled) {
        throw error(ErrorKind::value,
                    {.call = "transfer",
                     .expected = "one that runs to its end",
                     .got = str("one cancelled after ", bytes_done(), " of ", bytes(), " bytes")});
    }
}

std::exception_ptr Transfer::failure() const {
    if (state() != TransferState::failed) return nullptr;
    return failure_;  // never changed once it is over
}

bool Transfer::cancel() {
    if (over()) return false;
    check_process("transfer");
    std::lock_guard lock(sync_->mutex);
    if (over() || stopping_ || lane_ == nullptr) return false;
    if (submitted_ == bytes() && kind() != TransferKind::to_host) return false;
    lane_->stop(shared_from_this(), nullptr);
    return true;
}

void Transfer::on_done(std::function<void()> call) {
    if (!over()) {
        check_process("transfer");
        std::lock_guard lock(sync_->mutex);
        if (!over()) {
            calls_.push_back(std::move(call));
            return;
        }
    }
    try {
        call();
    } catch (const std::exception& failure) {
        log(LogLevel::warning, str("transfer: a callback failed: ", failure.what()));
    }
}

void Transfer::follow(Stream& earlier) {
    if (&earlier == stream_.get() || earlier.query()) return;
    auto event = std::make_shared<Event>(earlier.device());
    event->record(earlier);
    after_.push_back(std::move(event));
}

void Transfer::follow(std::shared_ptr<Transfer> earlier) {
    if (earlier->state() == TransferState::completed) return;
    if (!earlier->over()) return earlier_.push_back(std::move(earlier));
    // It ended early: what it was to follow comes instead of it, so that no chain of such ones grows.
    std::lock_guard lock(sync_->mutex);
    after_.insert(after_.end(), earlier->after_.begin(), earlier->after_.end());
    earlier_.insert(earlier_.end(), earlier->earlier_.begin(), earlier->earlier_.end());
}

bool Transfer::blocked() const noexcept {
    return !std::all_of(earlier_.begin(), earlier_.end(), [](const auto& each) { return each->queued(); });
}

bool Transfer::waits_for_nothing() const {
    return std::all_of(after_.begin(), after_.end(), [](const auto& event) { return event->query(); }) &&
           std::all_of(earlier_.begin(), earlier_.end(),
                       [](const auto& each) { return each->state() == TransferState::completed; });
}

void Transfer::wait_queued() {
    if (queued()) return;
    check_process("use of an array under transfer");
    blocking([this] {
        std::unique_lock lock(sync_->mutex);
        sync_->changed.wait(lock, [this] { return queued(); });
    });
}

void Transfer::order_before(Stream& next) {
    wait_queued();
    if (state() == TransferState::completed) return;
    check_process("use of an array under transfer");
    std::unique_lock lock(sync_->mutex);
    if (state() == TransferState::completed) return;
    if (!over()) {
        const auto end = end_;
        lock.unlock();
        return next.wait(*end);
    }
    // It ended early, so what it was to follow may be under way yet.
    const auto after = after_;
    const auto earlier = earlier_;
    lock.unlock();
    for (const auto& event : after) next.wait(*event);
    for (const auto& each : earlier) each->order_before(next);
}

}  // namespace gpk
