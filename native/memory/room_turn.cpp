#include "memory/room_turn.hpp"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <new>

#include "base/platform.hpp"

namespace gpk {

namespace {

struct Queue {
    std::mutex mutex;
    std::condition_variable moved;
    std::uint64_t next = 0, served = 0;  // tickets
    std::atomic<int> threads{0};         // that have the turn or wait for it
};

// In a forked child the threads that were in it are gone.
alignas(Queue) std::byte storage[sizeof(Queue)];
Queue& queue() {
    static Queue* const made = [] {
        auto* const first = new (storage) Queue;
        platform::on_fork_in_child([] { new (storage) Queue; });
        return first;
    }();
    return *made;
}

}  // namespace

RoomTurn::RoomTurn() {
    Queue& all = queue();
    all.threads.fetch_add(1);
    std::unique_lock lock(all.mutex);
    const std::uint64_t ticket = all.next++;
    all.moved.wait(lock, [&] { return all.served == ticket; });
    mine_ = true;
}

RoomTurn::~RoomTurn() {
    Queue& all = queue();
    {
        std::lock_guard lock(all.mutex);
        ++all.served;
    }
    all.moved.notify_all();
    all.threads.fetch_sub(1);
    mine_ = false;
}

bool RoomTurn::is_anothers() noexcept {
    return !mine_ && queue().threads.load(std::memory_order_relaxed) != 0;
}

}  // namespace gpk
