// Ranges for a profiler (Nsight Systems and others that inject NVTX).
#pragma once

namespace gpk {

// Where NVTX_INJECTION64_PATH is set, opens the library that it names, which must be an absolute path, and
// from then on gives it a range for every span of runtime/observe.hpp and a mark for every instant, in the
// domain "pygpukit". Otherwise does nothing. Only the first call does anything; what goes wrong is logged.
void attach_profiler();

}  // namespace gpk
