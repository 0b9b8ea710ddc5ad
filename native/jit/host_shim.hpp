// CUDA C++ for a host compiler: the text that is put before a user's kernel on the simulated device.
#pragma once

namespace gpk::jit {

extern const char* const kHostShim;

}  // namespace gpk::jit
