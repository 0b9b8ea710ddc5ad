#include "memory/spill_file.hpp"

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <utility>

#include "base/checksum.hpp"
#include "base/error.hpp"
#include "memory/size_classes.hpp"

namespace gpk {

namespace {

// Calls move(piece, bytes, offset) for each stretch that lies in one piece and in one extent, until it gives
// something other than 0.
template <class Move>
int for_each_run(const SpillFile::Place& place, const HostCopy& pieces, Move&& move) {
    auto extent = place.extents.begin();
    std::size_t in_extent = 0;
    for (const HostPiece& piece : pieces) {
        for (std::size_t in_piece = 0; in_piece < piece.bytes;) {
            if (in_extent == extent->bytes) {
                ++extent;
                in_extent = 0;
            }
            const std::size_t bytes = std::min(piece.bytes - in_piece, extent->bytes - in_extent);
            if (const int code = move(piece.data + in_piece, bytes, extent->offset + in_extent)) return code;
            in_piece += bytes;
            in_extent += bytes;
        }
    }
    return 0;
}

// One call of the system may move less than it was asked for. 0, or an errno.
template <class Call>
int move_all(std::byte* data, std::size_t bytes, std::uint64_t offset, Call&& call) {
    while (bytes > 0) {
        const std::ptrdiff_t count = call(data, bytes, offset);
        if (count == -EINTR) continue;
        if (count < 0) return static_cast<int>(-count);
        if (count == 0) return EIO;  // behind the file's end, or nothing could be written
        data += count;
        offset += static_cast<std::uint64_t>(count);
        bytes -= static_cast<std::size_t>(count);
    }
    return 0;
}

[[noreturn]] void cannot_read(const std::string& why) {
    throw error(ErrorKind::file, {.call = "reload of an evicted block",
                                  .expected = "the data that was written to the spill file",
                                  .got = why,
                                  .fix = "the block stays on the disk; the next use tries again"});
}

}  // namespace

SpillFile::SpillFile(std::unique_ptr<platform::ScratchFile> file, std::size_t limit)
    : file_(std::move(file)), limit_(limit) {}

std::optional<SpillFile::Place> SpillFile::take(std::size_t bytes, std::string* problem) {
    if (!of_this_process()) {
        *problem = "the spill file belongs to the process that this one was forked from";
        return std::nullopt;
    }
    std::lock_guard size_lock(size_mutex_);
    std::unique_lock lock(mutex_);
    const std::size_t wanted = size_class::round_up(bytes, kGrain);
    // What is missing is put behind the file's end.
    const std::size_t missing = wanted - std::min(wanted, free_bytes_);
    if (wanted > limit_ || missing > limit_ || end_ > limit_ - missing) {
        *problem = str("the spill file holds ", end_ - free_bytes_, " of at most ", limit_, " bytes");
        return std::nullopt;
    }
    if (missing > 0) {
        const std::uint64_t begin = end_;
        lock.unlock();
        if (const int code = file_->resize(begin + missing)) {
            *problem = str("the spill file cannot grow to ", begin + missing, " bytes (",
                           platform::error_text(code), ")");
            return std::nullopt;
        }
        lock.lock();
        end_ = begin + missing;
        add_free(begin, missing);
    }
    Place place;
    take_free(wanted, place);
    return place;
}

// The smallest stretch that has room for all of it, else the largest ones. The caller knows that there is
// enough.
void SpillFile::take_free(std::size_t bytes, Place& place) {
    while (bytes > 0) {
        auto best = free_.begin();
        for (auto each = std::next(best); each != free_.end(); ++each) {
            const bool fits = each->second >= bytes, best_fits = best->second >= bytes;
            const bool better = fits && best_fits ? each->second < best->second : each->second > best->second;
            if (better) best = each;
        }
        const std::size_t taken = std::min(bytes, best->second);
        const auto [offset, whole] = *best;
        place.extents.push_back({offset, taken});
        if (taken < whole) free_.emplace(offset + taken, whole - taken);
        free_.erase(offset);
        free_bytes_ -= taken;
        bytes -= taken;
    }
}

void SpillFile::add_free(std::uint64_t offset, std::size_t bytes) {
    free_bytes_ += bytes;
    const auto next = free_.lower_bound(offset);
    if (next != free_.begin()) {
        const auto before = std::prev(next);
        if (before->first + before->second == offset) {
            offset = before->first;
            bytes += before->second;
            free_.erase(before);
        }
    }
    if (next != free_.end() && offset + bytes == next->first) {
        bytes += next->second;
        free_.erase(next);
    }
    free_.emplace(offset, bytes);
}

void SpillFile::give(const Place& place) noexcept {
    std::lock_guard lock(mutex_);
    for (const Place::Extent& each : place.extents) add_free(each.offset, each.bytes);
}

bool SpillFile::write(Place& place, const HostCopy& from, std::string* problem) {
    Checksum sum;
    const int code = for_each_run(place, from, [&](std::byte* data, std::size_t bytes, std::uint64_t offset) {
        sum.add(data, bytes);
        return move_all(data, bytes, offset, [&](std::byte* at, std::size_t count, std::uint64_t to) {
            return file_->write(at, count, to);
        });
    });
    place.checksum = sum.value();
    if (code != 0) *problem = str("the spill file cannot be written (", platform::error_text(code), ")");
    return code == 0;
}

void SpillFile::read(const Place& place, const HostCopy& to) {
    if (!of_this_process()) cannot_read("a file of the process that this one was forked from");
    Checksum sum;
    const int code = for_each_run(place, to, [&](std::byte* data, std::size_t bytes, std::uint64_t offset) {
        const int failed =
            move_all(data, bytes, offset, [&](std::byte* at, std::size_t count, std::uint64_t from) {
                return file_->read(at, count, from);
            });
        if (failed == 0) sum.add(data, bytes);
        return failed;
    });
    if (code != 0) cannot_read(platform::error_text(code));
    if (sum.value() != place.checksum) cannot_read("other data: the file is damaged");
}

std::size_t SpillFile::used_bytes() const {
    std::lock_guard lock(mutex_);
    return end_ - free_bytes_;
}

std::size_t SpillFile::file_bytes() const {
    std::lock_guard lock(mutex_);
    return end_;
}

std::size_t SpillFile::limit() const {
    std::lock_guard lock(mutex_);
    return limit_;
}

void SpillFile::set_limit(std::size_t bytes) {
    std::lock_guard lock(mutex_);
    limit_ = bytes;
}

void SpillFile::trim() noexcept {
    std::lock_guard size_lock(size_mutex_);
    std::lock_guard lock(mutex_);  // nobody may take what goes
    if (free_.empty() || !of_this_process()) return;
    const auto last = std::prev(free_.end());
    if (last->first + last->second != end_ || file_->resize(last->first) != 0) return;
    end_ = last->first;
    free_bytes_ -= last->second;
    free_.erase(last);
}

}  // namespace gpk
