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

#include "memory/bin.hpp"
#include "memory/size_classes.hpp"
#include "memory/spin_lock.hpp"
#include "runtime/device.hpp"

namespace gpk {

struct PoolStats {
    std::size_t live_bytes = 0;      // handed out, as asked for
    std::size_t reserved_bytes = 0;  // taken from the driver
    std::size_t cached_bytes = 0;    // reserved and free
    std::size_t peak_live_bytes = 0;
    std::uint64_t allocations = 0;  // by callers
    std::uint64_t driver_allocations = 0;
    std::uint64_t live_blocks = 0;
};

class MemoryPool : public DeviceAttachment {
   public:
    static MemoryPool& of(Device& device);

    explicit MemoryPool(Device& device);
    ~MemoryPool() override;
    MemoryPool(const MemoryPool&) = delete;
    MemoryPool& operator=(const MemoryPool&) = delete;

    // Throws Error (memory), with what is held, where neither the limits nor the device have room after
    // the cache was given back. `bytes` of 0 gives a null block.
    Block allocate(std::size_t bytes, const std::shared_ptr<Stream>& stream);
    // `others`: further streams that used the block since it was allocated.
    void release(Block block, const std::vector<std::shared_ptr<Stream>>& others = {}) noexcept;

    PoolStats stats() const;
    void reset_peak();
    // Gives free blocks back to the driver; waits for those still in use by a stream. Returns bytes.
    std::size_t trim();
    // The most that the pool may take from the driver; 0 for no limit.
    void set_limit(std::size_t bytes);
    std::size_t limit() const;

    // The size that a request takes.
    static std::size_t class_bytes(std::size_t bytes) { return size_class::bytes_for(bytes); }

   private:
    enum class Reuse { same_stream, idle, waiting };

    Block allocate_for_capture(std::size_t bytes, const std::shared_ptr<Stream>& stream);
    BlockRecord* fresh_for_capture(std::size_t wanted, std::size_t bytes,
                                   const std::shared_ptr<Stream>& stream);
    void charge(Tenant& tenant, std::size_t class_bytes, std::size_t bytes, const Stream& stream);
    BlockRecord* find(std::size_t wanted, const std::shared_ptr<Stream>& stream);
    BlockRecord* take_cached(std::size_t wanted, const std::shared_ptr<Stream>& stream, Reuse reuse);
    BlockRecord* take_from(Bin& bin, const std::shared_ptr<Stream>& stream, Reuse reuse);
    BlockRecord* take_fresh(std::size_t wanted, const std::shared_ptr<Stream>& stream);
    std::uint64_t fresh_data_of(std::uint64_t tenant) const noexcept;
    void scrub(BlockRecord& record, Stream& stream);
    std::size_t give_back() noexcept;
    std::shared_ptr<Event> mark(Stream& stream) noexcept;
    Bin& bin_for(std::size_t class_bytes);
    void note_live(BlockRecord* record, std::size_t bytes) noexcept;
    BlockRecord* taken(BlockRecord* record) noexcept;
    void put_free(BlockRecord* record) noexcept;
    void forget(BlockRecord* record) noexcept;
    // Throws Error (memory). `full`: the tenant that has no room; null where the pool has none.
    [[noreturn]] void refuse(std::size_t bytes, const Stream& stream, const Tenant* full) const;

    Device& device_;
    std::mutex driver_mutex_;  // over what asks the driver: one thread at a time takes the slow way
    mutable SpinLock lock_;    // over all below; asked for after driver_mutex_
    Bin bins_[size_class::kCount];
    std::map<std::size_t, Bin> large_bins_;
    BlockRecord* all_ = nullptr;
    PoolStats stats_;
    std::size_t limit_ = 0;
    // Whose data is in memory that went back to the driver, which gives it out again as it is. Under
    // driver_mutex_.
    std::optional<std::uint64_t> returned_;
};

}  // namespace gpk
