// A loop over all cores, for host twins. The threads start at first use and belong to the process
// that started them, so a forked child starts its own.
#pragma once

#include <cstdint>
#include <functional>

namespace gpk {

// Calls body(begin, end) on ranges that cover [0, count) once each, of at least `grain` items where
// possible, and returns when all are done. The first exception is thrown again here. A loop inside a
// loop runs on its caller's thread.
void parallel_for(std::int64_t count, std::int64_t grain,
                  const std::function<void(std::int64_t, std::int64_t)>& body);

// From now on, loops of the calling thread run on it alone: it is one of several that do the same.
void run_loops_alone() noexcept;

// PYGPUKIT_NUM_THREADS, or the number of cores this process may use.
unsigned parallel_threads();

}  // namespace gpk
