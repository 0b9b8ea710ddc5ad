// Where the NVIDIA libraries are. Each is looked for, in this order: its environment variable (an
// absolute path; nothing else is tried where it is set), the NVIDIA wheels in the site-packages
// folders, CUDA_PATH, CUDA_HOME, /usr/local/cuda, the loader cache by versioned name. Never the
// current folder.
#pragma once

#include <string>
#include <vector>

namespace gpk {

enum class Library { cuda, nvrtc, cublaslt, nccl };
inline constexpr int kLibraryCount = 4;

struct LibraryStatus {
    std::string name;     // "libcuda", "NVRTC", "NVRTC builtins", "cuBLASLt", "NCCL"
    std::string path;     // the file; empty where not found
    std::string how;      // "PYGPUKIT_NVRTC", "NVIDIA wheel", "CUDA_HOME", "loader cache", ...
    std::string version;  // as its maker writes it; empty where the library does not say
    std::string problem;  // why it cannot be used; empty where it can
};

struct FoundLibrary {
    void* handle = nullptr;  // open; null where not found
    LibraryStatus status;
};

// The folders that hold the NVIDIA wheels ("<site-packages>"). What was found before stays.
void set_library_folders(std::vector<std::string> site_packages);

// Searched at the first call and, where it was not found, again after set_library_folders. The reference
// stays valid; an opened library stays open for the process's life.
const FoundLibrary& find_library(Library library);

// All of them, for `pygpukit doctor`. Opens each.
std::vector<LibraryStatus> library_statuses();

}  // namespace gpk
