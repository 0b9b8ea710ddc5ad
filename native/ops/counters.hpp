// Words of device memory by which the blocks of a kernel count or hand on what they found, and which the
// kernel leaves at zero.
#pragma once

#include "array/array.hpp"

namespace gpk::ops {

// At least `count` words of uint32 that are zero. Those of a graph are shared by its calls, and one fill
// serves all; elsewhere each call pays for a fill. They are given to the launch as what it writes, which
// orders it behind others that use them.
Array zero_counters(Device& device, std::int64_t count);

}  // namespace gpk::ops
