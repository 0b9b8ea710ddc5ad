// What bindings of pacing share.
#pragma once

#include "bindings/common.hpp"
#include "scheduler/pacing.hpp"

namespace gpk::python {

// As KernelPacingEngine.stats() gives them; times in seconds.
nb::dict to_python(const PacingStats& stats);

}  // namespace gpk::python
