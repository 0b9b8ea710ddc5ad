// MemoryPool: device memory in size classes, reused in stream order.
//
// A freed block keeps the stream it was used on. The next owner on that stream takes it at once: the
// stream's own order protects it. An owner on another stream makes that stream wait for an event; the
// host never waits. While a stream is captured, memory comes from its graph's arena instead.
//
// What is allocated on a tenant's stream is charged to the tenant. Memory that may hold what another tenant
// (or one, where there is none now) has left is filled with zeros before it is handed out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "base/error.hpp"
#include "memory/bin.hpp"
#include "memory/budget.hpp"
#include "memory/chunks.hpp"
#include "memory/evict.hpp"
#include "memory/size_classes.hpp"
#include "memory/spin_lock.hpp"
#include "runtime/device.hpp"

namespace gpk {

// There is no room now. There may be some once ops of other threads have ended: see array/storage.cpp.
class NoRoomError final : public Error {
   public:
    NoRoomError(Error said, std::size_t bytes, const Tenant* full, const Tenant* asking)
        : Error(std::move(said)), bytes(bytes), full(full), asking(asking) {}

    std::size_t bytes;
    // As long as the call goes on. `full` has no room; null: the pool has none.
    const Tenant *full, *asking;
};

struct PoolStats {
    std::size_t live_bytes = 0;      // handed out, as asked for
    std::size_t reserved_bytes = 0;  // taken from the driver
    std::size_t cached_bytes = 0;    // reserved and free
    std::size_t peak_live_bytes = 0;
    std::uint64_t allocations = 0;  // by callers
    std::uint64_t driver_allocations = 0;
    std::uint64_t live_blocks = 0;
    std::size_t evicted_bytes = 0;  // of live blocks, not on the device now
    std::size_t host_bytes = 0;     // pinned for eviction
    std::size_t spilled_bytes = 0;  // of evicted blocks, on the disk
    std::size_t disk_bytes = 0;     // taken from the disk for them
    std::uint64_t evictions = 0, reloads = 0;
};

// One block, for a picture of what holds what.
struct BlockInfo {
    DevicePtr pointer = 0;
    std::size_t bytes = 0;  // asked for; 0 where it is cached
    std::size_t class_bytes = 0;
    std::string_view state;  // "live", "leaving", "evicted" or "cached"
    bool movable = false;
    std::string tenant;  // empty for none
    std::uint64_t stream = 0;
    std::uint64_t last_use = 0;  // of movable blocks: a greater number is later
};

struct ClassInfo {
    std::size_t class_bytes = 0, live_blocks = 0, free_blocks = 0;
};

class MemoryPool : public DeviceAttachment {
   public:
    static MemoryPool& of(Device& device);

    explicit MemoryPool(Device& device);
    ~MemoryPool() override;
    MemoryPool(const MemoryPool&) = delete;
    MemoryPool& operator=(const MemoryPool&) = delete;

    // Throws NoRoomError, with what is held, where neither the limits nor the device have room after
    // the cache was given back. `bytes` of 0 gives a null block.
    Block allocate(std::size_t bytes, const std::shared_ptr<Stream>& stream);
    // `others`: further streams that used the block since it was allocated.
    void release(Block block, const std::vector<std::shared_ptr<Stream>>& others = {}) noexcept;

    PoolStats stats() const;
    void reset_peak();
    // All blocks, or the live ones of a tenant and those below it.
    std::vector<BlockInfo> snapshot(const Tenant* within = nullptr) const;
    std::vector<ClassInfo> classes() const;  // with blocks, the smallest first
    // Gives free blocks back to the driver; waits for those still in use by a stream. Returns bytes.
    std::size_t trim();
    // The most that the pool may take from the driver; 0 for no limit.
    void set_limit(std::size_t bytes);
    std::size_t limit() const;

    // Eviction, for what is allocated from then on: of everybody, or of a tenant and those below it. Blocks
    // that are smaller than the driver's granularity never move.
    void set_eviction(bool enabled);
    void set_eviction(const Tenant& tenant, bool enabled);
    bool evicts(const Tenant* tenant) const;
    // Whether a block of so many bytes may be one that moves.
    bool may_move(std::size_t bytes) const noexcept {
        return (evicts_all_.load(std::memory_order_relaxed) ||
                evicts_some_.load(std::memory_order_relaxed)) &&
               bytes > chunks_.granularity() / 2;
    }
    // Whether any block may leave, or come free since others may.
    bool blocks_move() const { return may_move(~std::size_t{0}) || evictor_.any_movable(); }
    // Whether there would be room if nobody but the calling thread, which holds `mine`, held anything.
    bool room_may_come(const NoRoomError& failure, const std::vector<const Evictable*>& mine);
    // For the owner of a block: gives it an entry with the evictor where it may move.
    void make_movable(const Block& block, Evictable& owner);
    // Moves a movable block to the host now, and waits. False where it is in use or does not move.
    bool evict(const Block& block);
    Evictor& evictor() noexcept { return evictor_; }
    Device& device() const noexcept { return device_; }

    // The size that a request takes.
    static std::size_t class_bytes(std::size_t bytes) { return size_class::bytes_for(bytes); }

   private:
    friend class Evictor;
    enum class Reuse { same_stream, idle, waiting };

    Block allocate_for_capture(std::size_t bytes, const std::shared_ptr<Stream>& stream);
    BlockRecord* fresh_for_capture(std::size_t wanted, std::size_t bytes,
                                   const std::shared_ptr<Stream>& stream);
    template <class Get, class Clean>
    BlockRecord* hand_over(std::size_t wanted, std::size_t bytes, const Stream& stream, Get&& get,
                           Clean&& clean);
    void charge(Tenant& tenant, std::size_t class_bytes, std::size_t bytes, const Stream& stream);
    // The tenant that has no room even so, or null: charged. The caller holds driver_mutex_.
    const Tenant* charge_making_room(Tenant& tenant, std::size_t class_bytes);
    std::size_t size_for(std::size_t bytes, const Tenant* tenant) const;
    template <class Attempt>
    auto with_room(std::size_t bytes, const Tenant* tenant, Attempt&& attempt);
    std::vector<Chunk> gather(std::size_t bytes, const Tenant* tenant);
    bool allocate_at(BlockRecord& record, std::uint64_t tenant);
    bool allocate_chunks(BlockRecord& record, std::uint64_t tenant);
    enum class Harvest { idle_chunks, everything };
    std::size_t harvest(Harvest which) noexcept;
    bool settle(BlockRecord& record, bool wait) noexcept;
    void dispose(std::unique_ptr<BlockRecord> record) noexcept;
    void add(BlockRecord* record) noexcept;
    BlockRecord* find(std::size_t wanted, const std::shared_ptr<Stream>& stream);
    BlockRecord* take_cached(std::size_t wanted, const std::shared_ptr<Stream>& stream, Reuse reuse);
    BlockRecord* take_from(Bin& bin, const std::shared_ptr<Stream>& stream, Reuse reuse);
    BlockRecord* take_fresh(std::size_t wanted, const std::shared_ptr<Stream>& stream);
    std::uint64_t fresh_data_of(std::uint64_t tenant) const noexcept;
    void scrub(BlockRecord& record, Stream& stream);
    std::shared_ptr<Event> mark(Stream& stream, std::shared_ptr<Event> event = nullptr) noexcept;
    Bin& bin_for(std::size_t class_bytes);
    void note_live(BlockRecord* record, std::size_t bytes) noexcept;
    BlockRecord* taken(BlockRecord* record) noexcept;
    void put_free(BlockRecord* record) noexcept;
    void forget(BlockRecord* record) noexcept;
    // Throws NoRoomError. `full`: the tenant that has no room; null where the pool has none.
    [[noreturn]] void refuse(std::size_t bytes, const Stream& stream, const Tenant* full) const;

    Device& device_;
    std::mutex driver_mutex_;  // over what asks the driver: one thread at a time takes the slow way
    mutable SpinLock lock_;    // over all below; asked for after driver_mutex_
    Bin bins_[size_class::kCount];
    std::map<std::size_t, Bin> large_bins_;
    BlockRecord* all_ = nullptr;
    PoolStats stats_;
    std::vector<std::uint64_t> evicting_tenants_;  // ids
    std::atomic<bool> evicts_all_{false}, evicts_some_{false};
    DriverBudget budget_;
    // Under driver_mutex_, as is the evictor.
    ChunkCache chunks_;
    Evictor evictor_;
    // Whose data is in memory that went back to the driver, which gives it out again as it is. Under
    // driver_mutex_.
    std::optional<std::uint64_t> returned_;
};

}  // namespace gpk
