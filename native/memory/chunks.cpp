#include "memory/chunks.hpp"

#include <utility>

#include "base/error.hpp"

namespace gpk {

std::vector<Chunk> ChunkCache::gather(std::size_t bytes, std::uint64_t fresh_data_of) {
    if (!can_reach(bytes)) return {};
    std::vector<Chunk> chunks;
    std::size_t left = bytes;
    try {
        const auto fill_with = [&](std::size_t size, auto&& get) {
            while (left >= size && get(size)) left -= size;
        };
        const auto from_cache = [&](std::size_t size) { return take(size, &chunks); };
        const auto from_driver = [&](std::size_t size) { return create(size, fresh_data_of, &chunks); };
        fill_with(big(), from_cache);
        fill_with(big(), from_driver);
        fill_with(granularity(), from_cache);
        fill_with(granularity(), [&](std::size_t size) {
            // A big chunk cannot be divided, but the driver can make small ones of it.
            while (!from_driver(size)) {
                if (big_.empty()) return false;
                destroy(big_);
            }
            return true;
        });
    } catch (...) {
        put(std::move(chunks));
        throw;
    }
    if (left > 0) put(std::exchange(chunks, {}));
    return chunks;
}

// Whether it is worth to begin: what is created for nothing stays here.
bool ChunkCache::can_reach(std::size_t bytes) const {
    const std::size_t cached = free_bytes();
    if (bytes <= cached) return true;
    const std::size_t fresh = bytes - cached;
    return budget_.has(fresh) && fresh <= device_.driver().memory_info().free_bytes;
}

bool ChunkCache::take(std::size_t bytes, std::vector<Chunk>* to) {
    auto& from = bytes == big() ? big_ : small_;
    if (from.empty()) return false;
    to->push_back(from.back());
    from.pop_back();
    free_bytes_.fetch_sub(bytes, std::memory_order_relaxed);
    return true;
}

bool ChunkCache::create(std::size_t bytes, std::uint64_t data_of, std::vector<Chunk>* to) {
    if (!budget_.take(bytes)) return false;
    try {
        to->push_back({.bytes = bytes, .data_of = data_of});
        to->back().handle = device_.driver().physical_create(bytes);
        return true;
    } catch (const Error& failure) {
        to->pop_back();
        budget_.give(bytes);
        if (failure.kind() != ErrorKind::memory) throw;
        return false;
    }
}

void ChunkCache::put(std::vector<Chunk> chunks) {
    for (const Chunk& chunk : chunks) {
        (chunk.bytes == big() ? big_ : small_).push_back(chunk);
        free_bytes_.fetch_add(chunk.bytes, std::memory_order_relaxed);
    }
}

void ChunkCache::map(DevicePtr address, const std::vector<Chunk>& chunks) {
    std::size_t mapped = 0;
    try {
        for (const Chunk& chunk : chunks) {
            device_.driver().map(address + mapped, chunk.handle, chunk.bytes);
            mapped += chunk.bytes;
        }
        device_.driver().allow_access(address, mapped);
    } catch (...) {
        if (mapped > 0) device_.driver().unmap(address, mapped);
        throw;
    }
}

void ChunkCache::destroy(std::vector<Chunk>& from) noexcept {
    const Chunk chunk = from.back();
    from.pop_back();
    device_.driver().physical_destroy(chunk.handle);
    free_bytes_.fetch_sub(chunk.bytes, std::memory_order_relaxed);
    budget_.give(chunk.bytes);
    returned_ = !returned_ || *returned_ == chunk.data_of ? chunk.data_of : kOfSeveral;
}

std::size_t ChunkCache::give_back(std::size_t bytes) noexcept {
    std::size_t given = 0;
    while (given < bytes && !(small_.empty() && big_.empty())) {
        auto& from = small_.empty() ? big_ : small_;
        given += from.back().bytes;
        destroy(from);
    }
    return given;
}

}  // namespace gpk
