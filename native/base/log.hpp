// The one logger. Nothing is printed: messages go to a sink, which the Python package sets.
#pragma once

#include <functional>
#include <string>

namespace gpk {

enum class LogLevel { debug, info, warning };

using LogSink = std::function<void(LogLevel, const std::string&)>;

void set_log_sink(LogSink sink);
void log(LogLevel level, const std::string& message);

}  // namespace gpk
