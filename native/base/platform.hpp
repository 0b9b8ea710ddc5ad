// Everything that differs between operating systems: opening libraries, paths, memory maps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace gpk::platform {

// An environment variable, or nothing where it is unset or empty.
std::optional<std::string> environment(const char* name);

// A shared library that stays open for the process's life. `path` must be absolute, or a bare
// versioned file name that the system's loader cache resolves; anything else is refused.
// Returns null with the loader's message in *reason.
void* open_library(const std::string& path, std::string* reason);
void* find_symbol(void* library, const char* name);
// The file that a symbol's address came from: where a loaded library really is.
std::string library_of(const void* symbol);

bool file_exists(const std::string& path);
// The files of a folder whose names begin with `prefix`, sorted; empty where there is no folder.
std::vector<std::string> list_files(const std::string& folder, const std::string& prefix);
std::string user_cache_folder();  // $XDG_CACHE_HOME or ~/.cache

std::size_t physical_memory_bytes();
// Maps the pages of memory that is about to be written, which costs less than a fault on each. Only a hint.
void populate(void* pointer, std::size_t bytes) noexcept;
unsigned hardware_threads();  // those this process may run on

// Makes a folder, and those above it, for this user alone. Returns why the result cannot be trusted
// (another's, or writable by others) in *unsafe, or why there is none in *failed; both empty when fine.
void make_private_folder(const std::string& path, std::string* unsafe, std::string* failed);
// Where this user's programs keep what they share while they run: PYGPUKIT_RUNTIME_DIR, else a folder in
// $XDG_RUNTIME_DIR, in the cache folder or in /tmp. A link, another's folder, and one that others may write
// to are refused: empty then, with the reason in *failed.
std::string runtime_folder(std::string* failed);

// A process that its number alone does not tell: numbers are used again.
struct Process {
    int pid = 0;
    std::uint64_t started = 0;  // ticks since the system's start
    std::uint64_t space = 0;    // of process numbers: containers have their own
    friend bool operator==(const Process&, const Process&) = default;
};
Process this_process();
// One of another container cannot be asked and counts as alive.
bool is_alive(const Process& process);
std::string boot_id();  // another one after each start of the system

// A small file that processes take turns with. It is locked while this lives.
class LockedFile {
   public:
    // Makes the file where there is none. Throws Error (file) for a link, another's file, one that others may
    // write to, and where the disk refuses.
    explicit LockedFile(const std::string& path);
    ~LockedFile();
    LockedFile(const LockedFile&) = delete;
    LockedFile& operator=(const LockedFile&) = delete;

    std::string read(std::size_t limit) const;  // its first `limit` bytes
    void write(std::string_view bytes);         // instead of what is there

   private:
    std::string path_;
    int file_ = -1;
};

// A new folder for this user alone, below the system's temporary folder; removed with all that is in it.
class TemporaryFolder {
   public:
    TemporaryFolder();
    ~TemporaryFolder();
    TemporaryFolder(const TemporaryFolder&) = delete;
    TemporaryFolder& operator=(const TemporaryFolder&) = delete;
    const std::string& path() const noexcept { return path_; }

   private:
    std::string path_;
};

// The whole of a regular file of at most `limit` bytes that this user owns and nobody else may write.
std::optional<std::string> read_own_file(const std::string& path, std::size_t limit);
// Both write beside the target, flush to the disk and rename, so that a reader sees all or nothing.
// replace_file makes a file for this user only and gives false where the disk refuses; save_file
// makes one as the umask says and throws Error (file).
bool replace_file(const std::string& path, std::string_view bytes);
void save_file(const std::string& path, std::span<const std::span<const std::byte>> pieces);

// A file that is written piece by piece beside the target and takes its place at commit(); without one
// nothing is left of it. Each throws Error (file), naming `call`.
class NewFile {
   public:
    NewFile(std::string call, std::string path);
    ~NewFile();
    NewFile(const NewFile&) = delete;
    NewFile& operator=(const NewFile&) = delete;
    void write(std::string_view bytes);
    void commit();

   private:
    std::string call_, path_, temporary_;
    int file_;
};

// A file without a name, for this process alone: it goes with the process. Tests put failures into the calls.
class ScratchFile {
   public:
    // In `folder`, an absolute path of a folder that is no link. Throws Error (value) otherwise, and where
    // the disk refuses, naming `call` and `argument`.
    ScratchFile(const char* call, const char* argument, const std::string& folder);
    virtual ~ScratchFile();
    ScratchFile(const ScratchFile&) = delete;
    ScratchFile& operator=(const ScratchFile&) = delete;

    // One call of the system each: the bytes that it moved, or its errno below 0.
    virtual std::ptrdiff_t read(void* to, std::size_t bytes, std::uint64_t offset) noexcept;
    virtual std::ptrdiff_t write(const void* from, std::size_t bytes, std::uint64_t offset) noexcept;
    // Takes what it grows by from the disk now, where the file system can. 0, or the errno.
    virtual int resize(std::uint64_t bytes) noexcept;
    std::uint64_t bytes_left_on_disk() const noexcept;  // to this user

   private:
    int file_ = -1;
    std::uint64_t size_ = 0;
};
std::string error_text(int code);  // of an errno

struct FileEntry {
    std::string path;
    std::uint64_t bytes = 0;
    std::int64_t modified = 0;  // nanoseconds since 1970
};
std::vector<FileEntry> file_entries(const std::string& folder);
void mark_used(const std::string& path) noexcept;  // its modification time becomes now
void remove_file(const std::string& path) noexcept;

// The first program of that name in the system's folders or in an absolute folder of PATH; empty where
// there is none.
std::string find_program(const std::string& name);
// Where a program's file is and when it changed: text that differs after an update.
std::string file_identity(const std::string& path);

// Runs a program, without a shell, until it ends. `arguments[0]` is its absolute path. What it writes
// goes into `output` (its first 64 KiB). Returns its exit code; -1 where it could not run or was killed.
int run_program(const std::vector<std::string>& arguments, std::string* output);

// The NVIDIA kernel driver's own version, "580.65.06"; empty where it does not say.
std::string gpu_driver_version();

std::string thread_name();  // the calling thread's, with the number that the system gives it
int process_id();
// Pages of this process's memory, for what must move between addresses without a copy. Addresses and sizes
// are multiples of page_bytes(). All is private and anonymous: a forked child gets its own.
std::size_t page_bytes();
void* reserve_pages(std::size_t bytes, std::size_t alignment) noexcept;  // no memory yet; null: no room
void* new_pages(std::size_t bytes) noexcept;                             // zeros; null where there is none
void release_pages(void* begin, std::size_t bytes) noexcept;             // of either kind
// The memory at `from` comes to `to`, which was reserved; `from` is then reserved. False: nothing changed.
bool move_pages(void* from, void* to, std::size_t bytes) noexcept;
// Gives the memory back and keeps the address reserved.
bool drop_pages(void* begin, std::size_t bytes) noexcept;

// Calls `call` in each child process, right after a fork.
void on_fork_in_child(void (*call)());

// Ends a thread's work where the thread itself cannot end.
[[noreturn]] void wait_forever();

// A whole file, mapped read-only. Throws Error (file) where it cannot be opened.
class MappedFile {
   public:
    explicit MappedFile(const std::string& path);
    ~MappedFile();
    MappedFile(MappedFile&& other) noexcept;
    MappedFile& operator=(MappedFile&& other) noexcept;

    std::span<const std::byte> bytes() const noexcept { return {data_, size_}; }
    const std::string& path() const noexcept { return path_; }
    // Reads bytes from `offset` on, past the map, by the system. Throws Error (file) where there are not so
    // many.
    void read(std::size_t offset, std::span<std::byte> out) const;

   private:
    std::string path_;
    int file_ = -1;
    const std::byte* data_ = nullptr;
    std::size_t size_ = 0;
};

}  // namespace gpk::platform
