// What the pool says of itself where it cannot serve.
#include <algorithm>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "memory/pool.hpp"
#include "runtime/tenant.hpp"

namespace gpk {

std::vector<BlockInfo> MemoryPool::snapshot(const Tenant* within) const {
    static constexpr std::string_view kStates[] = {"live", "leaving", "evicted"};
    std::vector<BlockInfo> blocks;
    std::lock_guard lock(lock_);
    for (const BlockRecord* each = all_; each != nullptr; each = each->after_in_all) {
        if (each->state == BlockState::taken) continue;
        const bool live = each->state == BlockState::live;
        const Tenant* const tenant = each->stream->tenant().get();
        if (within != nullptr && !(live && belongs_to(tenant, within))) continue;
        BlockInfo& block = blocks.emplace_back();
        block.pointer = each->pointer;
        block.bytes = live ? each->bytes : 0;
        block.class_bytes = each->class_bytes;
        block.movable = each->movable != nullptr;
        const Residence residence = block.movable ? each->movable->residence.load() : Residence::here;
        block.state = live ? kStates[static_cast<int>(residence)] : "cached";
        if (tenant != nullptr) block.tenant = tenant->name();
        block.stream = each->stream->id();
        if (block.movable) block.last_use = each->movable->last_use;
    }
    return blocks;
}

std::vector<ClassInfo> MemoryPool::classes() const {
    std::vector<ClassInfo> all;
    const auto add = [&](std::size_t bytes, const Bin& bin) {
        if (bin.live_blocks + bin.free_blocks > 0) all.push_back({bytes, bin.live_blocks, bin.free_blocks});
    };
    std::lock_guard lock(lock_);
    for (int i = 0; i < size_class::kCount; ++i) add(size_class::bytes_of(i), bins_[i]);
    for (const auto& [bytes, bin] : large_bins_) add(bytes, bin);
    return all;
}

void MemoryPool::refuse(std::size_t bytes, const Stream& stream, const Tenant* full) const {
    struct Holder {
        std::size_t bytes;
        std::string of;
    };
    constexpr std::size_t kNamed = 5;
    std::vector<Holder> holders;
    PoolStats now;
    std::size_t limit = 0;
    {
        std::lock_guard lock(lock_);
        std::vector<const BlockRecord*> live;
        for (const BlockRecord* each = all_; each != nullptr; each = each->after_in_all) {
            if (each->state != BlockState::live) continue;
            if (full == nullptr || belongs_to(each->stream->tenant().get(), full)) live.push_back(each);
        }
        const auto last = live.begin() + static_cast<std::ptrdiff_t>(std::min(kNamed, live.size()));
        std::partial_sort(live.begin(), last, live.end(),
                          [](const auto* a, const auto* b) { return a->bytes > b->bytes; });
        for (auto each = live.begin(); each != last; ++each) {
            const Tenant* of = (*each)->stream->tenant().get();
            holders.push_back({(*each)->bytes, of != nullptr ? of->name() : ""});
        }
        now = stats_;
        limit = budget_.limit();
    }
    std::string largest = holders.empty() ? "" : "; the largest blocks: ";
    for (const Holder& each : holders) {
        if (&each != holders.data()) largest += ", ";
        largest += each.of.empty() ? str(each.bytes) : str(each.bytes, " ('", each.of, "')");
    }
    const Tenant* const asking = stream.tenant().get();
    const std::string movable = evicts(asking) ? str("; ", evictor_.bytes_that_may_leave(full, asking),
                                                     " bytes could be evicted; ", evictor_.away().limits())
                                               : std::string("; eviction is off");
    std::string got;
    if (full != nullptr) {
        got = str("'", full->name(), "' with ", full->memory_used(), " of its ", full->memory_limit(),
                  " bytes in use");
    } else {
        const MemoryInfo memory = device_.driver().memory_info();
        got = str(memory.free_bytes, " of ", memory.total_bytes,
                  " bytes free on the device; this pool holds ", now.live_bytes, " in ", now.live_blocks,
                  " live blocks", limit != 0 ? str(" and may take ", limit) : "");
    }
    Error said = error(
        ErrorKind::memory,
        {.call = str(stream.capture() != nullptr ? "allocation during a graph capture on " : "allocation on ",
                     device_.name()),
         .expected = str(bytes, " bytes free"),
         .got = got + largest + movable,
         .fix = stream.capture() != nullptr ? "free arrays before the capture"
                                            : "free arrays, or work in smaller pieces"});
    throw NoRoomError(std::move(said), bytes, full, asking);
}

}  // namespace gpk
