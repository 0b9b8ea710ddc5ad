// AwayStore: where the data of evicted blocks is: in pinned host memory and, behind that, in a file.
//
// What was away longest goes from the one to the other when memory is short, and comes back through memory.
// While a spill writes, the data is still where it was: a use takes it from there, and the spill comes to
// nothing.
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "memory/host_copy.hpp"
#include "memory/spill_file.hpp"
#include "runtime/meter.hpp"

namespace gpk {

// Neither the limit nor the driver has room for more pinned memory.
class HostFullError final : public Error {
   public:
    explicit HostFullError(const Error& said) : Error(said) {}
};

// The data of one block. All but `memory` is AwayStore's.
struct AwayData {
    // held: in memory, and it stays there. settled: in memory, and may go to the disk.
    enum class State : std::uint8_t { held, settled, spilling, on_disk };

    HostCopy memory;  // as long as somebody holds it
    std::size_t bytes = 0;
    Meter* meter = nullptr;
    State state = State::held;
    bool wanted = false, released = false;                    // by others, while it is being written
    std::shared_ptr<Event> after;                             // with `released`: the copies that still use it
    std::list<std::shared_ptr<AwayData>>::iterator in_queue;  // settled
    std::shared_ptr<SpillFile> file;                          // on_disk, spilling
    SpillFile::Place place;
};

// Thread-safe.
class AwayStore {
   public:
    explicit AwayStore(Device& device) : device_(device), host_(device) {}

    HostStore& host() noexcept { return host_; }
    const HostStore& host() const noexcept { return host_; }

    // Where to spill to from now on, and how much; what lies elsewhere stays there until its next use.
    void set_spill(std::unique_ptr<platform::ScratchFile> file, std::size_t limit);
    bool set_disk_limit(std::size_t bytes);  // false where there is no file

    // Room in memory, held. Throws HostFullError.
    std::shared_ptr<AwayData> allocate(std::size_t bytes, Meter& meter);
    void settle(const std::shared_ptr<AwayData>& data);  // ends what allocate(), hold() and put_back() began
    bool hold(const std::shared_ptr<AwayData>& data);    // false where it is on the disk
    // Reads what is on the disk into `room`, whose owner it becomes; held. Throws Error (file), and takes
    // nothing then.
    void put_back(AwayData& data, HostCopy& room);
    // The block needs it no more. `after`: the copies that still use it; null for none.
    void release(const std::shared_ptr<AwayData>& data, const std::shared_ptr<Event>& after) noexcept;

    // Moves what was settled first to the disk. False where there is nothing, or no room. One thread at a
    // time.
    bool spill();

    std::size_t spilled_bytes() const noexcept { return spilled_.load(std::memory_order_relaxed); }
    std::size_t disk_bytes() const;  // what the files take
    std::size_t
    give_back() noexcept;        // free memory, to the driver, and what files have too much of, to the disk
    std::string limits() const;  // for messages

   private:
    std::shared_ptr<AwayData> next_to_spill();
    void finish_spill(const std::shared_ptr<AwayData>& data, bool written) noexcept;
    void left_disk(AwayData& data) noexcept;

    Device& device_;
    HostStore host_;
    mutable std::mutex mutex_;                       // over all below, for moments only
    std::list<std::shared_ptr<AwayData>> settled_;   // the longest away in front
    std::vector<std::shared_ptr<SpillFile>> files_;  // the one in use at the back
    std::string problem_;                            // why the last spill did not happen
    std::atomic<std::size_t> spilled_{0};
};

}  // namespace gpk
