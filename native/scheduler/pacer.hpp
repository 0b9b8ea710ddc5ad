// Pacer: when a tenant's next piece of work may go to the device. Policy alone, on times that it is told: it
// runs on a simulated clock as on the real one. Not thread-safe.
#pragma once

#include <cstdint>

#include "scheduler/slicing.hpp"

namespace gpk {

struct PacingConfig {
    // Upper limits, as shares; 0 for none. Time is the device's as measured, bandwidth what work declares.
    double time_share = 0;
    double bandwidth_share = 0;
    double device_bandwidth = 0;  // bytes a second that bandwidth_share is of
    // Work of a protected tenant is never held for another's; others are, while it has work in flight.
    bool is_protected = false;
    // Of others, while there is a protected tenant: the most device time that is queued and not yet done, and
    // the longest that work is held before it gets that much.
    std::int64_t queue_ahead_ns = 50'000;
    std::int64_t max_hold_ns = 2'000'000;
    // How far a tenant may be behind its share and still make up for it.
    std::int64_t burst_ns = 5'000'000;
    SliceConfig slicing = {};
};
// Throws Error (value).
void check(const PacingConfig& config);

// What a share allows: tokens come at a steady rate, work takes them, and may begin while there are any.
class TokenBucket {
   public:
    TokenBucket(double rate, double depth) : rate_(rate), depth_(depth) {}
    // The time from which work may begin.
    std::int64_t ready_at(std::int64_t now_ns) const noexcept;
    void take(std::int64_t now_ns, double amount) noexcept;

   private:
    double tokens_at(std::int64_t now_ns) const noexcept;

    const double rate_, depth_;  // a nanosecond; the most that is kept
    double tokens_ = 0;
    std::int64_t at_ns_ = -1;
};

class Pacer {
   public:
    explicit Pacer(const PacingConfig& config);

    struct Situation {
        bool guarded = false;  // there is a protected tenant
        bool held = false;     // and it has work in flight
    };
    // 0: may go, and counts as gone. Else when to ask again, at the latest.
    std::int64_t admit(std::int64_t now_ns, std::int64_t expected_ns, double bytes,
                       const Situation& situation);
    // It was not queued after all.
    void undo(std::int64_t now_ns, std::int64_t expected_ns, double bytes) noexcept;

    // A marker behind all that was admitted so far: returned is its place.
    std::int64_t mark() const noexcept { return issued_ns_; }
    // Whether the device had reached the place at `now_ns`: corrects what is thought to be outstanding.
    void seen(std::int64_t now_ns, std::int64_t place, bool reached) noexcept;
    std::int64_t outstanding_ns(std::int64_t now_ns) const noexcept;
    std::int64_t issued_ns() const noexcept { return issued_ns_; }  // since the beginning

   private:
    bool hold_is_over(std::int64_t now_ns, std::int64_t expected_ns) noexcept;

    const PacingConfig config_;
    TokenBucket time_, bytes_;
    std::int64_t issued_ns_ = 0;
    std::int64_t busy_until_ns_ = 0;
    std::int64_t held_since_ns_ = -1;
    std::int64_t credit_ns_ = 0;  // device time that it may have although it is held
};

}  // namespace gpk
