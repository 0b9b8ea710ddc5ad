// Trace: what reached a device, in order. A hook of the launcher, for tests and for `gp.trace()`.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/launcher.hpp"

namespace gpk {

struct TraceEntry {
    WorkKind kind;
    std::string name;
    std::uint64_t stream_id;
    LaunchConfig config;
    Cost cost;
    std::int64_t start_ns;  // on the host's steady clock: when the launch was asked for
    std::int64_t end_ns;    // and when the call returned
};

class Trace : public LaunchHook {
   public:
    // Starts at once. Only one hook can watch a device: Error (value) where there is one already.
    explicit Trace(Device& device);
    ~Trace() override;
    void stop();
    std::vector<TraceEntry> entries() const;

    void before(const WorkRecord& work) override;
    void after(const WorkRecord& work) noexcept override;

   private:
    Device& device_;
    mutable std::mutex mutex_;
    std::vector<TraceEntry> entries_;
};

}  // namespace gpk
