// PinnedPool: pinned host memory in size classes, which copies reach without staging.
//
// Pinning costs far more than copying (the driver maps every page for the device), so freed blocks are kept
// and used again once the copies that used them are done.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "runtime/device.hpp"
#include "runtime/stream.hpp"

namespace gpk {

struct PinnedStats {
    std::size_t live_bytes = 0;      // handed out, as asked for
    std::size_t reserved_bytes = 0;  // taken from the driver
    std::size_t cached_bytes = 0;    // reserved and free
    std::size_t peak_reserved_bytes = 0;
    std::uint64_t live_blocks = 0;
    std::uint64_t allocations = 0;  // by callers
    std::uint64_t driver_allocations = 0;
};

struct PinnedBlock {
    std::byte* data = nullptr;
    std::size_t bytes = 0;        // as asked for
    std::size_t class_bytes = 0;  // what it takes
};

class PinnedPool : public DeviceAttachment {
   public:
    // Freed blocks beyond this go back to the driver: pinned memory is memory that the system cannot use.
    static constexpr std::size_t kMostCachedBytes = std::size_t{256} << 20;

    static PinnedPool& of(Device& device);

    explicit PinnedPool(Device& device);
    ~PinnedPool() override;
    PinnedPool(const PinnedPool&) = delete;
    PinnedPool& operator=(const PinnedPool&) = delete;

    // Throws Error (memory) where neither the limit nor the driver has room after the cache was
    // given back. `bytes` of 0 gives a null block.
    PinnedBlock allocate(std::size_t bytes);
    // `after`: what the copies that still use the block have recorded; it is not given out before.
    void release(const PinnedBlock& block, std::vector<std::shared_ptr<Event>> after = {}) noexcept;

    // Whether all of a host range lies in one live block.
    bool contains(const void* pointer, std::size_t bytes) const;

    PinnedStats stats() const;
    // Gives free blocks that no copy uses back to the driver. Returns their bytes.
    std::size_t trim();
    // The most that the pool may take from the driver; half of the machine's memory unless set.
    void set_limit(std::size_t bytes);
    std::size_t limit() const;

    // From 4 KiB, four classes to a power of two.
    static std::size_t class_bytes(std::size_t bytes);

   private:
    struct FreeBlock {
        std::byte* data;
        std::vector<std::shared_ptr<Event>> after;

        bool idle() const noexcept;
    };

    bool take_cached(std::size_t wanted, PinnedBlock* block);
    bool take_fresh(std::size_t wanted, PinnedBlock* block);
    std::size_t trim_locked(std::size_t keep_bytes) noexcept;

    Device& device_;
    mutable std::mutex mutex_;
    std::map<std::size_t, std::vector<FreeBlock>> free_;  // by class, the last freed at the back
    std::map<const std::byte*, std::size_t> live_;        // address -> bytes asked for
    PinnedStats stats_;
    std::size_t limit_;
};

}  // namespace gpk
