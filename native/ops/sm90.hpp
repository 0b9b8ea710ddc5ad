// Kernels of files named *_sm90.cu.
#pragma once

#include "runtime/kernel.hpp"

namespace gpk::ops {

// Whether such a kernel runs on a device of this SM: 90 alone, where the build has it; the simulated one (0)
// runs every twin.
inline bool runs_sm90(const Kernel& kernel, int sm) {
    return sm == 0 || (sm == 90 && kernel.def().image->size > 0);
}

}  // namespace gpk::ops
