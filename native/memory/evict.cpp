#include "memory/evict.hpp"

#include <algorithm>
#include <thread>
#include <utility>

#include "base/error.hpp"
#include "memory/pool.hpp"
#include "memory/room_turn.hpp"
#include "memory/without.hpp"
#include "runtime/meter.hpp"
#include "runtime/observe.hpp"

namespace gpk {

namespace {

// Whether a block of `of` may leave for what `asking` does: what was guaranteed to a tenant stays, unless
// the tenant itself, or one below it, asks.
bool may_give_way(const Tenant* of, const Tenant* asking) noexcept {
    for (; of != nullptr; of = of->parent()) {
        if (of->qos() == QosClass::guaranteed && !belongs_to(asking, of)) return false;
    }
    return true;
}

// Who gives way first.
int rank(const Tenant* of) noexcept {
    return static_cast<int>(of != nullptr ? of->qos() : QosClass::burstable);
}

const Tenant* tenant_of(const Movable& block) noexcept { return block.record->stream->tenant().get(); }

bool may_leave(const Tenant* of, const Tenant* within, const Tenant* asking) noexcept {
    return (within == nullptr || belongs_to(of, within)) && may_give_way(of, asking);
}
bool may_leave(const Movable& block, const Tenant* within, const Tenant* asking) noexcept {
    return block.residence == Residence::here && !block.owner->held() &&
           may_leave(tenant_of(block), within, asking);
}

void wait_quietly(Stream& stream) noexcept {
    try {
        stream.synchronize();
    } catch (const Error&) {
        // The device is broken: nothing runs there any more.
    }
}

}  // namespace

bool belongs_to(const Tenant* tenant, const Tenant* above) noexcept {
    while (tenant != nullptr && tenant != above) tenant = tenant->parent();
    return tenant == above;
}

bool Evictor::Leaving::is_for(const Tenant* within, const Tenant* asking) const noexcept {
    return may_leave(tenant.get(), within, asking);
}

Evictor::Evictor(MemoryPool& pool) : pool_(pool), away_(pool.device()) {}

Evictor::~Evictor() {
    if (out_) wait_quietly(*out_);
    if (in_) wait_quietly(*in_);
}

const std::shared_ptr<Stream>& Evictor::own_stream(std::shared_ptr<Stream>& stream) {
    if (!stream) stream = Stream::create_for(nullptr, pool_.device());
    return stream;
}

void Evictor::enter(BlockRecord& record, Evictable& owner) {
    auto block = std::make_shared<Movable>();
    block->record = &record;
    block->owner = &owner;
    block->last_use = tick();
    {
        std::lock_guard lock(registry_lock_);
        registry_.push_back(block);
    }
    std::lock_guard lock(pool_.lock_);
    record.movable = std::move(block);
}

bool Evictor::leave(BlockRecord& record) noexcept {
    std::shared_ptr<Movable> block;
    {
        std::lock_guard lock(pool_.lock_);
        block = std::exchange(record.movable, nullptr);
    }
    Evictable* owner = nullptr;
    {
        std::lock_guard lock(registry_lock_);
        owner = std::exchange(block->owner, nullptr);
        const auto at = std::find(registry_.begin(), registry_.end(), block);
        std::swap(*at, registry_.back());
        registry_.pop_back();
    }
    std::lock_guard lock(owner->mutex_);  // whoever chose it before is done with it
    const bool away = block->residence == Residence::away;
    away_.release(std::exchange(block->data, nullptr), std::exchange(block->copied, nullptr));
    if (away) no_longer_away(record);
    return !away;
}

void Evictor::no_longer_away(const BlockRecord& record) noexcept {
    evicted_bytes_.fetch_sub(record.class_bytes, std::memory_order_relaxed);
    record.stream->meter().change(Level::evicted_bytes, -static_cast<std::int64_t>(record.class_bytes));
}

// The least recently used one of the least protected that may leave.
Evictor::Chosen Evictor::choose(const Tenant* within, const Tenant* asking,
                                std::vector<const Movable*>& passed_over) {
    while (true) {
        std::lock_guard lock(registry_lock_);
        const std::shared_ptr<Movable>* best = nullptr;
        const auto before = [](const Movable& a, const Movable& b) {
            const int rank_a = rank(tenant_of(a)), rank_b = rank(tenant_of(b));
            return rank_a != rank_b ? rank_a > rank_b : a.last_use < b.last_use;
        };
        for (const auto& each : registry_) {
            if (!may_leave(*each, within, asking)) continue;
            if (best != nullptr && !before(*each, **best)) continue;
            const auto passed = std::find(passed_over.begin(), passed_over.end(), each.get());
            if (passed == passed_over.end()) best = &each;
        }
        if (best == nullptr) return {};
        std::unique_lock owner((*best)->owner->mutex_, std::try_to_lock);
        if (owner && !(*best)->owner->held() && (*best)->residence == Residence::here) {
            return {*best, (*best)->owner, std::move(owner)};
        }
        passed_over.push_back(best->get());
    }
}

// Nothing where the block is in use again or gone. Whoever has locked the owner of a block that is leaving
// needs no more than a moment, and no lock of the pool.
Evictor::Chosen Evictor::lock_leaving(const Leaving& leaving) {
    while (true) {
        {
            std::lock_guard lock(registry_lock_);
            if (leaving.block->owner == nullptr || !leaving.still()) return {};
            std::unique_lock owner(leaving.block->owner->mutex_, std::try_to_lock);
            if (owner) return {leaving.block, leaving.block->owner, std::move(owner)};
        }
        std::this_thread::yield();
    }
}

// Queues the copy to the host. False where a captured stream uses the block.
bool Evictor::begin(const std::shared_ptr<Movable>& block, Evictable& owner) {
    const BlockRecord& record = *block->record;
    observe::Span span(observe::Topic::memory, "evict", {pool_.device(), tenant_of(*block)});
    span.bytes(static_cast<double>(record.bytes));
    const std::shared_ptr<Stream> stream = own_stream(out_);
    auto copied = std::make_shared<Event>(pool_.device());
    auto data = away_.allocate(record.bytes, record.stream->meter());
    try {
        if (!owner.order_leaving(stream)) {
            away_.release(data, nullptr);
            return false;
        }
        DevicePtr from = record.pointer;
        for (const HostPiece& piece : data->memory) {
            pool_.device().launcher().copy_to_host(*stream, piece.data, from, piece.bytes);
            from += piece.bytes;
        }
        copied->record(*stream);
        leaving_.push_back(
            {block, block->departures + 1, copied, record.stream->tenant(), record.class_bytes});
    } catch (...) {
        wait_quietly(*stream);
        away_.release(data, nullptr);
        throw;
    }
    block->data = std::move(data);
    block->copied = std::move(copied);
    ++block->departures;
    block->residence = Residence::leaving;
    return true;
}

// Takes the chunks of a block whose copy is done. The bytes that came free: 0 where it is in use again.
std::size_t Evictor::finish(const Leaving& leaving) {
    const Chosen chosen = lock_leaving(leaving);
    Movable& block = *leaving.block;
    if (!chosen.block || !leaving.still()) return 0;
    BlockRecord& record = *block.record;
    pool_.device().driver().unmap(record.pointer, record.class_bytes);
    for (Chunk& chunk : record.chunks) chunk.data_of = record.data_of;
    pool_.chunks_.put(std::exchange(record.chunks, {}));
    block.residence = Residence::away;
    block.copied = nullptr;
    away_.settle(block.data);
    if (Tenant* tenant = record.stream->tenant().get()) tenant->uncharge(record.class_bytes);
    evicted_bytes_.fetch_add(record.class_bytes, std::memory_order_relaxed);
    evictions_.fetch_add(1, std::memory_order_relaxed);
    Meter& meter = record.stream->meter();
    meter.add(Count::evictions);
    meter.add(Count::evicted_bytes, record.class_bytes);
    meter.change(Level::evicted_bytes, static_cast<std::int64_t>(record.class_bytes));
    return record.class_bytes;
}

// Lets blocks begin to leave until `target` bytes are on their way. Not 0 where the host has no room: what
// the next one needs.
std::size_t Evictor::send_off(std::size_t target, const Tenant* within, const Tenant* asking) {
    std::size_t pending = 0;
    for (const Leaving& each : leaving_)
        pending += each.still() && each.is_for(within, asking) ? each.bytes : 0;
    std::vector<const Movable*> passed_over;
    while (pending < target) {
        const Chosen chosen = choose(within, asking, passed_over);
        if (!chosen.block) break;
        try {
            if (begin(chosen.block, *chosen.owner)) {
                pending += chosen.block->record->class_bytes;
            } else {
                passed_over.push_back(chosen.block.get());
            }
        } catch (const HostFullError&) {
            const std::size_t bytes = chosen.block->record->bytes;
            if (away_.host().could_hold(bytes)) return bytes;
            passed_over.push_back(chosen.block.get());
        } catch (const Error& failure) {
            if (failure.kind() != ErrorKind::memory) throw;
            break;  // the driver has no room for a copy
        }
    }
    return 0;
}

// Takes what has left, but no more than `bytes` need: the rest can be used again for nothing.
std::size_t Evictor::take_up(std::size_t bytes, const Tenant* within, const Tenant* asking) {
    std::size_t freed = 0;
    for (auto each = leaving_.begin(); each != leaving_.end() && freed < bytes;) {
        const bool counts = each->is_for(within, asking);
        if (each->still() && (!counts || !each->copied->query())) {
            ++each;
            continue;
        }
        const std::size_t came_free = finish(*each);
        if (counts) freed += came_free;
        each = leaving_.erase(each);
    }
    return freed;
}

bool Evictor::make_room(std::size_t bytes, const Tenant* within, const Tenant* asking) {
    // Sent off ahead, for those who ask next: one is then copied out while what comes back is copied in, and
    // one waits behind it. (It waits for its users' streams, hence for what came back before it began.)
    constexpr std::size_t kAhead = 2;
    const std::size_t ahead = bytes >= pool_.chunks_.granularity() ? kAhead * bytes : 0;
    std::size_t freed = 0;
    while (freed < bytes) {
        const std::size_t host_lacks = send_off(bytes - freed + ahead, within, asking);
        freed += take_up(bytes - freed, within, asking);
        const auto first = std::find_if(leaving_.begin(), leaving_.end(),
                                        [&](const Leaving& each) { return each.is_for(within, asking); });
        if (freed >= bytes) break;
        const HostWait waiting(meter_of(pool_.device(), asking));
        if (first != leaving_.end()) {
            first->copied->synchronize();
        } else if (host_lacks == 0 || !make_host_room(host_lacks)) {
            break;
        }
    }
    return freed > 0;
}

bool Evictor::evict(const std::shared_ptr<Movable>& block) {
    Evictable& owner = *block->owner;
    std::unique_lock lock(owner.mutex_, std::defer_lock);
    for (bool begun = false; !begun;) {
        if (!lock.try_lock() || owner.held()) return false;
        if (block->residence == Residence::away) return true;
        try {
            if (block->residence == Residence::here && !begin(block, owner)) return false;
            begun = true;
        } catch (const HostFullError&) {
            lock.unlock();
            if (!away_.host().could_hold(block->record->bytes) || !make_host_room(block->record->bytes))
                throw;
        }
    }
    const auto copied = block->copied;
    lock.unlock();
    copied->synchronize();
    const auto entry = std::find_if(leaving_.begin(), leaving_.end(),
                                    [&](const Leaving& each) { return each.copied == copied; });
    const bool left = finish(*entry) > 0;
    leaving_.erase(entry);
    return left;
}

// The owner's mutex is held.
void Evictor::bring_back(Movable& block) {
    if (block.residence == Residence::leaving) {
        away_.release(std::exchange(block.data, nullptr), std::exchange(block.copied, nullptr));
        block.residence = Residence::here;
        return;
    }
    Tenant* const tenant = block.record->stream->tenant().get();
    if (RoomTurn::is_anothers())
        throw NoRoomError(Error(ErrorKind::memory, "others wait for room"), 0, nullptr, tenant);
    std::lock_guard lock(pool_.driver_mutex_);
    if (tenant != nullptr) {
        const Tenant* const full = pool_.charge_making_room(*tenant, block.record->class_bytes);
        if (full != nullptr) pool_.refuse(block.record->bytes, *block.record->stream, full);
    }
    try {
        reload(block, tenant);
    } catch (...) {
        if (tenant != nullptr) tenant->uncharge(block.record->class_bytes);
        throw;
    }
}

void Evictor::reload(Movable& block, Tenant* tenant) {
    BlockRecord& record = *block.record;
    observe::Span span(observe::Topic::memory, "reload", {pool_.device(), tenant});
    span.bytes(static_cast<double>(record.bytes));
    std::vector<Chunk> chunks = pool_.gather(record.class_bytes, tenant);
    if (chunks.empty()) pool_.refuse(record.bytes, *record.stream, nullptr);
    const bool others_data = std::any_of(chunks.begin(), chunks.end(),
                                         [&](const Chunk& chunk) { return chunk.data_of != record.data_of; });
    bool mapped = false;
    std::unique_lock disk_lock(disk_mutex_, std::defer_lock);
    try {
        if (!away_.hold(block.data)) {
            const Without driver_mutex(pool_.driver_mutex_);
            disk_lock.lock();
            return_to_memory(*block.data);
        }
        const std::shared_ptr<Stream>& stream = own_stream(in_);
        auto copied = std::make_shared<Event>(pool_.device());
        pool_.chunks_.map(record.pointer, chunks);
        mapped = true;
        Launcher& launcher = pool_.device().launcher();
        DevicePtr to = record.pointer;
        for (const HostPiece& piece : block.data->memory) {
            launcher.copy_to_device(*stream, to, piece.data, piece.bytes);
            to += piece.bytes;
        }
        // Behind the data, others may have left theirs.
        if (others_data) launcher.fill(*stream, to, 0, record.class_bytes - record.bytes);
        copied->record(*stream);
        block.owner->order_returned(stream);
        away_.release(std::exchange(block.data, nullptr), copied);
    } catch (...) {
        if (mapped) {
            wait_quietly(*in_);
            pool_.device().driver().unmap(record.pointer, record.class_bytes);
        }
        away_.settle(block.data);
        pool_.chunks_.put(std::move(chunks));
        throw;
    }
    record.chunks = std::move(chunks);
    block.residence = Residence::here;
    no_longer_away(record);
    reloads_.fetch_add(1, std::memory_order_relaxed);
    record.stream->meter().add(Count::reloads);
    record.stream->meter().add(Count::reloaded_bytes, record.class_bytes);
}

bool Evictor::others_at_work(const Tenant* within, const Tenant* asking,
                             const std::vector<const Evictable*>& mine) const {
    if (passing_.load(std::memory_order_acquire) > 0) return true;
    std::lock_guard lock(registry_lock_);
    return std::any_of(registry_.begin(), registry_.end(), [&](const std::shared_ptr<Movable>& each) {
        if (!may_leave(tenant_of(*each), within, asking)) return false;
        const Evictable& owner = *each->owner;
        const bool own = std::find(mine.begin(), mine.end(), &owner) != mine.end();
        if (owner.holds_.load(std::memory_order_acquire) > (own ? 1 : 0)) return true;
        std::unique_lock owner_lock(each->owner->mutex_, std::try_to_lock);
        return !owner_lock || owner.may_leave_soon();
    });
}

std::size_t Evictor::bytes_that_could_leave(const Tenant* within, const Tenant* asking,
                                            const std::vector<const Evictable*>& mine) const {
    std::lock_guard lock(registry_lock_);
    std::size_t bytes = 0;
    for (const auto& each : registry_) {
        const Evictable& owner = *each->owner;
        // What is away and held may be on its way back: its room is already taken.
        const bool has_room = each->residence != Residence::away || owner.held();
        const bool own = std::find(mine.begin(), mine.end(), &owner) != mine.end();
        if (has_room && !own && owner.pins_ == 0 && may_leave(tenant_of(*each), within, asking)) {
            bytes += each->record->class_bytes;
        }
    }
    return bytes;
}

bool Evictor::any_movable() const {
    std::lock_guard lock(registry_lock_);
    return !registry_.empty();
}

std::size_t Evictor::bytes_that_may_leave(const Tenant* within, const Tenant* asking) const {
    std::lock_guard lock(registry_lock_);
    std::size_t bytes = 0;
    for (const auto& each : registry_) {
        if (may_leave(*each, within, asking)) bytes += each->record->class_bytes;
    }
    return bytes;
}

EvictionStats Evictor::stats() const noexcept {
    return {.evicted_bytes = evicted_bytes_.load(std::memory_order_relaxed),
            .host_bytes = away_.host().reserved_bytes(),
            .spilled_bytes = away_.spilled_bytes(),
            .disk_bytes = away_.disk_bytes(),
            .evictions = evictions_.load(std::memory_order_relaxed),
            .reloads = reloads_.load(std::memory_order_relaxed)};
}

}  // namespace gpk
