// Trace: what happened on devices, recorded in memory: work, waits, admissions, evictions, pacing. A listener
// of runtime/observe.hpp. Each thread writes a buffer of its own, so that threads do not wait for one
// another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/launcher.hpp"
#include "runtime/observe.hpp"
#include "runtime/tenant.hpp"

namespace gpk {

class DeviceTimes;

// A piece of work that reached a device.
struct TraceEntry {
    WorkKind kind;
    std::string name;
    std::uint64_t stream_id;
    LaunchConfig config;
    Cost cost;
    std::int64_t start_ns;  // on the host's steady clock: when the launch was asked for
    std::int64_t end_ns;    // and when the call returned
    // When the device ran it, where that was measured; else 0.
    std::int64_t device_start_ns = 0, device_end_ns = 0;
};

// Anything that was told. Texts belong to the trace; null where there is none.
struct TraceEvent {
    observe::Topic topic;
    observe::Form form;
    WorkKind kind;  // of work
    bool failed = false;
    bool captured = false;
    QosClass qos;
    std::uint32_t thread = 0;  // the host's threads, numbered as they appear
    const std::string* name = nullptr;
    const std::string* detail = nullptr;
    const std::string* device = nullptr;
    const std::string* tenant = nullptr;
    std::uint64_t tenant_id = 0;  // 0 for none
    std::uint64_t stream_id = 0;
    std::int64_t start_ns = 0, end_ns = 0;
    double amount = 0;
    LaunchConfig config = {};
    Cost cost = {};
    std::int64_t device_start_ns = 0, device_end_ns = 0;
    DeviceTimes* times = nullptr;  // what has these two, by its number
    std::uint64_t timed = 0;
};

struct TraceOptions {
    const Device* only = nullptr;                   // null: every device
    std::size_t max_events = std::size_t{1} << 20;  // later ones are counted and dropped
    // Also when the device ran each piece of work, by events around it: a microsecond or two a launch, and no
    // kernel begins while its predecessor ends. The devices outlive the trace.
    bool device_times = false;
};

class Trace {
   public:
    // Starts at once. Throws Error (value) for no room at all.
    explicit Trace(const TraceOptions& options);
    explicit Trace(Device& device) : Trace(TraceOptions{.only = &device}) {}
    ~Trace();
    Trace(const Trace&) = delete;
    Trace& operator=(const Trace&) = delete;
    void stop() noexcept;  // with device times, waits for the work under way

    // The work that was queued, in the order in which the calls returned.
    std::vector<TraceEntry> entries() const;
    std::size_t event_count() const;
    std::uint64_t dropped() const noexcept;

    // Writes everything so far for Perfetto or chrome://tracing, into a new file that then takes the
    // place of `path`. Throws Error (file) where that cannot be, and leaves what was there.
    void write(const std::string& path) const;

   private:
    class Recorder;

    std::int64_t start_ns_;
    std::int64_t start_unix_ns_;
    std::shared_ptr<Recorder> recorder_;  // the listeners' too, which may yet tell it of work under way
};

}  // namespace gpk
