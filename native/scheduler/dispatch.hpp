// KernelDispatcher: a stream's launches in order, held back while too much of them is outstanding: in number
// or in device time. Each launch tells how far it is.
//
// What has to wait goes by itself: a thread of the dispatcher's looks after it, begun when the first launch
// has to wait or is watched. A dispatcher on a clock of the caller's has none: there what is queued goes when
// it is asked, by submit(), poll() and whoever waits.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
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

class DispatchQueue;
class DispatchThread;
class PendingLaunch;  // see scheduler/dispatch_queue.hpp

struct DispatchStats {
    std::uint64_t submitted = 0, completed = 0, failed = 0, cancelled = 0, overdue = 0;
    std::size_t queued = 0, outstanding = 0;
    std::int64_t outstanding_ns = 0;
};

// In a process forked from the one that made it every call throws Error (unsupported).
class KernelDispatcher {
   public:
    using Launch = std::shared_ptr<PendingLaunch>;

    // A stream of its own, of the thread's current tenant.
    KernelDispatcher(Device& device, const DispatchConfig& config, const Clock& clock = steady_clock());
    ~KernelDispatcher();  // cancels what is queued; what is on the device goes on
    KernelDispatcher(const KernelDispatcher&) = delete;
    KernelDispatcher& operator=(const KernelDispatcher&) = delete;

    // `work` launches something on the thread's current stream, which is then this dispatcher's. An exception
    // of it is the launch's failure. It runs on this thread, or on another that finds that it may go.
    Launch submit(std::string name, std::function<void()> work);
    // Looks what is done and sends what may go.
    void poll();
    LaunchState state(const Launch& launch);
    // Device time; -1 until it is completed. Measured, or, of a short launch, as others of its name took.
    std::int64_t took_ns(const Launch& launch) const;
    // True where it was still queued. What is on the device cannot be taken back.
    bool cancel(const Launch& launch);
    // Until it has ended, or for so long (negative: without end); false where it has not. Throws its failure,
    // and Error (driver) for one that the watchdog has found.
    bool wait(const Launch& launch, std::int64_t timeout_ns = -1);
    void synchronize();  // until nothing is queued and nothing outstanding

    const std::shared_ptr<Stream>& stream() const noexcept;
    Device& device() const noexcept;
    DispatchStats stats();

   private:
    void check_process(const char* call) const;

    const unsigned process_;
    const bool has_thread_;
    std::shared_ptr<DispatchQueue> queue_;
    std::unique_ptr<DispatchThread> thread_;
};

// For the end of a program: cancels what is queued, anywhere, and ends the threads. False where one still
// runs a launch's function after that time. Later launches that have to wait go when they are asked.
bool end_dispatch_threads(std::chrono::nanoseconds timeout) noexcept;

}  // namespace gpk
