// Chunks: physical memory in two sizes, from which large blocks are put together at addresses of their own.
// A request is served from whatever chunks are free, wherever they lie, so large blocks do not fragment.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "memory/budget.hpp"
#include "runtime/device.hpp"

namespace gpk {

// Of `data_of`: more than one tenant's.
inline constexpr std::uint64_t kOfSeveral = ~std::uint64_t{0};

struct Chunk {
    PhysicalHandle handle = nullptr;
    std::size_t bytes = 0;
    std::uint64_t data_of = 0;  // the tenant whose data it may still hold
};

// Not thread-safe, free_bytes() aside: the pool locks.
class ChunkCache {
   public:
    ChunkCache(Device& device, DriverBudget& budget) : device_(device), budget_(budget) {}
    ~ChunkCache() { give_back(); }
    ChunkCache(const ChunkCache&) = delete;
    ChunkCache& operator=(const ChunkCache&) = delete;

    // 0 where the device has no virtual memory calls.
    std::size_t granularity() const noexcept { return device_.info().physical_granularity; }

    // Chunks of together `bytes`, a multiple of the granularity; empty where there is no room. What has to be
    // created may hold data of `fresh_data_of`.
    std::vector<Chunk> gather(std::size_t bytes, std::uint64_t fresh_data_of);
    void put(std::vector<Chunk> chunks);

    // Ties the chunks to addresses, one after another. A failure leaves nothing mapped.
    void map(DevicePtr address, const std::vector<Chunk>& chunks);

    // Destroys free chunks until `bytes` went back to the driver, or all.
    std::size_t give_back(std::size_t bytes = ~std::size_t{0}) noexcept;
    std::size_t free_bytes() const noexcept { return free_bytes_.load(std::memory_order_relaxed); }
    // Whose data went back to the driver with chunks.
    const std::optional<std::uint64_t>& returned() const noexcept { return returned_; }

   private:
    std::size_t big() const noexcept { return 16 * granularity(); }
    bool can_reach(std::size_t bytes) const;
    bool take(std::size_t bytes, std::vector<Chunk>* to);
    bool create(std::size_t bytes, std::uint64_t data_of, std::vector<Chunk>* to);
    void destroy(std::vector<Chunk>& from) noexcept;

    Device& device_;
    DriverBudget& budget_;
    std::vector<Chunk> big_, small_;
    std::atomic<std::size_t> free_bytes_{0};
    std::optional<std::uint64_t> returned_;
};

}  // namespace gpk
