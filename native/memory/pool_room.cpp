#include "memory/pool_room.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/error.hpp"
#include "runtime/tenant.hpp"

namespace gpk {

// Where blocks may move, all that the driver can map lie in chunks, a whole number of them; elsewhere those
// whose class is such a number by itself.
std::size_t MemoryPool::size_for(std::size_t bytes, const Tenant* tenant) const {
    const std::size_t wanted = class_bytes(bytes), granularity = chunks_.granularity();
    if (granularity == 0 || wanted < granularity || !evicts(tenant)) return wanted;
    return size_class::round_up(wanted, granularity);
}

// The slow way: everything but a block of the right class that the stream's own order protects. Null where
// there is no room.
BlockRecord* MemoryPool::find(std::size_t wanted, const std::shared_ptr<Stream>& stream) {
    std::lock_guard driver_lock(driver_mutex_);
    for (const Reuse reuse : {Reuse::same_stream, Reuse::idle}) {
        if (BlockRecord* record = take_cached(wanted, stream, reuse)) return record;
    }
    if (BlockRecord* record = take_fresh(wanted, stream)) return record;
    if (BlockRecord* record = take_cached(wanted, stream, Reuse::waiting)) return record;
    return with_room(wanted, stream->tenant().get(), [&] { return take_fresh(wanted, stream); });
}

// The caller holds driver_mutex_. Null where the limit or the device has no room.
BlockRecord* MemoryPool::take_fresh(std::size_t wanted, const std::shared_ptr<Stream>& stream) {
    auto record = std::make_unique<BlockRecord>();
    const std::uint64_t tenant = stream->tenant() ? stream->tenant()->id() : 0;
    record->class_bytes = wanted;
    record->stream = stream;
    const std::size_t granularity = chunks_.granularity();
    const bool in_chunks = granularity != 0 && wanted % granularity == 0 &&
                           (wanted >= 8 * granularity || evicts(stream->tenant().get()));
    if (!(in_chunks ? allocate_chunks(*record, tenant) : allocate_at(*record, tenant))) return nullptr;
    std::lock_guard lock(lock_);
    record->bin = &bin_for(wanted);
    ++stats_.driver_allocations;
    record->after_in_all = all_;
    if (all_ != nullptr) all_->before_in_all = record.get();
    return all_ = record.release();
}

bool MemoryPool::allocate_at(BlockRecord& record, std::uint64_t tenant) {
    record.data_of = fresh_data_of(tenant);
    while (true) {
        if (budget_.take(record.class_bytes)) {
            try {
                record.pointer = device_.driver().allocate(record.class_bytes);
                return true;
            } catch (const DriverError& failure) {
                budget_.give(record.class_bytes);
                if (failure.kind() != ErrorKind::memory) throw;
            }
        }
        if (chunks_.give_back(record.class_bytes) == 0) return false;
    }
}

bool MemoryPool::allocate_chunks(BlockRecord& record, std::uint64_t tenant) {
    std::vector<Chunk> chunks = chunks_.gather(record.class_bytes, fresh_data_of(tenant));
    if (chunks.empty()) return false;
    try {
        record.pointer = device_.driver().reserve_address(record.class_bytes);
        chunks_.map(record.pointer, chunks);
    } catch (const Error&) {
        if (record.pointer != 0) device_.driver().release_address(record.pointer, record.class_bytes);
        chunks_.put(std::move(chunks));
        throw;
    }
    const bool clean = std::all_of(chunks.begin(), chunks.end(),
                                   [&](const Chunk& chunk) { return chunk.data_of == tenant; });
    record.data_of = clean ? tenant : kOfSeveral;
    record.chunks = std::move(chunks);
    record.in_chunks = true;
    return true;
}

std::vector<Chunk> MemoryPool::gather(std::size_t bytes, const Tenant* tenant) {
    struct Gathered {
        std::vector<Chunk> chunks;
        explicit operator bool() const { return !chunks.empty(); }
    };
    const std::uint64_t fresh = fresh_data_of(tenant != nullptr ? tenant->id() : 0);
    return with_room(bytes, tenant, [&] { return Gathered{chunks_.gather(bytes, fresh)}; }).chunks;
}

// Whose data the driver's memory may hold, for one who asks for it.
std::uint64_t MemoryPool::fresh_data_of(std::uint64_t tenant) const noexcept {
    const auto clean = [&](const std::optional<std::uint64_t>& of) { return !of || *of == tenant; };
    return clean(returned_) && clean(chunks_.returned()) ? tenant : kOfSeveral;
}

const Tenant* MemoryPool::charge_making_room(Tenant& tenant, std::size_t class_bytes) {
    const Tenant* full = nullptr;
    while ((full = tenant.charge(class_bytes)) != nullptr) {
        if (!evictor_.make_room(class_bytes, full, &tenant)) break;
    }
    return full;
}

// The caller holds lock_.
void MemoryPool::forget(BlockRecord* record) noexcept {
    (record->before_in_all != nullptr ? record->before_in_all->after_in_all : all_) = record->after_in_all;
    if (record->after_in_all != nullptr) record->after_in_all->before_in_all = record->before_in_all;
}

// Whether nothing uses a free block any more. `wait`: until then, or until that cannot be known.
bool MemoryPool::settle(BlockRecord& record, bool wait) noexcept {
    try {
        if (!record.may_ask()) return false;
        if (wait) record.synchronize();
        return record.idle();
    } catch (const Error&) {
        return false;  // whoever next waits for the device learns of it
    }
}

// Takes free blocks apart: their chunks can be put together anew, other memory goes back to the driver. The
// caller holds driver_mutex_. Returns their bytes.
std::size_t MemoryPool::harvest(Harvest which) noexcept {
    const bool everything = which == Harvest::everything;
    BlockRecord* records = nullptr;
    {
        std::lock_guard lock(lock_);
        for (BlockRecord* each = all_; each != nullptr; each = each->after_in_all) {
            if (each->state != BlockState::free) continue;
            taken(each);
            each->next = std::exchange(records, each);
        }
        for (Bin& bin : bins_) bin.clear();
        for (auto& [size, bin] : large_bins_) bin.clear();
    }
    std::size_t bytes = 0;
    for (BlockRecord* next; records != nullptr; records = next) {
        next = records->next;
        // The driver's free waits by itself for work that may still use the block.
        const bool can_go = records->in_chunks ? settle(*records, everything) : everything;
        std::unique_lock lock(lock_);
        if (!can_go) {
            put_free(records);
            continue;
        }
        forget(records);
        lock.unlock();
        bytes += records->class_bytes;
        dispose(std::unique_ptr<BlockRecord>(records));
    }
    return bytes;
}

void MemoryPool::dispose(std::unique_ptr<BlockRecord> record) noexcept {
    Driver& driver = device_.driver();
    if (record->in_chunks) {
        driver.unmap(record->pointer, record->class_bytes);
        driver.release_address(record->pointer, record->class_bytes);
        for (Chunk& chunk : record->chunks) chunk.data_of = record->data_of;
        chunks_.put(std::move(record->chunks));
    } else {
        driver.free(record->pointer);
        budget_.give(record->class_bytes);
        returned_ = !returned_ || *returned_ == record->data_of ? record->data_of : kOfSeveral;
    }
}

std::size_t MemoryPool::trim() {
    std::size_t bytes = 0;
    {
        std::lock_guard driver_lock(driver_mutex_);
        const std::size_t before = budget_.used();
        harvest(Harvest::everything);
        chunks_.give_back();
        bytes = before - budget_.used();
    }
    evictor_.away().give_back();
    return bytes;
}

bool MemoryPool::evicts(const Tenant* tenant) const {
    if (evicts_all_.load(std::memory_order_relaxed)) return true;
    if (tenant == nullptr || !evicts_some_.load(std::memory_order_relaxed)) return false;
    std::lock_guard lock(lock_);
    for (; tenant != nullptr; tenant = tenant->parent()) {
        if (std::find(evicting_tenants_.begin(), evicting_tenants_.end(), tenant->id()) !=
            evicting_tenants_.end()) {
            return true;
        }
    }
    return false;
}

void MemoryPool::set_eviction(bool enabled) { evicts_all_.store(enabled, std::memory_order_relaxed); }

void MemoryPool::set_eviction(const Tenant& tenant, bool enabled) {
    std::lock_guard lock(lock_);
    std::erase(evicting_tenants_, tenant.id());
    if (enabled) evicting_tenants_.push_back(tenant.id());
    evicts_some_.store(!evicting_tenants_.empty(), std::memory_order_relaxed);
}

bool MemoryPool::room_may_come(const NoRoomError& failure, const std::vector<const Evictable*>& mine) {
    std::lock_guard driver_lock(driver_mutex_);
    const std::uint64_t seen = evictor_.activity();
    const std::size_t movable = evictor_.bytes_that_could_leave(failure.full, failure.asking, mine);
    std::size_t free = 0;
    if (failure.full != nullptr) {
        const std::size_t used = failure.full->memory_used(), limit = failure.full->memory_limit();
        free = limit - std::min(used, limit);
    } else {
        const std::size_t used = budget_.used(), limit = budget_.limit();
        free = device_.driver().memory_info().free_bytes;
        if (limit != 0) free = std::min(free, limit - std::min(used, limit));
        free += chunks_.free_bytes();
        std::lock_guard lock(lock_);
        free += stats_.cached_bytes;
    }
    // Those who give and take room now are not in any sum.
    return failure.bytes <= free || failure.bytes - free <= movable || !evictor_.quiet_since(seen);
}

void MemoryPool::make_movable(const Block& block, Evictable& owner) {
    if (block.record == nullptr || block.arena || !block.record->in_chunks) return;
    if (evicts(block.record->stream->tenant().get())) evictor_.enter(*block.record, owner);
}

bool MemoryPool::evict(const Block& block) {
    if (block.record == nullptr || !block.record->movable) return false;
    std::lock_guard driver_lock(driver_mutex_);
    return evictor_.evict(block.record->movable);
}

}  // namespace gpk
