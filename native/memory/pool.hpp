// MemoryPool: device memory in size classes, reused in stream order.
//
// A freed block keeps the stream it was used on. The next owner on that stream takes it at once: the
// stream's own order protects it. An owner on another stream makes that stream wait for an event; the
// host never waits. While a stream is captured, memory comes from its graph's arena instead.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "runtime/device.hpp"
#include "runtime/graph.hpp"
#include "runtime/stream.hpp"

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

// A stretch of device memory. `class_bytes` is what it takes, `bytes` what was asked for.
struct Block {
    DevicePtr pointer = 0;
    std::size_t bytes = 0;
    std::size_t class_bytes = 0;
    std::shared_ptr<Stream> stream = nullptr;        // whose order protects it
    std::shared_ptr<GraphResource> arena = nullptr;  // set where it belongs to a graph
};

class MemoryPool : public DeviceAttachment {
   public:
    static MemoryPool& of(Device& device);

    explicit MemoryPool(Device& device) : device_(device) {}
    ~MemoryPool() override;
    MemoryPool(const MemoryPool&) = delete;
    MemoryPool& operator=(const MemoryPool&) = delete;

    // Throws Error (memory), with what is held, where neither the limit nor the device has room after
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

    // The size that a request takes: eight classes to a power of two, at least 256 bytes apart; from
    // 64 MiB multiples of 2 MiB.
    static std::size_t class_bytes(std::size_t bytes);

   private:
    // What else used a free block, beside the stream that it was allocated on.
    struct Others {
        std::vector<std::shared_ptr<Event>> events;
        // Those that no event could be recorded on: captured at that moment, or failing.
        std::vector<std::shared_ptr<Stream>> streams;
    };
    struct FreeBlock {
        DevicePtr pointer;
        std::shared_ptr<Stream> stream;
        std::unique_ptr<Others> others;  // null for nearly all

        bool may_ask() const;  // a capturing stream may be neither asked nor waited for
        bool idle() const;
        void order_before(Stream& next) const;
    };
    using FreeList = std::map<std::size_t, std::vector<FreeBlock>>;
    enum class Reuse { same_stream, idle, waiting };

    Block allocate_for_capture(std::size_t bytes, const std::shared_ptr<Stream>& stream);
    bool take_cached(std::size_t wanted, const std::shared_ptr<Stream>& stream, Reuse reuse, Block* block);
    bool take_fresh(std::size_t wanted, Block* block);
    std::size_t trim_locked() noexcept;
    std::shared_ptr<Event> mark(Stream& stream) noexcept;
    void count_allocation(std::size_t bytes);

    Device& device_;
    mutable std::mutex mutex_;
    FreeList free_;  // by class, the last freed at the back
    PoolStats stats_;
    std::size_t limit_ = 0;
};

}  // namespace gpk
