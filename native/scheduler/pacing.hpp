// KernelPacingEngine: the governor that holds a tenant's launches to its shares of device time and bandwidth,
// and, while a protected tenant has work in flight, holds the others'.
//
// It measures with events, now and then: the first runs of each kernel and one in 64, of short ones in 256.
// Between, it counts on what it measured. A waiting thread holds no lock and, in Python, not the
// interpreter's.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "base/clock.hpp"
#include "runtime/device.hpp"
#include "runtime/launcher.hpp"
#include "runtime/tenant.hpp"
#include "scheduler/kernel_times.hpp"
#include "scheduler/pacer.hpp"

namespace gpk {

class Meter;
class PacingDomain;

struct PacingStats {
    std::uint64_t launches = 0, waits = 0, measured = 0;
    std::uint64_t sliced = 0;  // pieces of work that went in several launches
    std::int64_t waited_ns = 0;
    std::int64_t device_ns = 0;  // of what was launched, as measured or expected
    double bytes = 0;            // as declared
    std::int64_t outstanding_ns = 0;
};

// One tenant that others' work is held for.
struct Protection {
    std::atomic<std::int64_t> busy_until_ns{0};  // as expected
    std::atomic<std::uint64_t> launched{0}, seen_done{0};
    std::weak_ptr<Tenant> tenant;  // set before anything is launched
    // Whether it has work in flight: asks the device where it should be done by now.
    bool busy(std::int64_t now_ns);
};

// One measurement: events around a piece of work.
struct PacingSample {
    EventHandle start = nullptr, end = nullptr;
    std::uint64_t key = 0;   // of the work, as KernelTimes has it
    std::int64_t place = 0;  // in the order of the tenant's work, as Pacer has it
    Meter* meter = nullptr;  // whose device was busy meanwhile
};

class KernelPacingEngine : public LaunchHook {
   public:
    // `pause(from, until)`: waits on the clock's time for at most that long; the default spins, then yields,
    // then sleeps.
    using Pause = std::function<void(std::int64_t now_ns, std::int64_t until_ns)>;
    KernelPacingEngine(Device& device, const PacingConfig& config, const Clock& clock = steady_clock(),
                       Pause pause = {});
    ~KernelPacingEngine() override;
    KernelPacingEngine(const KernelPacingEngine&) = delete;
    KernelPacingEngine& operator=(const KernelPacingEngine&) = delete;

    // Whose streams are asked whether they are done. For a protected engine, before its first work.
    void protect(const std::shared_ptr<Tenant>& tenant);
    // Ends waits: work that comes later waits no more.
    void release() noexcept { released_.store(true, std::memory_order_release); }

    void before(const WorkRecord& work) override;
    void after(const WorkRecord& work, bool queued) noexcept override;
    std::int64_t slices(const WorkRecord& whole, std::int64_t most) override;
    const PacingConfig& config() const noexcept { return config_; }
    PacingStats stats();

   private:
    static constexpr std::size_t kMostSamples = 32;
    // The first runs of each kernel are measured, and one in kEvery; of short ones, beside which the two
    // events cost much, one in kEveryShort.
    static constexpr std::uint32_t kFirstRuns = 2, kEvery = 64, kEveryShort = 256;
    static constexpr std::int64_t kShortNs = 20'000;

    bool begin_sample(const WorkRecord& work, std::uint64_t key, std::int64_t place,
                      PacingSample* sample) noexcept;
    void harvest(std::int64_t now_ns) noexcept;
    bool idle() const noexcept;

    Device& device_;
    const PacingConfig config_;
    const Clock& clock_;
    const Pause pause_;
    const std::shared_ptr<PacingDomain> domain_;
    const std::shared_ptr<Protection> protection_;
    std::atomic<bool> released_{false};

    std::mutex mutex_;  // over all below; not held while somebody waits
    Pacer pacer_;
    KernelTimes times_;
    std::vector<PacingSample> pending_;  // recorded, not yet reached; the oldest first
    std::vector<PacingSample> spare_;
    std::size_t made_ = 0;
    PacingStats stats_;
    std::int64_t last_mark_ns_ = 0;
};

}  // namespace gpk
