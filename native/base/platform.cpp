#include "base/platform.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

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

void populate(void* pointer, std::size_t bytes) noexcept {
    constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE, Linux 5.14, which older headers lack
    static const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
    const auto first = reinterpret_cast<std::uintptr_t>(pointer) & ~(page - 1);
    const auto end = (reinterpret_cast<std::uintptr_t>(pointer) + bytes + page - 1) & ~(page - 1);
    const int saved = errno;
    madvise(reinterpret_cast<void*>(first), end - first, kPopulateWrite);
    errno = saved;
}

unsigned hardware_threads() {
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return 1;
    return static_cast<unsigned>(std::max(1, CPU_COUNT(&allowed)));
}

std::string error_text(int code) { return std::strerror(code); }

std::string runtime_folder(std::string* failed) {
    std::vector<std::string> places;
    if (const auto chosen = environment("PYGPUKIT_RUNTIME_DIR")) {
        places = {*chosen};
    } else {
        if (const auto session = environment("XDG_RUNTIME_DIR")) places.push_back(*session + "/pygpukit");
        if (const auto cache = user_cache_folder(); !cache.empty()) places.push_back(cache + "/pygpukit/run");
        places.push_back(str("/tmp/pygpukit-", geteuid()));
    }
    for (const std::string& place : places) {
        if (place.front() != '/') {
            *failed = str("'", place, "' is not an absolute path");
            continue;
        }
        std::string problem;
        make_private_folder(place, &problem, &problem);
        struct stat status{};
        if (problem.empty() && (lstat(place.c_str(), &status) != 0 || !S_ISDIR(status.st_mode))) {
            problem = str("'", place, "' is a link");
        }
        if (problem.empty() && access(place.c_str(), W_OK | X_OK) != 0) {
            problem = str("'", place, "': ", std::strerror(errno));
        }
        if (problem.empty()) return place;
        *failed = problem;
    }
    return {};
}

namespace {

std::string first_line(const std::string& path) {
    std::ifstream file(path);
    std::string line;
    std::getline(file, line);
    return line;
}

// Field 22 of /proc/<pid>/stat, proc(5); the name in field 2 may hold anything. 0 for a process that is gone,
// or that has ended and was not waited for.
std::uint64_t start_of(int pid) {
    const std::string line = first_line(str("/proc/", pid, "/stat"));
    const auto name_end = line.rfind(')');
    if (name_end == std::string::npos) return 0;
    std::istringstream fields(line.substr(name_end + 1));
    std::string field;
    fields >> field;
    if (field == "Z" || field == "X") return 0;
    for (int i = 3; i < 22; ++i) fields >> field;
    return std::strtoull(field.c_str(), nullptr, 10);
}

}  // namespace

Process this_process() {
    struct stat status{};
    const bool known = stat("/proc/self/ns/pid", &status) == 0;
    return {getpid(), start_of(getpid()), known ? std::uint64_t{status.st_ino} : 0};
}

bool is_alive(const Process& process) {
    static const std::uint64_t space = this_process().space;
    if (process.space != space) return true;
    return process.pid > 0 && start_of(process.pid) == process.started;
}

std::string boot_id() { return first_line("/proc/sys/kernel/random/boot_id"); }

std::string find_program(const std::string& name) {
    std::vector<std::string> folders = {"/usr/bin", "/usr/local/bin", "/bin", "/opt/homebrew/bin"};
    std::istringstream path(environment("PATH").value_or(""));
    for (std::string folder; std::getline(path, folder, ':');) {
        if (!folder.empty() && folder.front() == '/') folders.push_back(folder);
    }
    for (const std::string& folder : folders) {
        const std::string program = folder + "/" + name;
        if (file_exists(program) && access(program.c_str(), X_OK) == 0) return program;
    }
    return {};
}

std::string file_identity(const std::string& path) {
    std::error_code failed;
    const fs::path real = fs::canonical(path, failed);
    struct stat status{};
    if (failed || stat(real.c_str(), &status) != 0) return path;
    return str(real.string(), " ", status.st_size, " ", status.st_mtim.tv_sec, ".", status.st_mtim.tv_nsec);
}

int run_program(const std::vector<std::string>& arguments, std::string* output) {
    constexpr std::size_t kOutputLimit = 64 * 1024;
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return -1;
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
    posix_spawn_file_actions_adddup2(&actions, ends[1], 2);
    std::vector<char*> raw;
    for (const std::string& argument : arguments) raw.push_back(const_cast<char*>(argument.c_str()));
    raw.push_back(nullptr);
    pid_t child = -1;
    const int failure = posix_spawn(&child, raw[0], &actions, nullptr, raw.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    if (failure != 0) {
        close(ends[0]);
        *output = std::strerror(failure);
        return -1;
    }
    output->clear();
    char piece[4096];
    for (ssize_t count = 1; count > 0 || (count < 0 && errno == EINTR);) {
        count = read(ends[0], piece, sizeof(piece));
        if (count <= 0) continue;
        // What is beyond the limit is read, too: a full pipe would stop the program.
        output->append(piece, std::min(static_cast<std::size_t>(count), kOutputLimit - output->size()));
    }
    close(ends[0]);
    int status = 0;
    pid_t waited;
    do {
        waited = waitpid(child, &status, 0);
    } while (waited < 0 && errno == EINTR);
    return waited == child && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
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

std::size_t page_bytes() { return static_cast<std::size_t>(sysconf(_SC_PAGESIZE)); }

namespace {

void* map_pages(void* at, std::size_t bytes, int protection) noexcept {
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | (at != nullptr ? MAP_FIXED : 0);
    void* begin = mmap(at, bytes, protection, flags, -1, 0);
    return begin == MAP_FAILED ? nullptr : begin;
}

}  // namespace

void* reserve_pages(std::size_t bytes, std::size_t alignment) noexcept {
    if (bytes == 0 || bytes > SIZE_MAX - alignment) return nullptr;
    auto* const begin = static_cast<char*>(map_pages(nullptr, bytes + alignment, PROT_NONE));
    if (begin == nullptr) return nullptr;
    const std::size_t before = (alignment - reinterpret_cast<std::uintptr_t>(begin) % alignment) % alignment;
    if (before != 0) munmap(begin, before);
    if (before != alignment) munmap(begin + before + bytes, alignment - before);
    return begin + before;
}

void* new_pages(std::size_t bytes) noexcept {
    return bytes == 0 ? nullptr : map_pages(nullptr, bytes, PROT_READ | PROT_WRITE);
}

void release_pages(void* begin, std::size_t bytes) noexcept { munmap(begin, bytes); }

bool drop_pages(void* begin, std::size_t bytes) noexcept {
    return map_pages(begin, bytes, PROT_NONE) != nullptr;
}

bool move_pages(void* from, void* to, std::size_t bytes) noexcept {
#ifndef MREMAP_DONTUNMAP
    constexpr int MREMAP_DONTUNMAP = 4;
#endif
    // Left mapped, so that no other thread's mapping can slip in where the pages were.
    const int flags = MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP;
    if (mremap(from, bytes, bytes, flags, to) == MAP_FAILED) {  // before Linux 5.7
        if (map_pages(to, bytes, PROT_READ | PROT_WRITE) == nullptr) return false;
        std::memcpy(to, from, bytes);
    }
    drop_pages(from, bytes);
    return true;
}

void on_fork_in_child(void (*call)()) { pthread_atfork(nullptr, nullptr, call); }

std::string thread_name() {
    char name[64] = "";
    pthread_getname_np(pthread_self(), name, sizeof(name));
    return str(name, " ", gettid());
}

int process_id() { return getpid(); }

void wait_forever() {
    for (;;) pause();
}

}  // namespace gpk::platform
