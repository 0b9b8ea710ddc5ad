// SpillFile: room on a disk for the data of evicted blocks, in a file of the process's own that goes with it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/platform.hpp"
#include "memory/host_copy.hpp"

namespace gpk {

// Thread-safe; reads and writes hold no lock.
class SpillFile {
   public:
    static constexpr std::size_t kGrain = 4096;  // of what is taken

    // Where one block's data lies. It is given back by give(), once.
    struct Place {
        struct Extent {
            std::uint64_t offset;
            std::size_t bytes;
        };
        std::vector<Extent> extents;
        std::uint64_t checksum = 0;
    };

    // The file never grows beyond `limit` bytes.
    SpillFile(std::unique_ptr<platform::ScratchFile> file, std::size_t limit);

    // Nothing where the limit or the disk has no room, with the reason in *problem.
    std::optional<Place> take(std::size_t bytes, std::string* problem);
    void give(const Place& place) noexcept;

    // False, with the reason in *problem, where not all of it could be written.
    bool write(Place& place, const HostCopy& from, std::string* problem);
    // Throws Error (file) where it cannot be read, and where it is not what was written.
    void read(const Place& place, const HostCopy& to);

    // What lies in it, and what it takes from the disk.
    std::size_t used_bytes() const;
    std::size_t file_bytes() const;
    std::size_t limit() const;
    void set_limit(std::size_t bytes);
    // Gives the disk back what lies behind all data.
    void trim() noexcept;

   private:
    // A child of a fork has the same file, but not the same list of what is free in it.
    bool of_this_process() const { return platform::process_id() == process_; }
    void take_free(std::size_t bytes, Place& place);
    void add_free(std::uint64_t offset, std::size_t bytes);

    const std::unique_ptr<platform::ScratchFile> file_;
    const int process_ = platform::process_id();
    std::mutex size_mutex_;     // whoever changes the file's size; asked for before the other
    mutable std::mutex mutex_;  // over all below, for moments only
    std::map<std::uint64_t, std::size_t> free_;  // offset -> bytes; no two touch each other
    std::size_t free_bytes_ = 0;
    std::uint64_t end_ = 0;  // of the file
    std::size_t limit_;
};

}  // namespace gpk
