// A trace as a file: the JSON form that Perfetto (ui.perfetto.dev) and chrome://tracing read.
//
// The first process of the file has the host's threads; then there is one process for each device and tenant,
// with a track for each stream and one for each topic. Times are microseconds since the trace began.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/trace.hpp"

namespace gpk {

struct TraceContents {
    std::vector<const TraceEvent*> events;
    const std::vector<std::string>& threads;  // names of TraceEvent::thread
    std::int64_t start_ns;
    std::int64_t start_unix_ns;
    std::uint64_t dropped;
};

// Throws Error (file); `path` is then as it was.
void write_trace(const std::string& path, TraceContents contents);

}  // namespace gpk
