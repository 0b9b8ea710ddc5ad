#include "base/log.hpp"

#include <mutex>
#include <utility>

namespace gpk {

namespace {

std::mutex sink_mutex;
LogSink& sink() {
    static LogSink* const current = new LogSink;  // outlives static destruction on purpose
    return *current;
}

}  // namespace

void set_log_sink(LogSink replacement) {
    std::lock_guard lock(sink_mutex);
    sink() = std::move(replacement);
}

void log(LogLevel level, const std::string& message) {
    LogSink current;
    {
        std::lock_guard lock(sink_mutex);
        current = sink();
    }
    if (current) current(level, message);
}

}  // namespace gpk
