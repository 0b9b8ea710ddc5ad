// Files: private folders, files that are read or replaced whole, locked, mapped, or have no name.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <thread>
#include <utility>

#include "base/error.hpp"
#include "base/platform.hpp"

namespace gpk::platform {

namespace fs = std::filesystem;

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

[[noreturn]] void cannot_write(const std::string& call, const std::string& path, const char* why) {
    throw error(
        ErrorKind::file,
        {.call = call, .expected = "a file that can be written", .got = str("'", path, "' (", why, ")")});
}

// What a new file is to replace: of a link what it names. Nothing but a regular file is replaced.
std::string replaced_by(const std::string& call, const std::string& path) {
    struct stat status{};
    if (stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode)) {
        cannot_write(call, path, S_ISDIR(status.st_mode) ? std::strerror(EISDIR) : "not a regular file");
    }
    fs::path real = path;
    std::error_code failed;
    for (int links = 0; fs::is_symlink(real, failed); ++links) {
        const fs::path next = fs::read_symlink(real, failed);
        if (failed || links == 40) cannot_write(call, path, std::strerror(failed ? failed.value() : ELOOP));
        real = real.parent_path() / next;  // which is `next` where that is absolute
    }
    return real.string();
}

}  // namespace

bool replace_file(const std::string& path, std::string_view bytes) {
    const std::span<const std::byte> piece = std::as_bytes(std::span(bytes));
    return replace_with(path, {&piece, 1}, 0600) == 0;
}

void save_file(const std::string& path, std::span<const std::span<const std::byte>> pieces) {
    const int code = replace_with(replaced_by("write", path), pieces, 0666);
    if (code != 0) cannot_write("write", path, std::strerror(code));
}

NewFile::NewFile(std::string call, std::string path)
    : call_(std::move(call)),
      path_(replaced_by(call_, path)),
      temporary_(temporary_beside(path_)),
      file_(-1) {
    file_ = open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file_ < 0) cannot_write(call_, path_, std::strerror(errno));
}

NewFile::~NewFile() {
    if (file_ < 0) return;
    close(file_);
    unlink(temporary_.c_str());
}

void NewFile::write(std::string_view bytes) {
    if (!write_all(file_, bytes)) cannot_write(call_, path_, std::strerror(errno));
}

void NewFile::commit() {
    if (fsync(file_) != 0 || rename(temporary_.c_str(), path_.c_str()) != 0) {
        cannot_write(call_, path_, std::strerror(errno));
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

namespace {

constexpr std::chrono::seconds kLockPatience{10};

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
        // It is held for moments; who is stopped while holding it must not stop all others for good.
        const auto until = std::chrono::steady_clock::now() + kLockPatience;
        while (problem == nullptr && (code = flock(file_, LOCK_EX | LOCK_NB)) != 0 &&
               (errno == EWOULDBLOCK || errno == EINTR) && std::chrono::steady_clock::now() < until) {
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        if (problem == nullptr && code != 0) {
            problem =
                errno == EWOULDBLOCK ? "another process has had it locked for 10 s" : std::strerror(errno);
        }
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

namespace {

[[noreturn]] void cannot_open(const std::string& path, int code) {
    throw error(ErrorKind::file, {.call = "open",
                                  .expected = "a readable file",
                                  .got = str("'", path, "' (", std::strerror(code), ")")});
}

}  // namespace

MappedFile::MappedFile(const std::string& path) : path_(path) {
    // O_NONBLOCK: opening a pipe must not wait for its writer. Regular files ignore it.
    file_ = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file_ < 0) cannot_open(path, errno);
    struct stat status{};
    const bool known = fstat(file_, &status) == 0;
    int code = 0;
    if (!known || !S_ISREG(status.st_mode)) {
        code = !known ? errno : S_ISDIR(status.st_mode) ? EISDIR : EINVAL;
    } else if (status.st_size > 0) {
        size_ = static_cast<std::size_t>(status.st_size);
        void* map = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file_, 0);
        code = map == MAP_FAILED ? errno : 0;
        if (code == 0) data_ = static_cast<const std::byte*>(map);
    }
    if (code == 0) return;
    close(file_);
    cannot_open(path, code);
}

MappedFile::~MappedFile() {
    if (data_ != nullptr) munmap(const_cast<std::byte*>(data_), size_);
    if (file_ >= 0) close(file_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      file_(std::exchange(other.file_, -1)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
    std::swap(path_, other.path_);
    std::swap(file_, other.file_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
}

void MappedFile::read(std::size_t offset, std::span<std::byte> out) const {
    while (!out.empty()) {
        const ssize_t count = pread(file_, out.data(), out.size(), static_cast<off_t>(offset));
        if (count < 0 && errno == EINTR) continue;
        if (count <= 0) {
            throw error(ErrorKind::file, {.call = str("read '", path_, "'"),
                                          .expected = str(out.size(), " bytes from ", offset, " on"),
                                          .got = count < 0 ? std::strerror(errno) : "the file's end",
                                          .fix = "do not change the file while it is loaded"});
        }
        out = out.subspan(static_cast<std::size_t>(count));
        offset += static_cast<std::size_t>(count);
    }
}

}  // namespace gpk::platform
