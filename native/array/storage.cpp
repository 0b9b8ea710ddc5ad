#include "array/storage.hpp"

#include <algorithm>
#include <utility>

#include "base/error.hpp"

namespace gpk {

namespace {

bool contains(const std::vector<std::shared_ptr<Stream>>& streams, const std::shared_ptr<Stream>& stream) {
    return std::find(streams.begin(), streams.end(), stream) != streams.end();
}

// A storage that a graph's work reads or writes, kept alive and ordered with it.
class StorageUse : public GraphResource {
   public:
    explicit StorageUse(std::shared_ptr<Storage> storage) : storage_(std::move(storage)) {}
    void before_launch(const std::shared_ptr<Stream>& stream) override { storage_->before_write(stream); }

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

}  // namespace

Storage::Storage(Device& device, Block block, std::function<void()> release)
    : device_(device), block_(std::move(block)), release_(std::move(release)), only_(block_.stream().get()) {}

Storage::~Storage() {
    if (release_) {
        release_();
    } else {
        MemoryPool::of(device_).release(std::move(block_), users_);
    }
}

std::shared_ptr<Storage> Storage::allocate(Device& device, std::size_t bytes) {
    return std::make_shared<Storage>(device, MemoryPool::of(device).allocate(bytes, current_stream(device)),
                                     nullptr);
}

std::shared_ptr<Storage> Storage::borrow(Device& device, DevicePtr pointer, std::size_t bytes,
                                         std::function<void()> release) {
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
    if (Graph* graph = stream->capture()) return note_in_graph(*graph);
    std::unique_lock lock(mutex_);
    wait_for_deferred(lock, write);
    note_maker();
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
    if (writer_ && writer_ != stream && !contains(readers_, stream)) stream->wait(*writer_);
    if (write) {
        for (const auto& reader : readers_) {
            if (reader != stream) stream->wait(*reader);
        }
        readers_.clear();
        deferred_.clear();
        writer_ = stream;
    } else {
        if (!contains(readers_, stream)) readers_.push_back(stream);
        std::erase_if(deferred_, [](const Deferred& each) {
            return each.transfer->state() == TransferState::completed;
        });
    }
    if (!contains(users_, stream)) users_.push_back(stream);
}

void Storage::defer(const std::shared_ptr<Transfer>& transfer, bool write) {
    const std::lock_guard lock(mutex_);
    note_maker();
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

}  // namespace gpk
