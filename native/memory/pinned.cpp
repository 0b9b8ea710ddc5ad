#include "memory/pinned.hpp"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/error.hpp"
#include "base/platform.hpp"

namespace gpk {

namespace {

constexpr std::size_t kSmallest = 4096;

}  // namespace

PinnedPool& PinnedPool::of(Device& device) { return device.attached<PinnedPool>(); }

PinnedPool::PinnedPool(Device& device) : device_(device), limit_(platform::physical_memory_bytes() / 2) {}

PinnedPool::~PinnedPool() {
    std::lock_guard lock(mutex_);
    for (const auto& [size, blocks] : free_) {
        for (const FreeBlock& block : blocks) device_.driver().free_host(block.data);
    }
}

std::size_t PinnedPool::class_bytes(std::size_t bytes) {
    if (bytes <= kSmallest) return kSmallest;
    const std::size_t step = std::max(kSmallest, std::bit_floor(bytes - 1) / 4);
    return (bytes + step - 1) & ~(step - 1);
}

bool PinnedPool::FreeBlock::idle() const noexcept {
    try {
        return std::all_of(after.begin(), after.end(), [](const auto& event) { return event->query(); });
    } catch (const Error&) {
        return false;  // asked again by whoever wants the block next
    }
}

bool PinnedPool::take_cached(std::size_t wanted, PinnedBlock* block) {
    const auto list = free_.find(wanted);
    if (list == free_.end()) return false;
    auto& blocks = list->second;
    const auto found =
        std::find_if(blocks.rbegin(), blocks.rend(), [](const FreeBlock& each) { return each.idle(); });
    if (found == blocks.rend()) return false;
    block->data = found->data;
    blocks.erase(std::next(found).base());
    stats_.cached_bytes -= wanted;
    return true;
}

bool PinnedPool::take_fresh(std::size_t wanted, PinnedBlock* block) {
    if (wanted > limit_ || stats_.reserved_bytes > limit_ - wanted) return false;
    try {
        block->data = static_cast<std::byte*>(device_.driver().allocate_host(wanted));
    } catch (const DriverError& failure) {
        if (failure.kind() != ErrorKind::memory) throw;
        return false;
    }
    stats_.reserved_bytes += wanted;
    stats_.peak_reserved_bytes = std::max(stats_.peak_reserved_bytes, stats_.reserved_bytes);
    ++stats_.driver_allocations;
    return true;
}

PinnedBlock PinnedPool::allocate(std::size_t bytes) {
    if (bytes == 0) return {};
    std::unique_lock lock(mutex_);
    const bool possible = bytes <= limit_;  // so that the class of an absurd size is not even computed
    PinnedBlock block{.bytes = bytes, .class_bytes = possible ? class_bytes(bytes) : bytes};
    bool found =
        possible && (take_cached(block.class_bytes, &block) || take_fresh(block.class_bytes, &block));
    if (!found && possible && trim_locked(0) > 0) found = take_fresh(block.class_bytes, &block);
    if (!found) {
        throw error(ErrorKind::memory, {.call = str("pinned allocation for ", device_.name()),
                                        .expected = str(bytes, " bytes of pinned host memory"),
                                        .got = str("a pool that holds ", stats_.live_bytes, " in ",
                                                   stats_.live_blocks, " live blocks and may take ", limit_),
                                        .fix = "free pinned memory, or work in smaller pieces"});
    }
    try {
        live_.emplace(block.data, bytes);
    } catch (...) {
        device_.driver().free_host(block.data);
        stats_.reserved_bytes -= block.class_bytes;
        throw;
    }
    stats_.live_bytes += bytes;
    ++stats_.live_blocks;
    ++stats_.allocations;
    return block;
}

void PinnedPool::release(const PinnedBlock& block, std::vector<std::shared_ptr<Event>> after) noexcept {
    if (block.data == nullptr) return;
    std::lock_guard lock(mutex_);
    live_.erase(block.data);
    stats_.live_bytes -= block.bytes;
    --stats_.live_blocks;
    free_[block.class_bytes].push_back({block.data, std::move(after)});
    stats_.cached_bytes += block.class_bytes;
    if (stats_.cached_bytes > kMostCachedBytes) trim_locked(kMostCachedBytes);
}

bool PinnedPool::contains(const void* pointer, std::size_t bytes) const {
    const auto* const first = static_cast<const std::byte*>(pointer);
    std::lock_guard lock(mutex_);
    auto next = live_.upper_bound(first);
    if (next == live_.begin()) return false;
    const auto& [begin, size] = *std::prev(next);
    const auto offset = static_cast<std::size_t>(first - begin);
    return offset <= size && bytes <= size - offset;
}

PinnedStats PinnedPool::stats() const {
    std::lock_guard lock(mutex_);
    return stats_;
}

// Largest first, until at most `keep_bytes` stay cached.
std::size_t PinnedPool::trim_locked(std::size_t keep_bytes) noexcept {
    std::size_t bytes = 0;
    for (auto list = free_.rbegin(); list != free_.rend() && stats_.cached_bytes > keep_bytes; ++list) {
        std::erase_if(list->second, [&, size = list->first](const FreeBlock& block) {
            if (stats_.cached_bytes <= keep_bytes || !block.idle()) return false;
            device_.driver().free_host(block.data);
            stats_.cached_bytes -= size;
            stats_.reserved_bytes -= size;
            bytes += size;
            return true;
        });
    }
    return bytes;
}

std::size_t PinnedPool::trim() {
    std::lock_guard lock(mutex_);
    return trim_locked(0);
}

void PinnedPool::set_limit(std::size_t bytes) {
    std::lock_guard lock(mutex_);
    limit_ = bytes;
}

std::size_t PinnedPool::limit() const {
    std::lock_guard lock(mutex_);
    return limit_;
}

}  // namespace gpk
