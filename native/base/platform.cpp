#include "base/platform.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include "base/error.hpp"

namespace gpk::platform {

namespace fs = std::filesystem;

std::optional<std::string> environment(const char* name) {
    const char* value = std::getenv(name);
    if (value == nullptr || *value == '\0') return std::nullopt;
    return value;
}

void* open_library(const std::string& path, std::string* reason) {
    const bool absolute = !path.empty() && path.front() == '/';
    const bool bare_versioned = path.find('/') == std::string::npos && path.find(".so.") != std::string::npos;
    if (!absolute && !bare_versioned) {
        *reason = "not an absolute path or a versioned library name";
        return nullptr;
    }
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) *reason = dlerror();
    return library;
}

void* find_symbol(void* library, const char* name) { return dlsym(library, name); }

std::string library_of(const void* symbol) {
    Dl_info found{};
    if (dladdr(symbol, &found) == 0 || found.dli_fname == nullptr) return {};
    return found.dli_fname;
}

bool file_exists(const std::string& path) {
    std::error_code ignored;
    return fs::is_regular_file(path, ignored);
}

std::vector<std::string> list_files(const std::string& folder, const std::string& prefix) {
    std::vector<std::string> found;
    std::error_code failed;
    for (fs::directory_iterator it(folder, failed), end; !failed && it != end; it.increment(failed)) {
        if (it->path().filename().string().rfind(prefix, 0) == 0) found.push_back(it->path().string());
    }
    std::sort(found.begin(), found.end());
    return found;
}

std::string user_cache_folder() {
    if (auto folder = environment("XDG_CACHE_HOME"); folder && folder->front() == '/') return *folder;
    if (auto home = environment("HOME"); home && home->front() == '/') return *home + "/.cache";
    return {};
}

std::size_t physical_memory_bytes() {
    return static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) *
           static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

unsigned hardware_threads() {
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return 1;
    return static_cast<unsigned>(std::max(1, CPU_COUNT(&allowed)));
}

std::string gpu_driver_version() {
    // "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  <date>"
    std::ifstream file("/proc/driver/nvidia/version");
    std::string line;
    std::getline(file, line);
    std::istringstream words(line);
    for (std::string word; words >> word;) {
        const bool digits_and_dots = word.find_first_not_of("0123456789.") == std::string::npos;
        if (digits_and_dots && word.find('.') != std::string::npos) return word;
    }
    return {};
}

void on_fork_in_child(void (*call)()) { pthread_atfork(nullptr, nullptr, call); }

namespace {

[[noreturn]] void cannot_open(const std::string& path, int code) {
    throw error(ErrorKind::file, {.call = "open",
                                  .expected = "a readable file",
                                  .got = str("'", path, "' (", std::strerror(code), ")")});
}

}  // namespace

void replace_file(const std::string& path, std::span<const std::span<const std::byte>> pieces) {
    static std::atomic<unsigned> counter{0};
    const std::string temporary = str(path, ".tmp.", getpid(), ".", counter++);
    const int file = open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    bool good = file >= 0;
    for (auto piece : pieces) {
        while (good && !piece.empty()) {
            const ssize_t written = write(file, piece.data(), piece.size());
            if (written >= 0) piece = piece.subspan(static_cast<std::size_t>(written));
            good = written >= 0 || errno == EINTR;
        }
    }
    good = good && fsync(file) == 0;
    int code = good ? 0 : errno;
    if (file >= 0 && close(file) != 0 && good) code = errno;
    if (code == 0 && rename(temporary.c_str(), path.c_str()) != 0) code = errno;
    if (code == 0) return;
    if (file >= 0) unlink(temporary.c_str());
    throw error(ErrorKind::file, {.call = "write",
                                  .expected = "a file that can be written",
                                  .got = str("'", path, "' (", std::strerror(code), ")")});
}

MappedFile::MappedFile(const std::string& path) : path_(path) {
    const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) cannot_open(path, errno);
    struct stat status {};
    if (fstat(file, &status) != 0 || !S_ISREG(status.st_mode)) {
        const int code = S_ISDIR(status.st_mode) ? EISDIR : errno != 0 ? errno : EINVAL;
        close(file);
        cannot_open(path, code);
    }
    size_ = static_cast<std::size_t>(status.st_size);
    if (size_ > 0) {
        void* map = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file, 0);
        const int code = errno;
        close(file);
        if (map == MAP_FAILED) cannot_open(path, code);
        data_ = static_cast<const std::byte*>(map);
    } else {
        close(file);
    }
}

MappedFile::~MappedFile() {
    if (data_ != nullptr) munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
    std::swap(path_, other.path_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
}

}  // namespace gpk::platform
