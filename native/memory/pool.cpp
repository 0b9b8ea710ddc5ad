#include "memory/pool.hpp"

#include <algorithm>
#include <utility>

#include "base/error.hpp"
#include "base/log.hpp"
#include "memory/arena.hpp"
#include "memory/pool_room.hpp"
#include "runtime/tenant.hpp"

namespace gpk {

namespace {

std::uint64_t id_of(const Tenant* tenant) noexcept { return tenant != nullptr ? tenant->id() : 0; }

Block block_of(BlockRecord* record, std::size_t bytes) {
    return {.pointer = record->pointer, .bytes = bytes, .class_bytes = record->class_bytes, .record = record};
}

}  // namespace

bool BlockRecord::may_ask() const {
    const auto free_to_ask = [](const auto& each) { return each->capture() == nullptr; };
    return free_to_ask(stream) &&
           (!others || std::all_of(others->streams.begin(), others->streams.end(), free_to_ask));
}

bool BlockRecord::idle() const {
    const auto done = [](const auto& each) { return each->query(); };
    return (freed ? freed->query() : stream->query()) &&
           (!others || (std::all_of(others->events.begin(), others->events.end(), done) &&
                        std::all_of(others->streams.begin(), others->streams.end(), done)));
}

void BlockRecord::synchronize() const {
    freed ? freed->synchronize() : stream->synchronize();
    if (!others) return;
    for (const auto& event : others->events) event->synchronize();
    for (const auto& other : others->streams) other->synchronize();
}

void BlockRecord::order_before(Stream& next_user) const {
    freed ? next_user.wait(*freed) : next_user.wait(*stream);
    if (!others) return;
    for (const auto& event : others->events) next_user.wait(*event);
    for (const auto& other : others->streams) next_user.wait(*other);
}

MemoryPool& MemoryPool::of(Device& device) { return device.attached<MemoryPool>(); }

MemoryPool::MemoryPool(Device& device) : device_(device), chunks_(device, budget_), evictor_(*this) {}

MemoryPool::~MemoryPool() {
    trim();
    while (all_ != nullptr) {  // records of blocks that nobody released
        const std::unique_ptr<BlockRecord> record(all_);
        forget(record.get());
    }
}

Bin& MemoryPool::bin_for(std::size_t class_bytes) {
    if (class_bytes <= size_class::kLarge) return bins_[size_class::index(class_bytes)];
    return large_bins_[class_bytes];
}

// The caller holds lock_.
void MemoryPool::note_live(BlockRecord* record, std::size_t bytes) noexcept {
    record->bytes = bytes;
    record->state = BlockState::live;
    ++record->bin->live_blocks;
    stats_.live_bytes += bytes;
    stats_.peak_live_bytes = std::max(stats_.peak_live_bytes, stats_.live_bytes);
    ++stats_.allocations;
    ++stats_.live_blocks;
}

// The caller holds lock_.
void MemoryPool::put_free(BlockRecord* record) noexcept {
    record->state = BlockState::free;
    record->bin->put(record);
    stats_.cached_bytes += record->class_bytes;
}

BlockRecord* MemoryPool::taken(BlockRecord* record) noexcept {
    if (record != nullptr) {
        record->state = BlockState::taken;
        stats_.cached_bytes -= record->class_bytes;
    }
    return record;
}

Block MemoryPool::allocate(std::size_t bytes, const std::shared_ptr<Stream>& stream) {
    if (bytes == 0) return {};
    if (bytes > size_class::kMostBytes) refuse(bytes, *stream, nullptr);
    if (stream->capture() != nullptr) return allocate_for_capture(bytes, stream);
    Tenant* const tenant = stream->tenant().get();
    const std::size_t wanted = size_for(bytes, tenant);
    if (tenant != nullptr) charge(*tenant, wanted, bytes, *stream);
    BlockRecord* record = nullptr;
    if (wanted <= size_class::kLarge) {
        std::lock_guard lock(lock_);
        record = taken(bins_[size_class::index(wanted)].take(stream.get()));
        if (record != nullptr && record->data_of == id_of(tenant)) [[likely]] {
            note_live(record, bytes);
            return block_of(record, bytes);
        }
    }
    const auto get = [&] { return record != nullptr ? record : find(wanted, stream); };
    record = hand_over(wanted, bytes, *stream, get, [&](BlockRecord& block) { scrub(block, *stream); });
    return block_of(record, bytes);
}

// What get() gives becomes live, after clean() where it holds another's data. Charged for already.
template <class Get, class Clean>
BlockRecord* MemoryPool::hand_over(std::size_t wanted, std::size_t bytes, const Stream& stream, Get&& get,
                                   Clean&& clean) {
    Tenant* const tenant = stream.tenant().get();
    BlockRecord* record = nullptr;
    try {
        record = get();
        if (record == nullptr) refuse(bytes, stream, nullptr);
        if (record->data_of != id_of(tenant)) clean(*record);
    } catch (...) {
        if (tenant != nullptr) tenant->uncharge(wanted);
        std::lock_guard lock(lock_);
        if (record != nullptr) put_free(record);
        throw;
    }
    std::lock_guard lock(lock_);
    note_live(record, bytes);
    return record;
}

Block MemoryPool::allocate_for_capture(std::size_t bytes, const std::shared_ptr<Stream>& stream) {
    Graph& graph = *stream->capture();
    if (!graph.arena) graph.arena = std::make_shared<GraphArena>(*this);
    auto& arena = static_cast<GraphArena&>(*graph.arena);
    const std::size_t wanted = size_for(bytes, stream->tenant().get());
    BlockRecord* record = arena.take(wanted);
    if (record == nullptr) {
        record = fresh_for_capture(wanted, bytes, stream);
        arena.add(block_of(record, bytes));
    }
    Block block = block_of(record, bytes);
    block.arena = graph.arena;
    return block;
}

// Only memory that no stream uses: an event from outside cannot be waited for in a capture.
BlockRecord* MemoryPool::fresh_for_capture(std::size_t wanted, std::size_t bytes,
                                           const std::shared_ptr<Stream>& stream) {
    Tenant* const tenant = stream->tenant().get();
    if (tenant != nullptr) charge(*tenant, wanted, bytes, *stream);
    const auto get = [&] {
        std::lock_guard driver_lock(driver_mutex_);
        return with_room(wanted, tenant, [&] { return take_fresh(wanted, stream); });
    };
    return hand_over(wanted, bytes, *stream, get, [&](BlockRecord& block) {
        // A fill on the captured stream would run with every launch.
        const auto own = Stream::create_for(nullptr, device_);
        scrub(block, *own);
        own->synchronize();
        block.data_of = id_of(tenant);
    });
}

void MemoryPool::charge(Tenant& tenant, std::size_t class_bytes, std::size_t bytes, const Stream& stream) {
    const Tenant* full = tenant.charge(class_bytes);
    if (full != nullptr && evicts(&tenant)) {
        std::lock_guard driver_lock(driver_mutex_);
        full = charge_making_room(tenant, class_bytes);
    }
    if (full != nullptr) refuse(bytes, stream, full);
}

// Large requests accept up to a quarter more, unless a tenant would be charged for it.
BlockRecord* MemoryPool::take_cached(std::size_t wanted, const std::shared_ptr<Stream>& stream, Reuse reuse) {
    if (wanted < size_class::kLarge) return take_from(bin_for(wanted), stream, reuse);
    const std::size_t most = stream->tenant() ? wanted : wanted + wanted / 4;
    if (wanted == size_class::kLarge) {
        if (BlockRecord* record = take_from(bin_for(wanted), stream, reuse)) return record;
    }
    std::unique_lock lock(lock_);
    for (auto bin = large_bins_.lower_bound(wanted); bin != large_bins_.end() && bin->first <= most; ++bin) {
        lock.unlock();  // bins of a map stay where they are, and only the driver_mutex_'s holder adds some
        if (BlockRecord* record = take_from(bin->second, stream, reuse)) return record;
        lock.lock();
    }
    return nullptr;
}

// Blocks are taken out while their streams are asked, so that lock_ is held over no call to the driver.
BlockRecord* MemoryPool::take_from(Bin& bin, const std::shared_ptr<Stream>& stream, Reuse reuse) {
    const auto may_have = [&](BlockRecord* record) {
        try {
            if (!record->may_ask()) return false;
            if (reuse == Reuse::idle) return record->idle();
            record->order_before(*stream);
            return true;
        } catch (...) {
            std::lock_guard lock(lock_);
            put_free(record);
            throw;
        }
    };
    std::unique_lock lock(lock_);
    if (reuse == Reuse::same_stream) return taken(bin.take(stream.get()));
    std::vector<const Stream*> others;
    for (const Bin::List& list : bin.lists) {
        if (list.top != nullptr) others.push_back(list.stream);
    }
    BlockRecord* found = nullptr;
    const auto consider = [&](BlockRecord* record) {
        lock.unlock();
        const bool had = may_have(record);
        lock.lock();
        had ? void(found = record) : put_free(record);
    };
    for (std::size_t i = 0; i < others.size() && found == nullptr; ++i) {
        if (BlockRecord* record = taken(bin.take(others[i]))) consider(record);
    }
    std::vector<BlockRecord*> shared;
    for (BlockRecord* each = bin.shared; each != nullptr; each = each->next) shared.push_back(each);
    for (std::size_t i = 0; i < shared.size() && found == nullptr; ++i) {
        if (bin.remove_shared(shared[i])) consider(taken(shared[i]));
    }
    lock.unlock();
    if (found != nullptr) {
        found->stream = stream;
        found->others.reset();
    }
    return found;
}

void MemoryPool::scrub(BlockRecord& record, Stream& stream) {
    device_.launcher().fill(stream, record.pointer, 0, record.class_bytes);
    record.data_of = id_of(stream.tenant().get());
}

// An event behind what the stream holds now, or null where there cannot be one.
// Null where nothing can be recorded: a later owner waits for the whole stream then.
std::shared_ptr<Event> MemoryPool::mark(Stream& stream, std::shared_ptr<Event> event) noexcept {
    if (stream.capture() != nullptr) return nullptr;  // it would become part of the capture
    try {
        if (!event) event = std::make_shared<Event>(device_);
        event->record(stream);
        return event;
    } catch (const Error& failure) {
        log(LogLevel::debug, str("memory pool: no event behind a block's use: ", failure.what()));
        return nullptr;
    }
}

void MemoryPool::release(Block block, const std::vector<std::shared_ptr<Stream>>& others) noexcept {
    BlockRecord* const record = block.record;
    if (record == nullptr) return;
    if (block.arena) return static_cast<GraphArena&>(*block.arena).put_back(block, others);
    const bool movable = record->movable != nullptr;
    const Evictor::Passage passage(evictor_, movable);
    const bool here = !movable || evictor_.leave(*record);
    // Its chunks will be wanted before the stream is idle, where memory is so short that blocks move.
    if (movable && here) record->freed = mark(*record->stream, std::move(record->freed));
    for (const auto& other : others) {
        if (other == record->stream || !here) continue;
        if (!record->others) record->others = std::make_unique<BlockRecord::Others>();
        if (auto event = mark(*other)) {
            record->others->events.push_back(std::move(event));
        } else {
            record->others->streams.push_back(other);
        }
    }
    if (Tenant* tenant = record->stream->tenant().get(); tenant != nullptr && here) {
        tenant->uncharge(record->class_bytes);
    }
    std::unique_lock lock(lock_);
    stats_.live_bytes -= record->bytes;
    --stats_.live_blocks;
    --record->bin->live_blocks;
    if (here) {
        put_free(record);
        return;
    }
    forget(record);
    lock.unlock();
    const std::unique_ptr<BlockRecord> gone(record);
    device_.driver().release_address(record->pointer, record->class_bytes);
}

PoolStats MemoryPool::stats() const {
    PoolStats stats;
    {
        std::lock_guard lock(lock_);
        stats = stats_;
    }
    const EvictionStats evicted = evictor_.stats();
    stats.reserved_bytes = budget_.used();
    stats.cached_bytes += chunks_.free_bytes();
    stats.evicted_bytes = evicted.evicted_bytes;
    stats.host_bytes = evicted.host_bytes;
    stats.spilled_bytes = evicted.spilled_bytes;
    stats.disk_bytes = evicted.disk_bytes;
    stats.evictions = evicted.evictions;
    stats.reloads = evicted.reloads;
    return stats;
}

void MemoryPool::reset_peak() {
    std::lock_guard lock(lock_);
    stats_.peak_live_bytes = stats_.live_bytes;
}

void MemoryPool::set_limit(std::size_t bytes) { budget_.set_limit(bytes); }

std::size_t MemoryPool::limit() const { return budget_.limit(); }

}  // namespace gpk
