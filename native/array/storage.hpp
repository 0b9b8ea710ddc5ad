// Storage: the memory under arrays, and the order in which streams use it.
//
// Reading on a stream waits for the last write on another; writing waits for every earlier use. Work
// that stays on one stream pays one comparison for this.
//
// The pool may evict a storage: take the memory away from under its address, and bring it back before its
// next use. So whoever calls before_read() or before_write() opens a UseScope first and closes it when the
// work was queued; in between, the storage stays.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "memory/pool.hpp"
#include "memory/transfer.hpp"
#include "runtime/graph.hpp"

namespace gpk {

class Storage final : public std::enable_shared_from_this<Storage>, public Evictable {
   public:
    // Uninitialised memory from the device's pool, on the calling thread's current stream.
    static std::shared_ptr<Storage> allocate(Device& device, std::size_t bytes);
    // Memory that somebody else owns. `release` runs once the last array has let go of it and the work of all
    // streams that used it is done: at once, or later on a thread of the library's.
    static std::shared_ptr<Storage> borrow(Device& device, DevicePtr pointer, std::size_t bytes,
                                           std::function<void()> release);

    Storage(Device& device, Block block, std::function<void()> release);
    ~Storage();
    Storage(const Storage&) = delete;
    Storage& operator=(const Storage&) = delete;

    Device& device() const noexcept { return device_; }
    DevicePtr pointer() const noexcept { return block_.pointer; }
    std::size_t bytes() const noexcept { return block_.bytes; }

    // Before work that reads or writes this storage is queued on `stream`.
    void before_read(const std::shared_ptr<Stream>& stream) {
        if (only_.load(std::memory_order_acquire) != stream.get() || stream->capture() != nullptr) {
            order(stream, false);
        }
    }
    void before_write(const std::shared_ptr<Stream>& stream) {
        if (only_.load(std::memory_order_acquire) != stream.get() || stream->capture() != nullptr) {
            order(stream, true);
        }
    }

    // Brings it to the device and keeps it there until the scope ends.
    void bring_here();

    // A transfer of the engine's that reads or writes this storage, before it is submitted: it follows the
    // uses that it must, and later uses wait for it. After bring_here().
    void defer(const std::shared_ptr<Transfer>& transfer, bool write);

    // Keeps it on the device for good, for users that the library knows nothing of.
    void expose(const std::shared_ptr<Stream>& stream);
    // What others did with it is over where `stream` is now: later uses wait for that.
    void follow(const std::shared_ptr<Stream>& stream);
    // Copies it to the host now and takes its memory, until the next use. False where it is in use, or
    // does not move: see MemoryPool::set_eviction.
    bool evict() { return MemoryPool::of(device_).evict(block_); }
    bool on_device() const noexcept;

   private:
    struct Deferred {
        std::shared_ptr<Transfer> transfer;
        bool write;
    };

    void order(const std::shared_ptr<Stream>& stream, bool write);
    void order_now(const std::shared_ptr<Stream>& stream, bool write);
    void use_again(Stream* stream, bool write);
    template <class Attempt>
    static auto with_room(MemoryPool& pool, bool at_once, Attempt&& attempt);
    bool may_leave_soon() const override;
    bool order_leaving(const std::shared_ptr<Stream>& stream) override;
    void order_returned(const std::shared_ptr<Stream>& stream) override;
    void order_write(const std::shared_ptr<Stream>& stream);
    void wait_for_uses(Stream& stream);
    Movable* movable() const noexcept {  // null: it stays
        return block_.record != nullptr ? block_.record->movable.get() : nullptr;
    }
    void note_in_graph(Graph& graph);
    void note_maker();
    // Blocks until the transfers that a use must wait for are queued, without the lock.
    void wait_for_deferred(std::unique_lock<std::mutex>& lock, bool write);

    Device& device_;
    Block block_;
    std::function<void()> release_;
    // The only stream that ever used this storage, or null: there are several, or it may be evicted.
    std::atomic<Stream*> only_;
    // Under the mutex of Evictable:
    std::vector<std::shared_ptr<Stream>> readers_;  // since the last write, each ordered behind it
    std::shared_ptr<Stream> writer_;                // of the last write
    std::vector<std::shared_ptr<Stream>> users_;    // ever
    std::vector<Deferred> deferred_;                // transfers since the last write
};

// What the calling thread uses between before_read() or before_write() and the launch. What was used
// outside of any scope is kept until the thread's next one ends.
class UseScope {
   public:
    UseScope() noexcept { ++depth_; }
    ~UseScope() {
        if (--depth_ == 0 && any_held_) let_go();
    }
    UseScope(const UseScope&) = delete;
    UseScope& operator=(const UseScope&) = delete;

   private:
    friend class Storage;
    static void hold(std::shared_ptr<Storage> storage, Stream* stream, bool write);
    static void let_go() noexcept;

    static inline thread_local constinit int depth_ = 0;
    static inline thread_local constinit bool any_held_ = false;
};

}  // namespace gpk
