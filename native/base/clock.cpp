#include "base/clock.hpp"

#include <chrono>

namespace gpk {

namespace {

class SteadyClock final : public Clock {
   public:
    std::int64_t now_ns() const noexcept override {
        return std::chrono::duration_cast<std::chrono::nanoseconds>(
                   std::chrono::steady_clock::now().time_since_epoch())
            .count();
    }
};

}  // namespace

const Clock& steady_clock() noexcept {
    static const SteadyClock clock;
    return clock;
}

void VirtualClock::advance_to(std::int64_t time_ns) noexcept {
    std::int64_t now = now_ns_.load(std::memory_order_relaxed);
    while (now < time_ns && !now_ns_.compare_exchange_weak(now, time_ns, std::memory_order_acq_rel)) {
    }
}

}  // namespace gpk
