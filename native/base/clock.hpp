// Clock: what policy code asks for the time, so that the same code runs on a simulated day.
#pragma once

#include <atomic>
#include <cstdint>

namespace gpk {

class Clock {
   public:
    virtual ~Clock() = default;
    virtual std::int64_t now_ns() const noexcept = 0;
};

// The host's monotonic clock.
const Clock& steady_clock() noexcept;

// A clock that its owner moves.
class VirtualClock final : public Clock {
   public:
    std::int64_t now_ns() const noexcept override { return now_ns_.load(std::memory_order_acquire); }
    // Never back: an earlier time changes nothing.
    void advance_to(std::int64_t time_ns) noexcept;
    void advance(std::int64_t by_ns) noexcept { advance_to(now_ns() + by_ns); }

   private:
    std::atomic<std::int64_t> now_ns_{0};
};

}  // namespace gpk
