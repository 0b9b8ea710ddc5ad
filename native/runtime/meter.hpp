// Meter: what was counted for one tenant on one device, always, whether anybody asks or not. Layers add as
// they work; `gp.metrics()` (observe/metrics.hpp) writes the sums as Prometheus text.
//
//     stream.meter().add(Count::evictions);
//     meter_of(device, tenant).change(Level::tasks_running, +1);
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/launcher.hpp"

namespace gpk {

class Device;
class Tenant;
enum class QosClass : std::uint8_t;

// Only ever grow. Times in nanoseconds.
enum class Count : std::uint8_t {
    kernels,  // the kinds of work, in WorkKind's order
    copies_to_device,
    copies_to_host,
    copies_on_device,
    fills,
    graphs,
    refused_work,  // by a hook, a governor or the driver
    to_device_bytes,
    to_host_bytes,
    on_device_bytes,
    declared_bytes,  // that work said it reads and writes
    captured_work,   // recorded into graphs
    busy_ns,         // of device time that pacing measured
    host_waits,
    host_wait_ns,
    pacing_waits,
    pacing_wait_ns,
    evictions,
    evicted_bytes,
    reloads,
    reloaded_bytes,
    admitted,  // decisions of admission
    queued,
    throttled,
    rejected,
    tasks_completed,
    tasks_failed,
    tasks_cancelled,
    tasks_rejected,
    transfers_completed,
    transfers_failed,
    transfers_cancelled,
};
inline constexpr std::size_t kCounts = static_cast<std::size_t>(Count::transfers_cancelled) + 1;

// Go up and down.
enum class Level : std::uint8_t {
    tasks_pending,
    tasks_queued,
    tasks_running,
    transfers_queued,
    transfers_in_progress,
    evicted_bytes,  // away from the device now
    spilled_bytes,  // of evicted blocks, on the disk now
};
inline constexpr std::size_t kLevels = static_cast<std::size_t>(Level::spilled_bytes) + 1;

// One launch in so many is timed.
inline constexpr std::uint64_t kTimedLaunches = 16;
// Upper bounds of the launch histogram; a last bucket holds what takes longer.
inline constexpr std::array<std::int64_t, 12> kLaunchBoundsNs = {
    500,    1'000,   2'000,     5'000,      10'000,      20'000,
    50'000, 100'000, 1'000'000, 10'000'000, 100'000'000, 1'000'000'000};

class Meter {
   public:
    void add(Count what, std::uint64_t by = 1) noexcept {
        counts_[static_cast<std::size_t>(what)].fetch_add(by, std::memory_order_relaxed);
    }
    void change(Level what, std::int64_t by) noexcept {
        levels_[static_cast<std::size_t>(what)].fetch_add(by, std::memory_order_relaxed);
    }
    std::uint64_t operator[](Count what) const noexcept {
        return counts_[static_cast<std::size_t>(what)].load(std::memory_order_relaxed);
    }
    std::int64_t operator[](Level what) const noexcept {
        return levels_[static_cast<std::size_t>(what)].load(std::memory_order_relaxed);
    }

    // Work that the launcher queued. `captured` work runs with its graph, and is counted with it.
    void worked(const WorkRecord& work) noexcept;
    bool time_this_launch() const noexcept { return (*this)[Count::kernels] % kTimedLaunches == 0; }
    void launch_took(std::int64_t ns) noexcept;
    std::uint64_t launches_within(std::size_t bucket) const noexcept {  // of that bucket alone
        return launches_[bucket].load(std::memory_order_relaxed);
    }
    std::uint64_t launch_ns() const noexcept { return launch_ns_.load(std::memory_order_relaxed); }

   private:
    std::array<std::atomic<std::uint64_t>, kCounts> counts_{};
    std::array<std::atomic<std::int64_t>, kLevels> levels_{};
    std::array<std::atomic<std::uint64_t>, kLaunchBoundsNs.size() + 1> launches_{};
    std::atomic<std::uint64_t> launch_ns_{0};
};

// What a meter's sums are labelled with: the tenant that is shown, and the class of the tenant itself.
// Without one both are empty.
struct MeterLabels {
    std::string device, partition, qos;
    auto operator<=>(const MeterLabels&) const = default;
};

// The meter of a device's name and a tenant's name and class; lives as long as the process, so that sums
// never go down. Beyond kMeterLimit of them, tenants with new names share one called "(others)".
inline constexpr std::size_t kMeterLimit = 1024;
Meter& meter_of(const Device& device, const Tenant* tenant);

struct MeterEntry {
    MeterLabels labels;
    const Meter* meter;
};
std::vector<MeterEntry> meters();  // sorted by their labels

// A wait of the host for a device, counted from its construction to its end.
class HostWait {
   public:
    explicit HostWait(Meter& meter) noexcept;
    ~HostWait();
    HostWait(const HostWait&) = delete;
    HostWait& operator=(const HostWait&) = delete;

   private:
    Meter& meter_;
    std::int64_t start_ns_;
};

}  // namespace gpk
