#include "array/storage.hpp"

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>
#include <utility>

#include "array/exchange.hpp"
#include "base/error.hpp"
#include "memory/room_turn.hpp"
#include "runtime/observe.hpp"

namespace gpk {

namespace {

template <class T>
bool contains(const std::vector<std::shared_ptr<T>>& all, const std::shared_ptr<T>& one) {
    return std::find(all.begin(), all.end(), one) != all.end();
}

// A storage that a graph's work reads or writes, kept alive and ordered with it.
class StorageUse : public GraphResource {
   public:
    explicit StorageUse(std::shared_ptr<Storage> storage) : storage_(std::move(storage)) { storage_->pin(); }
    ~StorageUse() override { storage_->unpin(); }
    void before_launch(const std::shared_ptr<Stream>& stream) override {
        const UseScope scope;
        storage_->before_write(stream);
    }

   private:
    std::shared_ptr<Storage> storage_;
};

// A storage in the graph's own memory: its arrays may go before the graph, which then has no one to tell.
class ArenaUse : public GraphResource {
   public:
    explicit ArenaUse(std::weak_ptr<Storage> storage) : storage_(std::move(storage)) {}
    void before_launch(const std::shared_ptr<Stream>& stream) override {
        if (const auto storage = storage_.lock()) storage->before_write(stream);
    }
    bool needed() const override { return !storage_.expired(); }

   private:
    std::weak_ptr<Storage> storage_;
};

// What the calling thread holds: each use of the ops that are being queued.
struct Held {
    struct Use {
        std::shared_ptr<Storage> storage;
        Stream* stream;  // null: it only has to be on the device
        bool write;
        bool holds = true;  // once for each storage
    };
    std::vector<Use> uses;

    ~Held() { let_go(); }
    void let_go() noexcept {
        // The last owner of one may be here, and its end may come back here.
        const auto gone = std::exchange(uses, {});
        for (const Use& use : gone) {
            if (use.holds) use.storage->unhold();
        }
    }
    std::vector<const Evictable*> owners() const {
        std::vector<const Evictable*> all;
        for (const Use& use : uses) all.push_back(use.storage.get());
        return all;
    }
};
thread_local Held thread_holds;

void pause_before(int attempt) {
    if (attempt < 16) return std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::microseconds(attempt < 64 ? 20 : 500));
}

}  // namespace

// Runs `attempt`, which may need room of `pool`. Where there is none because ops of other threads have it, it
// waits for them: see RoomTurn for why that ends. `at_once`: others that wait do not come first.
template <class Attempt>
auto Storage::with_room(MemoryPool& pool, bool at_once, Attempt&& attempt) {
    if (at_once) {
        try {
            return attempt();
        } catch (const NoRoomError&) {
            if (!pool.blocks_move()) throw;
        }
    }
    observe::Span span(observe::Topic::memory, "wait for room", {pool.device()});
    std::optional<RoomTurn> turn;
    if (!RoomTurn::is_mine()) {
        for (const Held::Use& use : thread_holds.uses) {
            if (use.holds) use.storage->unhold();
        }
        turn.emplace();
        for (const Held::Use& use : thread_holds.uses) {
            if (use.holds) use.storage->hold();
        }
        for (const Held::Use& use : thread_holds.uses) use.storage->use_again(use.stream, use.write);
    }
    // No op takes so long to be queued, unless the device is stuck.
    constexpr auto kLongest = std::chrono::seconds(30);
    const auto end = std::chrono::steady_clock::now() + kLongest;
    const Evictor& evictor = pool.evictor();
    // It fails for good where nobody else was at work from before the attempt began until it had failed.
    bool others = true;
    std::uint64_t seen = evictor.activity();
    for (int i = 0;; ++i) {
        try {
            return attempt();
        } catch (const NoRoomError& failure) {
            const std::uint64_t now = evictor.activity();
            const auto mine = thread_holds.owners();
            const bool still = evictor.others_at_work(failure.full, failure.asking, mine);
            const bool alone = !others && !still && evictor.quiet_since(seen);
            if (alone || !pool.room_may_come(failure, mine) || std::chrono::steady_clock::now() >= end) throw;
            others = still;
            seen = now;
        }
        if (others) pause_before(i);
    }
}

Storage::Storage(Device& device, Block block, std::function<void()> release)
    : device_(device), block_(std::move(block)), release_(std::move(release)), only_(block_.stream().get()) {
    if (release_) return;
    MemoryPool::of(device_).make_movable(block_, *this);
    if (movable() != nullptr) only_.store(nullptr, std::memory_order_relaxed);
}

Storage::~Storage() {
    if (release_) {
        Exchange::of(device_).release_after(users_, std::move(release_));
    } else {
        MemoryPool::of(device_).release(std::move(block_), users_);
    }
}

std::shared_ptr<Storage> Storage::allocate(Device& device, std::size_t bytes) {
    MemoryPool& pool = MemoryPool::of(device);
    const bool may_move = pool.may_move(bytes);
    return with_room(pool, !may_move || !RoomTurn::is_anothers(), [&] {
        const Evictor::Passage passage(pool.evictor(), may_move);
        return std::make_shared<Storage>(device, pool.allocate(bytes, current_stream(device)), nullptr);
    });
}

std::shared_ptr<Storage> Storage::borrow(Device& device, DevicePtr pointer, std::size_t bytes,
                                         std::function<void()> release) {
    Exchange::of(device);  // made here, since the end of a storage cannot fail
    return std::make_shared<Storage>(device, Block{.pointer = pointer, .bytes = bytes, .class_bytes = bytes},
                                     std::move(release));
}

void Storage::note_in_graph(Graph& graph) {
    auto& noted = graph.resource(this);  // may be of a dead storage that had this address
    const bool in_arena = block_.arena != nullptr && block_.arena == graph.arena;
    if (in_arena) {
        noted = std::make_shared<ArenaUse>(weak_from_this());
    } else if (!noted || !noted->needed()) {
        noted = std::make_shared<StorageUse>(shared_from_this());
    }
}

// The first use by another stream than the one this storage was made on.
void Storage::note_maker() {
    if (!users_.empty() || !block_.stream()) return;
    users_.push_back(block_.stream());
    writer_ = block_.stream();
}

void Storage::wait_for_deferred(std::unique_lock<std::mutex>& lock, bool write) {
    for (;;) {
        const auto next = std::find_if(deferred_.begin(), deferred_.end(), [&](const Deferred& each) {
            return (write || each.write) && !each.transfer->queued();
        });
        if (next == deferred_.end()) return;
        const auto transfer = next->transfer;
        lock.unlock();
        transfer->wait_queued();
        lock.lock();
    }
}

void Storage::order(const std::shared_ptr<Stream>& stream, bool write) {
    if (movable() == nullptr) return order_now(stream, write);
    // A graph orders what it uses by itself. From here on, users_ keeps any other stream.
    UseScope::hold(shared_from_this(), stream->capture() == nullptr ? stream.get() : nullptr, write);
    with_room(MemoryPool::of(device_), true, [&] { order_now(stream, write); });
}

void Storage::bring_here() {
    if (movable() == nullptr) return;
    UseScope::hold(shared_from_this(), nullptr, false);
    use_again(nullptr, false);
}

// What was held, let go of, and is held again.
void Storage::use_again(Stream* stream, bool write) {
    with_room(MemoryPool::of(device_), true, [&] {
        if (stream != nullptr) return order_now(stream->shared_from_this(), write);
        const std::lock_guard lock(mutex_);
        MemoryPool::of(device_).evictor().use(*movable());
    });
}

void Storage::order_now(const std::shared_ptr<Stream>& stream, bool write) {
    Graph* const graph = stream->capture();
    if (graph != nullptr && movable() == nullptr) return note_in_graph(*graph);
    std::unique_lock lock(mutex_);
    if (graph == nullptr) wait_for_deferred(lock, write);
    note_maker();
    if (movable() != nullptr) MemoryPool::of(device_).evictor().use(*movable());
    if (graph != nullptr) return note_in_graph(*graph);
    if (users_.empty() && deferred_.empty() && only_.load(std::memory_order_relaxed) == nullptr) {
        // Borrowed memory, and the first stream of all.
        users_.push_back(stream);
        writer_ = stream;
        only_.store(stream.get(), std::memory_order_release);
        return;
    }
    only_.store(nullptr, std::memory_order_release);
    for (const Deferred& each : deferred_) {
        if (write || each.write) each.transfer->order_before(*stream);
    }
    if (write) return order_write(stream);
    if (writer_ && writer_ != stream && !contains(readers_, stream)) stream->wait(*writer_);
    if (!contains(readers_, stream)) readers_.push_back(stream);
    std::erase_if(deferred_,
                  [](const Deferred& each) { return each.transfer->state() == TransferState::completed; });
    if (!contains(users_, stream)) users_.push_back(stream);
}

void Storage::wait_for_uses(Stream& stream) {
    const auto is_reader = [&](const auto& each) { return each.get() == &stream; };
    if (writer_ && writer_.get() != &stream && std::none_of(readers_.begin(), readers_.end(), is_reader)) {
        stream.wait(*writer_);
    }
    for (const auto& reader : readers_) {
        if (!is_reader(reader)) stream.wait(*reader);
    }
}

// `stream` waits for all streams that use it, and for no transfer.
void Storage::order_write(const std::shared_ptr<Stream>& stream) {
    wait_for_uses(*stream);
    readers_.clear();
    deferred_.clear();
    writer_ = stream;
    if (!contains(users_, stream)) users_.push_back(stream);
}

bool Storage::may_leave_soon() const {
    return std::any_of(deferred_.begin(), deferred_.end(),
                       [](const Deferred& each) { return !each.transfer->queued(); });
}

bool Storage::order_leaving(const std::shared_ptr<Stream>& stream) {
    note_maker();
    const auto captured = [](const auto& each) { return each->capture() != nullptr; };
    const auto queued = [](const Deferred& each) { return each.transfer->queued(); };
    if ((writer_ && captured(writer_)) || std::any_of(readers_.begin(), readers_.end(), captured) ||
        !std::all_of(deferred_.begin(), deferred_.end(), queued)) {
        return false;
    }
    for (const Deferred& each : deferred_) each.transfer->order_before(*stream);
    order_write(stream);
    return true;
}

void Storage::order_returned(const std::shared_ptr<Stream>& stream) {
    readers_.clear();
    writer_ = stream;
    if (!contains(users_, stream)) users_.push_back(stream);
}

void Storage::expose(const std::shared_ptr<Stream>& stream) {
    if (movable() == nullptr) return;
    const UseScope scope;
    before_write(stream);
    pin();
}

// Transfers stay listed, so that nothing is waited for here that is not queued yet.
void Storage::follow(const std::shared_ptr<Stream>& stream) {
    const std::lock_guard lock(mutex_);
    note_maker();
    wait_for_uses(*stream);
    only_.store(nullptr, std::memory_order_release);
    order_returned(stream);
}

bool Storage::on_device() const noexcept {
    return movable() == nullptr || movable()->residence != Residence::away;
}

void Storage::defer(const std::shared_ptr<Transfer>& transfer, bool write) {
    const std::lock_guard lock(mutex_);
    note_maker();
    // From here to its end the transfer keeps it: see order_leaving().
    if (movable() != nullptr) MemoryPool::of(device_).evictor().use(*movable());
    std::erase_if(deferred_,
                  [](const Deferred& each) { return each.transfer->state() == TransferState::completed; });
    deferred_.reserve(deferred_.size() + 1);
    if (writer_) transfer->follow(*writer_);
    if (write) {
        for (const auto& reader : readers_) transfer->follow(*reader);
    }
    for (const Deferred& each : deferred_) {
        if (write || each.write) transfer->follow(each.transfer);
    }
    if (write) {
        // Whoever waits for it waits for these as well.
        readers_.clear();
        deferred_.clear();
        writer_ = nullptr;
    }
    deferred_.push_back({transfer, write});
    only_.store(nullptr, std::memory_order_release);
}

void UseScope::hold(std::shared_ptr<Storage> storage, Stream* stream, bool write) {
    Held::Use use{.storage = std::move(storage), .stream = stream, .write = write};
    for (Held::Use& known : thread_holds.uses) {
        if (known.storage != use.storage) continue;
        use.holds = false;
        if (known.stream != stream) continue;
        known.write |= write;
        return;
    }
    if (use.holds) use.storage->hold();
    thread_holds.uses.push_back(std::move(use));
    any_held_ = true;
}

void UseScope::let_go() noexcept {
    any_held_ = false;
    thread_holds.let_go();
}

}  // namespace gpk
