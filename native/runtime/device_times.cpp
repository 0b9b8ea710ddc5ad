#include "runtime/device_times.hpp"

#include <algorithm>
#include <cmath>
#include <exception>
#include <utility>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "runtime/device.hpp"
#include "runtime/stream.hpp"

namespace gpk {

namespace {

constexpr std::size_t kMostPending = 4096;  // pairs of events: what is queued beyond them is not timed
constexpr std::size_t kResolveAt = 64;
// Elapsed times are float milliseconds: the base moves on before they get coarser than 0.2 us.
constexpr double kRebaseNs = 2e9;
constexpr int kTrials = 5;

}  // namespace

DeviceTimes::DeviceTimes(Device& device) : driver_(device.driver()), base_(make_event()) {
    const auto destroy = [this](StreamHandle stream) { driver_.stream_destroy(stream); };
    const std::unique_ptr<DriverStream, decltype(destroy)> stream(driver_.stream_create(0), destroy);
    OwnedEvent next = make_event();
    // The event lies between the host's two looks at its clock; of several tries the narrowest is the best.
    double narrowest = HUGE_VAL;
    for (int i = 0; i < kTrials; ++i) {
        const std::int64_t before = steady_clock().now_ns();
        driver_.event_record(next.get(), stream.get());
        driver_.event_synchronize(next.get());
        const auto took = static_cast<double>(steady_clock().now_ns() - before);
        if (took >= narrowest) continue;
        narrowest = took;
        base_ns_ = static_cast<double>(before) + took / 2;
        std::swap(base_, next);
    }
}

DeviceTimes::Pair DeviceTimes::start(const Stream& stream) noexcept {
    Pair pair{{nullptr, Destroy{&driver_}}, {nullptr, Destroy{&driver_}}};
    try {
        {
            std::lock_guard lock(mutex_);
            if (pending_.size() >= kResolveAt) resolve(false);
            if (pending_.size() >= kMostPending) return pair;
            if (!free_.empty()) {
                pair = std::move(free_.back());
                free_.pop_back();
            }
        }
        if (!pair.start) pair = {make_event(), make_event()};
        driver_.event_record(pair.start.get(), stream.handle());
        return pair;
    } catch (const std::exception&) {
        return {{nullptr, Destroy{&driver_}}, {nullptr, Destroy{&driver_}}};
    }
}

std::uint64_t DeviceTimes::end(Pair started, const Stream& stream) noexcept {
    if (!started.start) return 0;
    try {
        driver_.event_record(started.end.get(), stream.handle());
        std::lock_guard lock(mutex_);
        times_.emplace_back();
        pending_.push_back({std::move(started), times_.size()});
        return times_.size();
    } catch (const std::exception&) {
        return 0;  // the work itself was queued; only its time is not known
    }
}

double DeviceTimes::time_of(const OwnedEvent& event) {
    return base_ns_ + 1e6 * static_cast<double>(driver_.event_elapsed_ms(base_.get(), event.get()));
}

void DeviceTimes::resolve(bool wait) {
    while (!pending_.empty()) {
        Pending& oldest = pending_.front();
        if (wait) {
            driver_.event_synchronize(oldest.events.end.get());
        } else if (!driver_.event_query(oldest.events.end.get())) {
            return;
        }
        const double start = time_of(oldest.events.start), end = time_of(oldest.events.end);
        times_[oldest.number - 1] = {std::llround(start), std::llround(std::max(start, end))};
        if (end - base_ns_ > kRebaseNs) {
            std::swap(base_, oldest.events.end);
            base_ns_ = end;
        }
        free_.push_back(std::move(oldest.events));
        pending_.pop_front();
    }
}

void DeviceTimes::finish() noexcept {
    std::lock_guard lock(mutex_);
    try {
        resolve(true);
    } catch (const std::exception&) {
        pending_.clear();  // the device is broken: the times that are left stay unknown
    }
}

DeviceTimes::Times DeviceTimes::operator[](std::uint64_t number) const {
    std::lock_guard lock(mutex_);
    return number == 0 ? Times{} : times_[number - 1];
}

}  // namespace gpk
