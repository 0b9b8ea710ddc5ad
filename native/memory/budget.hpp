// DriverBudget: what a pool has taken from the driver, and how much it may take.
#pragma once

#include <atomic>
#include <cstddef>

namespace gpk {

class DriverBudget {
   public:
    // Before memory is asked for; false where the limit has no room.
    bool take(std::size_t bytes) noexcept {
        std::size_t now = used_.load(std::memory_order_relaxed);
        do {
            const std::size_t limit = limit_.load(std::memory_order_relaxed);
            if (limit != 0 && (now > limit || bytes > limit - now)) return false;
        } while (!used_.compare_exchange_weak(now, now + bytes, std::memory_order_relaxed));
        return true;
    }
    bool has(std::size_t bytes) const noexcept {
        return limit() == 0 || (used() <= limit() && bytes <= limit() - used());
    }
    void give(std::size_t bytes) noexcept { used_.fetch_sub(bytes, std::memory_order_relaxed); }

    std::size_t used() const noexcept { return used_.load(std::memory_order_relaxed); }
    std::size_t limit() const noexcept { return limit_.load(std::memory_order_relaxed); }
    void set_limit(std::size_t bytes) noexcept { limit_.store(bytes, std::memory_order_relaxed); }

   private:
    std::atomic<std::size_t> used_{0}, limit_{0};  // limit 0: none
};

}  // namespace gpk
