#include "scheduler/dispatch_thread.hpp"

#include <algorithm>
#include <atomic>
#include <system_error>
#include <utility>
#include <vector>

#include "base/log.hpp"
#include "base/platform.hpp"
#include "scheduler/dispatch_queue.hpp"

namespace gpk {

namespace {

using std::chrono::nanoseconds;

constexpr nanoseconds kShortestPoll{20'000}, kLongestPoll{500'000};

}  // namespace

// Of this process: a forked child has none of its parent's, and no lock that a thread of it holds.
struct DispatchThread::Registry {
    std::mutex mutex;
    std::vector<std::weak_ptr<Pulse>> all;
    bool closed = false;

    static Registry& get() {
        static std::atomic<Registry*> current{nullptr};
        [[maybe_unused]] static const bool made = [] {
            current.store(new Registry);
            platform::on_fork_in_child([] { current.store(new Registry); });
            return true;
        }();
        return *current.load(std::memory_order_acquire);
    }
};

void DispatchThread::run(const std::shared_ptr<Pulse>& pulse, std::shared_ptr<DispatchQueue> queue) noexcept {
    set_device(queue->device());
    nanoseconds interval = kShortestPoll;
    std::uint64_t issued = 0;
    std::unique_lock lock(pulse->mutex);
    while (!pulse->stop) {
        pulse->woken = false;
        lock.unlock();
        DispatchQueue::Pass pass{.unattended = true, .issued = issued};
        try {
            pass = queue->poll();
        } catch (const std::exception& failure) {  // of memory; what is queued is still there
            log(LogLevel::warning, failure.what());
        }
        interval = pass.issued != issued ? kShortestPoll : std::min(interval * 2, kLongestPoll);
        issued = pass.issued;
        lock.lock();
        if (pass.unattended) {
            pulse->changed.wait_for(lock, interval, [&] { return pulse->stop; });
        } else {
            pulse->idle = true;
            pulse->changed.wait(lock, [&] { return pulse->stop || pulse->woken; });
            pulse->idle = false;
            interval = kShortestPoll;
        }
    }
    lock.unlock();
    queue.reset();
    lock.lock();
    pulse->running = false;
    pulse->changed.notify_all();
}

void DispatchThread::wake(const std::shared_ptr<DispatchQueue>& queue) noexcept {
    std::lock_guard lock(pulse_->mutex);
    if (pulse_->stop) return;
    if (pulse_->running) {
        pulse_->woken = true;
        if (pulse_->idle) pulse_->changed.notify_all();
        return;
    }
    try {
        Registry& registry = Registry::get();
        std::lock_guard registry_lock(registry.mutex);
        if (registry.closed) return;
        std::erase_if(registry.all, [](const auto& each) { return each.expired(); });
        registry.all.push_back(pulse_);
        std::thread thread([pulse = pulse_, queue = queue]() mutable { run(pulse, std::move(queue)); });
        pulse_->queue = queue;
        pulse_->id = thread.get_id();
        pulse_->running = true;
        thread.detach();
    } catch (const std::exception& failure) {
        log(LogLevel::warning, str("a dispatcher has no thread: ", failure.what()));
    }
}

bool DispatchThread::end(Pulse& pulse, const nanoseconds* timeout) noexcept {
    std::unique_lock lock(pulse.mutex);
    pulse.stop = true;
    pulse.changed.notify_all();
    const auto over = [&] { return !pulse.running || pulse.id == std::this_thread::get_id(); };
    if (timeout != nullptr) return pulse.changed.wait_for(lock, *timeout, over);
    pulse.changed.wait(lock, over);
    return true;
}

bool DispatchThread::end_all(nanoseconds timeout) noexcept {
    std::vector<std::weak_ptr<Pulse>> all;
    {
        Registry& registry = Registry::get();
        std::lock_guard lock(registry.mutex);
        registry.closed = true;
        all.swap(registry.all);
    }
    const auto until = std::chrono::steady_clock::now() + timeout;
    bool all_over = true;
    for (const auto& each : all) {
        const auto pulse = each.lock();
        if (!pulse) continue;
        std::shared_ptr<DispatchQueue> queue;
        {
            std::lock_guard lock(pulse->mutex);
            pulse->stop = true;
            queue = pulse->queue.lock();
        }
        if (queue) queue->cancel_all();
        queue.reset();
        const nanoseconds left =
            std::max<nanoseconds>(until - std::chrono::steady_clock::now(), nanoseconds(0));
        all_over = end(*pulse, &left) && all_over;
    }
    return all_over;
}

}  // namespace gpk
