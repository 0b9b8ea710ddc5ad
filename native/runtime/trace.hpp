// Trace: what reached a device, in order. Through a hook of the launcher, for tests and for `gp.trace()`.
#pragma once

#include <cstdint>
#include <memory>
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

class Trace {
   public:
    // Starts at once.
    explicit Trace(Device& device);
    ~Trace();
    Trace(const Trace&) = delete;
    Trace& operator=(const Trace&) = delete;
    void stop();
    std::vector<TraceEntry> entries() const;

   private:
    class Recorder;

    Device& device_;
    std::shared_ptr<Recorder> recorder_;  // the launcher's too, which may yet tell it of work under way
};

}  // namespace gpk
