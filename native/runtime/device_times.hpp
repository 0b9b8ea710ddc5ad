// DeviceTimes: when pieces of work ran on a device, from events around each, on the host's steady clock.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "driver/driver.hpp"

namespace gpk {

class Device;
class Stream;

class DeviceTimes {
   public:
    struct Times {
        std::int64_t start_ns = 0, end_ns = 0;  // 0: not known
    };

    // Ties the device's clock to the host's, which waits for the device for a moment. Throws DriverError.
    explicit DeviceTimes(Device& device);

    struct Destroy {
        Driver* driver;
        void operator()(EventHandle event) const noexcept { driver->event_destroy(event); }
    };
    using OwnedEvent = std::unique_ptr<DriverEvent, Destroy>;
    struct Pair {
        OwnedEvent start, end;
    };

    // Around one piece of work: end() takes what start() gave. Its number is from 1, or 0 where it could not
    // be timed: too many are under way, or the driver refuses.
    Pair start(const Stream& stream) noexcept;
    std::uint64_t end(Pair started, const Stream& stream) noexcept;

    void finish() noexcept;  // waits for what is under way
    Times operator[](std::uint64_t number) const;

   private:
    struct Pending {
        Pair events;
        std::uint64_t number;
    };
    OwnedEvent make_event() { return {driver_.event_create(true), Destroy{&driver_}}; }
    void resolve(bool wait);  // those that were reached, or all
    double time_of(const OwnedEvent& event);

    Driver& driver_;
    OwnedEvent base_;  // an event whose time is known
    double base_ns_ = 0;
    mutable std::mutex mutex_;
    std::vector<Pair> free_;
    std::deque<Pending> pending_;  // the oldest first
    std::deque<Times> times_;
};

}  // namespace gpk
