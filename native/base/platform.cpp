#include "base/platform.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <spawn.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
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

void make_private_folder(const std::string& path, std::string* unsafe, std::string* failed) {
    for (std::size_t at = path.find('/', 1);; at = path.find('/', at + 1)) {
        const std::string part = path.substr(0, at);
        if (mkdir(part.c_str(), 0700) != 0 && errno != EEXIST &&
            (at == std::string::npos || errno != EACCES)) {
            *failed = str("'", part, "': ", std::strerror(errno));
            return;
        }
        if (at == std::string::npos) break;
    }
    struct stat status{};
    if (stat(path.c_str(), &status) != 0) {
        *failed = str("'", path, "': ", std::strerror(errno));
    } else if (!S_ISDIR(status.st_mode)) {
        *failed = str("'", path, "' is not a folder");
    } else if (status.st_uid != geteuid()) {
        *unsafe = str("'", path, "' belongs to another user");
    } else if ((status.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
        *unsafe = str("others may write to '", path, "'");
    }
}

TemporaryFolder::TemporaryFolder() {
    const auto chosen = environment("TMPDIR");
    path_ = (chosen && chosen->front() == '/' ? *chosen : "/tmp") + "/pygpukit-XXXXXX";
    if (mkdtemp(path_.data()) == nullptr) {
        throw error(ErrorKind::file, {.call = "temporary folder",
                                      .expected = "a place to write",
                                      .got = str("'", path_, "' (", std::strerror(errno), ")"),
                                      .fix = "set TMPDIR"});
    }
}

TemporaryFolder::~TemporaryFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
}

namespace {

// Reads from `file` until its end or `limit` bytes; nothing on an error.
std::optional<std::string> read_all(int file, std::size_t limit) {
    std::string bytes;
    char piece[65536];
    while (bytes.size() < limit) {
        const ssize_t count = read(file, piece, std::min(sizeof(piece), limit - bytes.size()));
        if (count < 0 && errno == EINTR) continue;
        if (count < 0) return std::nullopt;
        if (count == 0) break;
        bytes.append(piece, static_cast<std::size_t>(count));
    }
    return bytes;
}

bool write_all(int file, std::string_view bytes) {
    while (!bytes.empty()) {
        const ssize_t count = write(file, bytes.data(), bytes.size());
        if (count < 0 && errno == EINTR) continue;
        if (count <= 0) return false;
        bytes.remove_prefix(static_cast<std::size_t>(count));
    }
    return true;
}

}  // namespace

std::optional<std::string> read_own_file(const std::string& path, std::size_t limit) {
    const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (file < 0) return std::nullopt;
    struct stat status{};
    std::optional<std::string> bytes;
    if (fstat(file, &status) == 0 && S_ISREG(status.st_mode) && status.st_uid == geteuid() &&
        (status.st_mode & (S_IWGRP | S_IWOTH)) == 0 && static_cast<std::uint64_t>(status.st_size) <= limit) {
        bytes = read_all(file, limit);
    }
    close(file);
    return bytes;
}

namespace {

// A name that is new in this process; O_EXCL refuses one that is there already, a link too.
std::string temporary_beside(const std::string& path) {
    static std::atomic<unsigned> counter{0};
    return str(path, ".tmp.", getpid(), ".", std::chrono::steady_clock::now().time_since_epoch().count(), ".",
               counter++);
}

// Makes the new name last.
void sync_folder_of(const std::string& path) {
    const fs::path parent = fs::path(path).parent_path();
    const int folder = open(parent.empty() ? "." : parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder >= 0) {
        fsync(folder);
        close(folder);
    }
}

// 0, or the errno of what failed.
int replace_with(const std::string& path, std::span<const std::span<const std::byte>> pieces, mode_t mode) {
    const std::string temporary = temporary_beside(path);
    const int file = open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    if (file < 0) return errno;
    bool good = true;
    for (const auto piece : pieces) {
        good = good && write_all(file, {reinterpret_cast<const char*>(piece.data()), piece.size()});
    }
    good = good && fsync(file) == 0;
    int code = good ? 0 : errno;
    if (close(file) != 0 && code == 0) code = errno;
    if (code == 0 && rename(temporary.c_str(), path.c_str()) != 0) code = errno;
    if (code != 0) {
        unlink(temporary.c_str());
        return code;
    }
    sync_folder_of(path);
    return 0;
}

}  // namespace

namespace {

[[noreturn]] void cannot_write(const std::string& call, const std::string& path, int code) {
    throw error(ErrorKind::file, {.call = call,
                                  .expected = "a file that can be written",
                                  .got = str("'", path, "' (", std::strerror(code), ")")});
}

}  // namespace

bool replace_file(const std::string& path, std::string_view bytes) {
    const std::span<const std::byte> piece = std::as_bytes(std::span(bytes));
    return replace_with(path, {&piece, 1}, 0600) == 0;
}

void save_file(const std::string& path, std::span<const std::span<const std::byte>> pieces) {
    const int code = replace_with(path, pieces, 0666);
    if (code != 0) cannot_write("write", path, code);
}

NewFile::NewFile(std::string call, std::string path)
    : call_(std::move(call)), path_(std::move(path)), temporary_(temporary_beside(path_)), file_(-1) {
    struct stat status{};
    if (stat(path_.c_str(), &status) == 0 && S_ISDIR(status.st_mode)) cannot_write(call_, path_, EISDIR);
    file_ = open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file_ < 0) cannot_write(call_, path_, errno);
}

NewFile::~NewFile() {
    if (file_ < 0) return;
    close(file_);
    unlink(temporary_.c_str());
}

void NewFile::write(std::string_view bytes) {
    if (!write_all(file_, bytes)) cannot_write(call_, path_, errno);
}

void NewFile::commit() {
    if (fsync(file_) != 0 || rename(temporary_.c_str(), path_.c_str()) != 0) {
        cannot_write(call_, path_, errno);
    }
    close(std::exchange(file_, -1));
    sync_folder_of(path_);
}

ScratchFile::ScratchFile(const char* call, const char* argument, const std::string& folder) {
    const auto refuse = [&](const char* expected, const std::string& why) {
        throw error(ErrorKind::value,
                    {.call = call,
                     .argument = argument,
                     .expected = expected,
                     .got = str("'", folder, "'", why.empty() ? "" : " (", why, why.empty() ? "" : ")")});
    };
    if (folder.empty() || folder.front() != '/' || folder.find('\0') != std::string::npos) {
        refuse("an absolute path", "");
    }
    // Without what would make the system follow a link at its end: "link/", "link/.".
    std::string path = fs::path(folder).lexically_normal().string();
    while (path.size() > 1 && path.back() == '/') path.pop_back();
    const int at = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (at < 0) {
        struct stat status{};
        const int code = errno;
        const bool link = lstat(path.c_str(), &status) == 0 && S_ISLNK(status.st_mode);
        refuse("a folder that exists and is no link", link ? "a link" : std::strerror(code));
    }
    file_ = openat(at, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    int code = file_ < 0 ? errno : 0;
    if (code == EOPNOTSUPP || code == EISDIR || code == ENOENT) {  // file systems without nameless files
        const std::string name = fs::path(temporary_beside("pygpukit-spill")).filename().string();
        file_ = openat(at, name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
        code = file_ < 0 ? errno : 0;
        if (file_ >= 0) unlinkat(at, name.c_str(), 0);
    }
    close(at);
    if (code != 0) refuse("a folder that this user may write to", std::strerror(code));
}

ScratchFile::~ScratchFile() { close(file_); }

std::ptrdiff_t ScratchFile::read(void* to, std::size_t bytes, std::uint64_t offset) noexcept {
    const ssize_t count = pread(file_, to, bytes, static_cast<off_t>(offset));
    return count < 0 ? -errno : count;
}

std::ptrdiff_t ScratchFile::write(const void* from, std::size_t bytes, std::uint64_t offset) noexcept {
    const ssize_t count = pwrite(file_, from, bytes, static_cast<off_t>(offset));
    return count < 0 ? -errno : count;
}

int ScratchFile::resize(std::uint64_t bytes) noexcept {
    if (bytes > size_) {
        const auto from = static_cast<off_t>(size_), more = static_cast<off_t>(bytes - size_);
        int code;
        do {
            code = fallocate(file_, 0, from, more) == 0 ? 0 : errno;
        } while (code == EINTR);
        // Elsewhere a write may find the disk full, which is an error of that write.
        if (code != 0 && code != EOPNOTSUPP) {
            // A part may have been taken.
            if (ftruncate(file_, from) != 0) return errno;
            return code;
        }
    } else if (ftruncate(file_, static_cast<off_t>(bytes)) != 0) {
        return errno;
    }
    size_ = bytes;
    return 0;
}

std::uint64_t ScratchFile::bytes_left_on_disk() const noexcept {
    struct statvfs status{};
    if (fstatvfs(file_, &status) != 0) return 0;
    return std::uint64_t{status.f_bavail} * std::uint64_t{status.f_frsize};
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

namespace {

[[noreturn]] void cannot_lock(const std::string& path, const std::string& why) {
    throw error(ErrorKind::file, {.call = "lock",
                                  .expected = "a file of this user alone",
                                  .got = str("'", path, "' (", why, ")"),
                                  .fix = "remove it, or set PYGPUKIT_RUNTIME_DIR to a private folder"});
}

}  // namespace

LockedFile::LockedFile(const std::string& path) : path_(path) {
    for (;;) {
        file_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
        if (file_ < 0) cannot_lock(path, std::strerror(errno));
        struct stat status{}, named{};
        const char* problem = nullptr;
        if (fstat(file_, &status) != 0 || !S_ISREG(status.st_mode)) {
            problem = "not a regular file";
        } else if (status.st_uid != geteuid()) {
            problem = "another user's";
        } else if ((status.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
            problem = "others may write to it";
        }
        int code = 0;
        while (problem == nullptr && (code = flock(file_, LOCK_EX)) != 0 && errno == EINTR) {
        }
        if (problem == nullptr && code != 0) problem = std::strerror(errno);
        if (problem != nullptr) {
            close(file_);
            cannot_lock(path, problem);
        }
        // Somebody may have removed it between the two calls.
        if (lstat(path.c_str(), &named) == 0 && named.st_ino == status.st_ino &&
            named.st_dev == status.st_dev)
            return;
        close(file_);
    }
}

// Unlocked by name: a child of a fork would keep the lock with its copy of the file.
LockedFile::~LockedFile() {
    flock(file_, LOCK_UN);
    close(file_);
}

std::string LockedFile::read(std::size_t limit) const {
    lseek(file_, 0, SEEK_SET);
    return read_all(file_, limit).value_or("");
}

void LockedFile::write(std::string_view bytes) {
    lseek(file_, 0, SEEK_SET);
    if (!write_all(file_, bytes) || ftruncate(file_, static_cast<off_t>(bytes.size())) != 0) {
        cannot_lock(path_, std::strerror(errno));
    }
}

std::vector<FileEntry> file_entries(const std::string& folder) {
    std::vector<FileEntry> entries;
    for (const std::string& path : list_files(folder, "")) {
        struct stat status{};
        if (lstat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) continue;
        entries.push_back({path, static_cast<std::uint64_t>(status.st_size),
                           status.st_mtim.tv_sec * std::int64_t{1000000000} + status.st_mtim.tv_nsec});
    }
    return entries;
}

void mark_used(const std::string& path) noexcept { utimensat(AT_FDCWD, path.c_str(), nullptr, 0); }

void remove_file(const std::string& path) noexcept { unlink(path.c_str()); }

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
    *output = read_all(ends[0], kOutputLimit).value_or("");
    char rest[4096];  // a full pipe would stop the program
    for (ssize_t count = 1; count > 0 || (count < 0 && errno == EINTR);)
        count = read(ends[0], rest, sizeof(rest));
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

namespace {

[[noreturn]] void cannot_open(const std::string& path, int code) {
    throw error(ErrorKind::file, {.call = "open",
                                  .expected = "a readable file",
                                  .got = str("'", path, "' (", std::strerror(code), ")")});
}

}  // namespace

MappedFile::MappedFile(const std::string& path) : path_(path) {
    // O_NONBLOCK: opening a pipe must not wait for its writer. Regular files ignore it.
    const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0) cannot_open(path, errno);
    struct stat status{};
    const bool known = fstat(file, &status) == 0;
    if (!known || !S_ISREG(status.st_mode)) {
        const int code = !known ? errno : S_ISDIR(status.st_mode) ? EISDIR : EINVAL;
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
