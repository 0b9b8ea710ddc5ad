// CUDA C++ source to a host twin, by the machine's C++ compiler: how a user's kernel runs on the simulated
// device. The compiled library is kept in the cache, like device code.
#pragma once

#include <string>
#include <vector>

#include "driver/driver.hpp"
#include "jit/signature.hpp"

namespace gpk::jit {

struct HostCompiled {
    HostTwin twin = nullptr;  // for the process's life
    bool from_cache = false;
    bool threads_meet = false;  // runs a block's threads as fibers
};

// Throws Error (compile) with the compiler's log and the lines it is about, and Error (unsupported) where
// no compiler is found.
HostCompiled compile_host(const std::string& source, const Signature& signature,
                          const std::vector<std::string>& flags);

// PYGPUKIT_CXX, else CXX, else c++, g++ or clang++; empty where there is none.
std::string host_compiler();

}  // namespace gpk::jit
