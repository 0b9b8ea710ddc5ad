#include "driver/libraries.hpp"

#include <array>
#include <mutex>
#include <optional>

#include "base/error.hpp"
#include "base/platform.hpp"

namespace gpk {

namespace {

struct LibrarySpec {
    const char* name;
    const char* variable;
    std::array<const char*, 2> wheel_files;  // below site-packages, newest first
    std::array<const char*, 2> file_names;   // in a toolkit and in the loader cache
    const char* any_symbol;                  // to ask the loader which file was opened
    bool in_toolkits;                        // libcuda comes with the GPU driver alone; toolkits hold a stub
};

constexpr LibrarySpec kSpecs[kLibraryCount] = {
    {"libcuda", "PYGPUKIT_LIBCUDA", {}, {"libcuda.so.1"}, "cuDriverGetVersion", false},
    {"NVRTC",
     "PYGPUKIT_NVRTC",
     {"nvidia/cu13/lib/libnvrtc.so.13", "nvidia/cuda_nvrtc/lib/libnvrtc.so.12"},
     {"libnvrtc.so.13", "libnvrtc.so.12"},
     "nvrtcVersion",
     true},
    {"cuBLASLt",
     "PYGPUKIT_CUBLASLT",
     {"nvidia/cu13/lib/libcublasLt.so.13", "nvidia/cublas/lib/libcublasLt.so.12"},
     {"libcublasLt.so.13", "libcublasLt.so.12"},
     "cublasLtGetVersion",
     true},
    {"NCCL", "PYGPUKIT_NCCL", {"nvidia/nccl/lib/libnccl.so.2"}, {"libnccl.so.2"}, "ncclGetVersion", true},
};

std::string version_of(Library library, void* handle) {
    const void* symbol = nullptr;
    const auto find = [&](const char* name) { return symbol = platform::find_symbol(handle, name); };
    const auto dotted = [](int major, int minor) { return str(major, ".", minor); };
    int number = 0, minor = 0;
    switch (library) {
        case Library::cuda:
            if (!find("cuDriverGetVersion")) return {};
            if (reinterpret_cast<int (*)(int*)>(const_cast<void*>(symbol))(&number) != 0) return {};
            return dotted(number / 1000, number % 1000 / 10);
        case Library::nvrtc:
            if (!find("nvrtcVersion")) return {};
            if (reinterpret_cast<int (*)(int*, int*)>(const_cast<void*>(symbol))(&number, &minor) != 0)
                return {};
            return dotted(number, minor);
        case Library::cublaslt: {
            if (!find("cublasLtGetVersion")) return {};
            // 10000 * major + 100 * minor + patch since 12.0
            const std::size_t version = reinterpret_cast<std::size_t (*)()>(const_cast<void*>(symbol))();
            return str(version / 10000, ".", version / 100 % 100, ".", version % 100);
        }
        case Library::nccl:
            if (!find("ncclGetVersion")) return {};
            if (reinterpret_cast<int (*)(int*)>(const_cast<void*>(symbol))(&number) != 0) return {};
            return str(number / 10000, ".", number / 100 % 100, ".", number % 100);
    }
    return {};
}

struct Candidate {
    std::string path;
    std::string how;
};

class Search {
   public:
    void set_folders(std::vector<std::string> folders) {
        std::lock_guard lock(mutex_);
        folders_ = std::move(folders);
        for (auto& entry : found_) {
            if (entry && entry->handle == nullptr) retry_[&entry - found_.data()] = true;
        }
    }

    const FoundLibrary& find(Library library) {
        std::lock_guard lock(mutex_);
        const auto index = static_cast<std::size_t>(library);
        auto& entry = found_[index];
        if (!entry || retry_[index]) {
            entry = search(library);
            retry_[index] = false;
        }
        return *entry;
    }

   private:
    std::vector<Candidate> candidates(const LibrarySpec& spec) const {
        std::vector<Candidate> list;
        const auto add_existing = [&](const std::string& path, const char* how) {
            if (path.front() == '/' && platform::file_exists(path)) list.push_back({path, how});
        };
        for (const auto& folder : folders_) {
            for (const char* file : spec.wheel_files) {
                if (file != nullptr && !folder.empty()) add_existing(folder + "/" + file, "NVIDIA wheel");
            }
        }
        const auto add_toolkit = [&](const std::string& root, const char* how) {
            for (const char* file : spec.file_names) {
                for (const char* folder : {"/lib64/", "/lib/"}) {
                    if (file != nullptr) add_existing(root + folder + file, how);
                }
            }
        };
        if (spec.in_toolkits) {
            for (const char* variable : {"CUDA_PATH", "CUDA_HOME"}) {
                if (const auto root = platform::environment(variable)) add_toolkit(*root, variable);
            }
            add_toolkit("/usr/local/cuda", "/usr/local/cuda");
        }
        for (const char* file : spec.file_names) {
            if (file != nullptr) list.push_back({file, "loader cache"});
        }
        return list;
    }

    FoundLibrary search(Library library) const {
        const LibrarySpec& spec = kSpecs[static_cast<int>(library)];
        FoundLibrary found;
        found.status.name = spec.name;
        const auto chosen = platform::environment(spec.variable);
        const std::vector<Candidate> list =
            chosen ? std::vector<Candidate>{{*chosen, spec.variable}} : candidates(spec);
        for (const Candidate& candidate : list) {
            std::string reason;
            if (chosen && candidate.path.front() != '/') {
                reason = str(candidate.path, ": not an absolute path");
            } else {
                found.handle = platform::open_library(candidate.path, &reason);
            }
            if (found.handle != nullptr) {
                found.status.how = candidate.how;
                const void* symbol = platform::find_symbol(found.handle, spec.any_symbol);
                found.status.path = symbol != nullptr ? platform::library_of(symbol) : candidate.path;
                found.status.version = version_of(library, found.handle);
                found.status.problem.clear();
                if (symbol == nullptr) found.status.problem = str("it has no ", spec.any_symbol);
                return found;
            }
            if (!found.status.problem.empty()) found.status.problem += "; ";
            found.status.problem += str(candidate.how, ": ", reason);
        }
        return found;
    }

    std::mutex mutex_;
    std::vector<std::string> folders_;
    std::array<std::optional<FoundLibrary>, kLibraryCount> found_;
    std::array<bool, kLibraryCount> retry_{};
};

Search& the_search() {
    static auto* search = new Search;  // outlives every static destructor that may still ask
    return *search;
}

// NVRTC opens its builtins itself, from its own folder.
LibraryStatus builtins_status(const LibraryStatus& nvrtc) {
    LibraryStatus status;
    status.name = "NVRTC builtins";
    if (nvrtc.path.empty()) {
        status.problem = "NVRTC was not found";
        return status;
    }
    const std::string file = "libnvrtc-builtins.so." + nvrtc.version;
    const std::string path = nvrtc.path.substr(0, nvrtc.path.rfind('/') + 1) + file;
    if (!platform::file_exists(path)) {
        status.problem = str("no ", file, " beside ", nvrtc.path);
        return status;
    }
    status.path = path;
    status.how = "beside NVRTC";
    status.version = nvrtc.version;
    return status;
}

}  // namespace

void set_library_folders(std::vector<std::string> site_packages) {
    the_search().set_folders(std::move(site_packages));
}

const FoundLibrary& find_library(Library library) { return the_search().find(library); }

std::vector<LibraryStatus> library_statuses() {
    std::vector<LibraryStatus> list;
    for (const Library library : {Library::cuda, Library::nvrtc, Library::cublaslt, Library::nccl}) {
        list.push_back(find_library(library).status);
        if (library == Library::nvrtc) list.push_back(builtins_status(list.back()));
    }
    return list;
}

}  // namespace gpk
