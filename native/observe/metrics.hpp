// What was counted, as Prometheus text (exposition format 0.0.4), in base units.
#pragma once

#include <string>

namespace gpk {

// Every open device, every tenant that ever had a stream, and what their layers counted; UTF-8, each family
// once. A device that cannot be asked (it is gone, or this process was forked) has no memory in it.
std::string metrics_text();

}  // namespace gpk
