// Gate: what work passes on its way, so that somebody can keep it waiting, or for good.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace gpk {

class Gate {
   public:
    // False where it has ended. Waits while it is closed. Each true is followed by one leave().
    bool enter() {
        if ((state_.fetch_add(1, std::memory_order_acquire) & kClosed) == 0) return true;
        return enter_closed();
    }
    void leave() noexcept {
        if (state_.fetch_sub(1, std::memory_order_release) == (kClosed | 1)) tell();
    }

    // Returns when nobody is inside. One thread at a time closes a gate.
    void close() {
        std::unique_lock lock(mutex_);
        state_.fetch_or(kClosed, std::memory_order_acq_rel);
        changed_.wait(lock, [&] { return state_.load(std::memory_order_acquire) == kClosed; });
    }
    void open() noexcept {
        std::lock_guard lock(mutex_);
        state_.fetch_and(~kClosed, std::memory_order_acq_rel);
        changed_.notify_all();
    }
    // Of a closed gate: it stays so, and whoever waits is sent away.
    void end() noexcept {
        std::lock_guard lock(mutex_);
        ended_.store(true, std::memory_order_release);
        changed_.notify_all();
    }
    bool ended() const noexcept { return ended_.load(std::memory_order_acquire); }

   private:
    static constexpr std::uint32_t kClosed = std::uint32_t{1} << 31;

    bool enter_closed() {
        for (;;) {
            leave();
            std::unique_lock lock(mutex_);
            changed_.wait(lock, [&] {
                return ended_.load(std::memory_order_relaxed) ||
                       (state_.load(std::memory_order_relaxed) & kClosed) == 0;
            });
            if (ended_.load(std::memory_order_relaxed)) return false;
            if ((state_.fetch_add(1, std::memory_order_acquire) & kClosed) == 0) return true;
        }
    }
    void tell() noexcept {
        std::lock_guard lock(mutex_);
        changed_.notify_all();
    }

    std::atomic<std::uint32_t> state_{0};  // how many are inside, and whether it is closed
    std::atomic<bool> ended_{false};
    std::mutex mutex_;
    std::condition_variable changed_;
};

}  // namespace gpk
