#include "memory/pool.hpp"

#include <algorithm>
#include <bit>

#include "base/error.hpp"
#include "base/log.hpp"

namespace gpk {

namespace {

constexpr std::size_t kSmallest = 256;
constexpr std::size_t kLarge = std::size_t{64} << 20;
constexpr std::size_t kLargeStep = std::size_t{2} << 20;

// `step` is a power of two.
constexpr std::size_t round_up(std::size_t value, std::size_t step) {
    return (value + step - 1) & ~(step - 1);
}

// The memory of one graph: what its captured work allocated. Blocks freed during the capture are used
// again within it; everything goes back to the pool with the graph and the last of its arrays.
class GraphArena : public GraphResource {
   public:
    explicit GraphArena(MemoryPool& pool) : pool_(pool) {}
    ~GraphArena() override {
        for (Block& block : all_) pool_.release(std::move(block), users_);
    }

    bool take(std::size_t wanted, DevicePtr* pointer) {
        std::lock_guard lock(mutex_);
        auto& blocks = free_[wanted];
        if (blocks.empty()) return false;
        *pointer = blocks.back();
        blocks.pop_back();
        return true;
    }
    void add(Block block) {
        std::lock_guard lock(mutex_);
        all_.push_back(std::move(block));
    }
    void put_back(const Block& block, const std::vector<std::shared_ptr<Stream>>& others) {
        std::lock_guard lock(mutex_);
        free_[block.class_bytes].push_back(block.pointer);
        for (const auto& other : others) add_user(other);
    }

    void before_launch(const std::shared_ptr<Stream>& stream) override {
        std::lock_guard lock(mutex_);
        add_user(stream);
    }

   private:
    void add_user(const std::shared_ptr<Stream>& stream) {
        if (std::find(users_.begin(), users_.end(), stream) == users_.end()) users_.push_back(stream);
    }

    MemoryPool& pool_;
    std::mutex mutex_;
    std::map<std::size_t, std::vector<DevicePtr>> free_;
    std::vector<Block> all_;
    std::vector<std::shared_ptr<Stream>> users_;  // that launched the graph or used its arrays
};

}  // namespace

MemoryPool& MemoryPool::of(Device& device) {
    return device.attached<MemoryPool>();
}

MemoryPool::~MemoryPool() { trim(); }

std::size_t MemoryPool::class_bytes(std::size_t bytes) {
    if (bytes <= kSmallest) return kSmallest;
    if (bytes >= kLarge) return round_up(bytes, kLargeStep);
    return round_up(bytes, std::max(kSmallest, std::bit_floor(bytes - 1) / 8));
}

bool MemoryPool::FreeBlock::may_ask() const {
    const auto free_to_ask = [](const auto& each) { return each->capture() == nullptr; };
    return free_to_ask(stream) &&
           (!others || std::all_of(others->streams.begin(), others->streams.end(), free_to_ask));
}

bool MemoryPool::FreeBlock::idle() const {
    const auto done = [](const auto& each) { return each->query(); };
    return stream->query() &&
           (!others || (std::all_of(others->events.begin(), others->events.end(), done) &&
                        std::all_of(others->streams.begin(), others->streams.end(), done)));
}

void MemoryPool::FreeBlock::order_before(Stream& next) const {
    next.wait(*stream);
    if (!others) return;
    for (const auto& event : others->events) next.wait(*event);
    for (const auto& other : others->streams) next.wait(*other);
}

// Finds a cached block that may be had in the given way; large requests accept up to a quarter more.
bool MemoryPool::take_cached(std::size_t wanted, const std::shared_ptr<Stream>& stream, Reuse reuse,
                             Block* block) {
    const std::size_t most = wanted >= kLarge ? wanted + wanted / 4 : wanted;
    for (auto list = free_.lower_bound(wanted); list != free_.end() && list->first <= most; ++list) {
        auto& blocks = list->second;
        const auto found = std::find_if(blocks.rbegin(), blocks.rend(), [&](const FreeBlock& each) {
            if (reuse != Reuse::same_stream && !each.may_ask()) return false;
            switch (reuse) {
                case Reuse::same_stream: return each.stream == stream && !each.others;
                case Reuse::idle: return each.idle();
                case Reuse::waiting: return true;
            }
            return false;
        });
        if (found == blocks.rend()) continue;
        if (reuse == Reuse::waiting) found->order_before(*stream);
        block->pointer = found->pointer;
        block->class_bytes = list->first;
        blocks.erase(std::next(found).base());
        stats_.cached_bytes -= list->first;
        return true;
    }
    return false;
}

bool MemoryPool::take_fresh(std::size_t wanted, Block* block) {
    if (limit_ != 0 && stats_.reserved_bytes + wanted > limit_) return false;
    try {
        block->pointer = device_.driver().allocate(wanted);
    } catch (const DriverError& failure) {
        if (failure.kind() != ErrorKind::memory) throw;
        return false;
    }
    block->class_bytes = wanted;
    stats_.reserved_bytes += wanted;
    ++stats_.driver_allocations;
    return true;
}

void MemoryPool::count_allocation(std::size_t bytes) {
    stats_.live_bytes += bytes;
    stats_.peak_live_bytes = std::max(stats_.peak_live_bytes, stats_.live_bytes);
    ++stats_.allocations;
    ++stats_.live_blocks;
}

Block MemoryPool::allocate(std::size_t bytes, const std::shared_ptr<Stream>& stream) {
    if (bytes == 0) return {.stream = stream};
    if (stream->capture() != nullptr) return allocate_for_capture(bytes, stream);
    const std::size_t wanted = class_bytes(bytes);
    Block block{.bytes = bytes, .stream = stream};
    std::unique_lock lock(mutex_);
    bool found = take_cached(wanted, stream, Reuse::same_stream, &block) ||
                 take_cached(wanted, stream, Reuse::idle, &block) || take_fresh(wanted, &block) ||
                 take_cached(wanted, stream, Reuse::waiting, &block);
    if (!found) {
        // What is cached in other classes makes room. Its streams are waited for: this is the last resort.
        trim_locked();
        found = take_fresh(wanted, &block);
    }
    if (!found) {
        const PoolStats now = stats_;
        const std::size_t limit = limit_;
        lock.unlock();
        const MemoryInfo memory = device_.driver().memory_info();
        throw error(ErrorKind::memory, {.call = str("allocation on ", device_.name()),
                                        .expected = str(bytes, " bytes free"),
                                        .got = str(memory.free_bytes, " of ", memory.total_bytes,
                                                   " bytes free on the device; this pool holds ",
                                                   now.live_bytes, " in ", now.live_blocks, " live blocks",
                                                   limit != 0 ? str(" and may take ", limit) : ""),
                                        .fix = "free arrays, or work in smaller pieces"});
    }
    count_allocation(bytes);
    return block;
}

Block MemoryPool::allocate_for_capture(std::size_t bytes, const std::shared_ptr<Stream>& stream) {
    Graph& graph = *stream->capture();
    if (!graph.arena) graph.arena = std::make_shared<GraphArena>(*this);
    auto& arena = static_cast<GraphArena&>(*graph.arena);
    Block block{.bytes = bytes, .class_bytes = class_bytes(bytes), .stream = stream, .arena = graph.arena};
    if (!arena.take(block.class_bytes, &block.pointer)) {
        // Only memory that no stream uses: an event from outside cannot be waited for in a capture.
        std::unique_lock lock(mutex_);
        Block fresh{.bytes = bytes, .stream = stream};
        bool found = take_fresh(block.class_bytes, &fresh);
        if (!found && trim_locked() > 0) found = take_fresh(block.class_bytes, &fresh);
        if (!found) {
            throw error(ErrorKind::memory,
                        {.call = "allocation during a graph capture",
                         .expected = str(bytes, " bytes free"),
                         .got = str("a pool of ", stats_.reserved_bytes, " bytes that cannot grow"),
                         .fix = "free arrays before the capture"});
        }
        count_allocation(bytes);
        lock.unlock();
        block.pointer = fresh.pointer;
        arena.add(std::move(fresh));
    }
    return block;
}

// An event behind what the stream holds now, or null where there cannot be one.
std::shared_ptr<Event> MemoryPool::mark(Stream& stream) noexcept {
    if (stream.capture() != nullptr) return nullptr;  // it would become part of the capture
    try {
        auto event = std::make_shared<Event>(device_);
        event->record(stream);
        return event;
    } catch (const Error& failure) {
        log(LogLevel::warning,
            str("memory pool: ", failure.what(), "; a later owner waits for the whole stream"));
        return nullptr;
    }
}

void MemoryPool::release(Block block, const std::vector<std::shared_ptr<Stream>>& others) noexcept {
    if (block.pointer == 0) return;
    if (block.arena) {
        static_cast<GraphArena&>(*block.arena).put_back(block, others);
        return;
    }
    std::unique_ptr<Others> used_by;
    for (const auto& other : others) {
        if (other == block.stream) continue;
        if (!used_by) used_by = std::make_unique<Others>();
        if (auto event = mark(*other)) {
            used_by->events.push_back(std::move(event));
        } else {
            used_by->streams.push_back(other);
        }
    }
    std::lock_guard lock(mutex_);
    free_[block.class_bytes].push_back({block.pointer, std::move(block.stream), std::move(used_by)});
    stats_.cached_bytes += block.class_bytes;
    stats_.live_bytes -= block.bytes;
    --stats_.live_blocks;
}

std::size_t MemoryPool::trim_locked() noexcept {
    std::size_t bytes = 0;
    for (auto& [size, list] : free_) {
        for (FreeBlock& block : list) {
            // The driver's free waits for work that may still use the block.
            device_.driver().free(block.pointer);
            bytes += size;
        }
    }
    free_.clear();
    stats_.cached_bytes = 0;
    stats_.reserved_bytes -= bytes;
    return bytes;
}

std::size_t MemoryPool::trim() {
    std::lock_guard lock(mutex_);
    return trim_locked();
}

PoolStats MemoryPool::stats() const {
    std::lock_guard lock(mutex_);
    return stats_;
}

void MemoryPool::reset_peak() {
    std::lock_guard lock(mutex_);
    stats_.peak_live_bytes = stats_.live_bytes;
}

void MemoryPool::set_limit(std::size_t bytes) {
    std::lock_guard lock(mutex_);
    limit_ = bytes;
}

std::size_t MemoryPool::limit() const {
    std::lock_guard lock(mutex_);
    return limit_;
}

}  // namespace gpk
