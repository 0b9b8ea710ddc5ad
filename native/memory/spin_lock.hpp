// SpinLock: for a few instructions at a time, never across a call that may wait.
#pragma once

#include <atomic>
#include <thread>

#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#endif

namespace gpk {

class SpinLock {
   public:
    void lock() noexcept {
        while (locked_.exchange(true, std::memory_order_acquire)) wait();
    }
    bool try_lock() noexcept { return !locked_.exchange(true, std::memory_order_acquire); }
    void unlock() noexcept { locked_.store(false, std::memory_order_release); }

   private:
    // The holder may have lost its core, so the wait gives up its own after a while.
    void wait() noexcept {
        for (int i = 0; locked_.load(std::memory_order_relaxed); ++i) {
            if (i < 64) {
#if defined(__x86_64__) || defined(_M_X64)
                _mm_pause();
#endif
            } else {
                std::this_thread::yield();
            }
        }
    }

    std::atomic<bool> locked_{false};
};

}  // namespace gpk
