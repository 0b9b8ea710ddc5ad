// Kernels of files named *_sm90.cu.
#pragma once

#include <algorithm>

#include "runtime/kernel.hpp"

namespace gpk::ops {

// Whether such a kernel runs on a device of this SM: 90 alone, where the build has it; the simulated one (0)
// runs every twin.
inline bool runs_sm90(const Kernel& kernel, int sm) {
    return sm == 0 || (sm == 90 && kernel.def().image->size > 0);
}

// Clusters of so many blocks, one a multiprocessor. Of more than two they find a place less often: GPCs have
// a number of multiprocessors that they do not divide. On an H200 39 of three or 30 of four run at a time; 40
// and 32 take twice as long.
inline int clusters_at_once(int blocks, int multiprocessors) {
    const int lost = blocks <= 2 ? 0 : multiprocessors / (blocks % 2 == 0 ? 11 : 9);
    return std::max((multiprocessors - lost) / blocks, 1);
}

}  // namespace gpk::ops
