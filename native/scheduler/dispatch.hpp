// KernelDispatcher: a stream's launches in order, held back while too much of them is outstanding: in number
// or in device time. Each launch tells how far it is.
//
// It has no thread of its own. What is queued goes to the device when the dispatcher is asked: by submit(),
// poll(), and whoever waits.
#pragma once

#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "base/clock.hpp"
#include "runtime/device.hpp"
#include "runtime/stream.hpp"

namespace gpk {

struct DispatchConfig {
    int max_outstanding = 64;             // launches on the device and not done
    std::int64_t max_outstanding_ns = 0;  // of device time, as measured before; 0 for no limit
    std::int64_t watchdog_ns = 0;         // of a launch that does not end; 0 for none
};
void check(const DispatchConfig& config);  // throws Error (value)

enum class LaunchState : std::uint8_t { queued, launched, completed, failed, cancelled };
std::string_view to_string(LaunchState state) noexcept;

class KernelDispatcher;

// One launch. Used under its dispatcher's lock.
class PendingLaunch {
   public:
    const std::string& name() const noexcept { return name_; }

   private:
    friend class KernelDispatcher;
    std::string name_;
    std::function<void()> work_;
    LaunchState state_ = LaunchState::queued;
    std::exception_ptr failure_;
    std::unique_ptr<Event> start_, end_;
    std::int64_t expected_ns_ = 0, launched_at_ns_ = 0, took_ns_ = -1;
    bool overdue_ = false;  // and told
};

struct DispatchStats {
    std::uint64_t submitted = 0, completed = 0, failed = 0, cancelled = 0, overdue = 0;
    std::size_t queued = 0, outstanding = 0;
    std::int64_t outstanding_ns = 0;
};

class KernelDispatcher {
   public:
    using Launch = std::shared_ptr<PendingLaunch>;

    // A stream of its own, of the thread's current tenant.
    KernelDispatcher(Device& device, const DispatchConfig& config, const Clock& clock = steady_clock());
    ~KernelDispatcher();  // cancels what is queued; what is on the device goes on
    KernelDispatcher(const KernelDispatcher&) = delete;
    KernelDispatcher& operator=(const KernelDispatcher&) = delete;

    // `work` launches something on the thread's current stream, which is then this dispatcher's. An exception
    // of it is the launch's failure.
    Launch submit(std::string name, std::function<void()> work);
    // Looks what is done and sends what may go.
    void poll();
    LaunchState state(const Launch& launch);
    std::int64_t took_ns(const Launch& launch) const;  // device time; -1 until it is completed
    // True where it was still queued. What is on the device cannot be taken back.
    bool cancel(const Launch& launch);
    // Until it has ended, or for so long (negative: without end); false where it has not. Throws its failure,
    // and Error (driver) for one that the watchdog has found.
    bool wait(const Launch& launch, std::int64_t timeout_ns = -1);
    void synchronize();  // until nothing is queued and nothing outstanding

    const std::shared_ptr<Stream>& stream() const noexcept { return stream_; }
    Device& device() const noexcept { return device_; }
    DispatchStats stats();

   private:
    void look_locked(std::int64_t now_ns);
    void fail_all_locked(const std::exception_ptr& failure);
    void finish_locked(PendingLaunch& launch, LaunchState state, std::exception_ptr failure);
    bool room_locked(const PendingLaunch& next) const;
    void send(std::unique_lock<std::mutex>& lock);

    Device& device_;
    const DispatchConfig config_;
    const Clock& clock_;
    const std::shared_ptr<Stream> stream_;
    mutable std::mutex mutex_;  // not held while `work` runs
    bool sending_ = false;
    std::deque<Launch> queued_, outstanding_;
    std::map<std::string, std::int64_t, std::less<>> times_;  // measured, by name
    DispatchStats stats_;
};

}  // namespace gpk
