// CUDA C++ source to device code for one architecture, by NVRTC: SASS, not PTX, so that an NVRTC newer
// than the GPU driver works. What was compiled before comes from the cache on disk.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "jit/signature.hpp"

namespace gpk::jit {

struct NvrtcStatus {
    std::string path;     // of the library; empty where there is none
    std::string version;  // "13.0"
    std::string problem;  // why it cannot be used; empty where it can
};
// Opens NVRTC at the first call.
NvrtcStatus nvrtc_status();
bool is_nvrtc_available();

struct Compiled {
    std::string image;   // a cubin
    std::string symbol;  // of the kernel in it
    bool from_cache = false;
};

// `sm` is 10 * major + minor of the device. Throws Error (compile) with NVRTC's log and the lines it is
// about, and Error (unsupported) without NVRTC or where this one does not know the architecture.
Compiled compile_cubin(const std::string& source, const Signature& signature, int sm,
                       const std::vector<std::string>& flags);

// A compiler's log with the source lines that its first error is about. `file` is the source's name in it.
std::string log_with_lines(std::string_view log, std::string_view file, std::string_view source);

}  // namespace gpk::jit
