// TransferLane: the transfers of one direction, urgency and tenant: a stream, and the thread that queues
// their chunks on it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "memory/pinned.hpp"
#include "memory/transfer.hpp"

namespace gpk {

class TransferEngine;

class TransferLane {
   public:
    TransferLane(TransferEngine& engine, TransferKind kind, bool urgent, std::shared_ptr<Stream> stream);
    // Its thread has ended or is about to.
    ~TransferLane();
    TransferLane(const TransferLane&) = delete;
    TransferLane& operator=(const TransferLane&) = delete;

    TransferKind kind() const noexcept { return kind_; }
    bool urgent() const noexcept { return urgent_; }
    const std::shared_ptr<Stream>& stream() const noexcept { return stream_; }

    void join();

    // All under the engine's shared mutex.
    bool idle() const noexcept;
    bool rests() const noexcept { return idle() && slots_ == 0; }  // and holds no pinned memory
    void start();
    void reserve() noexcept { ++reserved_; }  // it stays until a transfer was added or given up
    void unreserve() noexcept { --reserved_; }
    void add(const std::shared_ptr<Transfer>& transfer);
    // Queues a small urgent transfer on the calling thread: to wake the lane's takes longer than such a copy.
    // False where it must go by add(), since something is before it or may make the caller wait.
    bool send_here(std::unique_lock<std::mutex>& lock, const std::shared_ptr<Transfer>& transfer);
    // Looks whether its first chunk is done, on a thread that waits for that.
    void help(std::unique_lock<std::mutex>& lock);
    // Ends a transfer: failed, or cancelled where `failure` is null; at once where no chunk is under way.
    void stop(const std::shared_ptr<Transfer>& transfer, std::exception_ptr failure);
    void stop_all();
    void bump();  // something changed that its thread should look at

   private:
    struct Chunk {
        std::shared_ptr<Transfer> transfer = nullptr;
        std::size_t offset = 0, bytes = 0;
        PinnedBlock slot = {};
        std::shared_ptr<Event> event = nullptr;
        std::uint64_t number = 0;  // in the order in which they were queued
    };
    using Lock = std::unique_lock<std::mutex>;

    void run();
    bool sleep(Lock& lock, std::uint64_t seen);  // false where the thread is to end

    // The steps of its thread: each true where it did something.
    bool retire(Lock& lock);
    bool grow(Lock& lock);
    bool stage(Lock& lock);
    bool submit(Lock& lock);
    void send(Lock& lock, Chunk chunk);

    static bool handled_here(const Chunk& chunk) noexcept;
    static bool goes_before(const Transfer& a, const Transfer& b) noexcept;
    bool fills(const Transfer& transfer) const noexcept;
    bool gate_open(std::size_t bytes) const noexcept;
    std::size_t next_bytes(const Transfer& transfer) const noexcept;
    Chunk claim(const std::shared_ptr<Transfer>& transfer);
    bool passes_engine(const Chunk& chunk) const noexcept;
    void queue_copy(const Chunk& chunk, bool first, bool last, bool by_kernel);
    void poll(const Event& event, std::uint64_t seen) const noexcept;
    void settle() noexcept;
    void fill(Chunk chunk) noexcept;  // on a stager's thread, as the next
    void empty(Chunk chunk) noexcept;
    void chunk_done(const std::shared_ptr<Transfer>& transfer, std::size_t bytes);
    void conclude(const std::shared_ptr<Transfer>& transfer);
    void give_back(PinnedBlock& slot);

    TransferEngine& engine_;
    const TransferKind kind_;
    const bool urgent_;
    const std::shared_ptr<Stream> stream_;

    // Under the shared mutex:
    std::condition_variable wake_;
    std::atomic<std::uint64_t> changes_{0};         // read without it, too
    std::vector<std::shared_ptr<Transfer>> queue_;  // with bytes left to claim, the most urgent first
    std::vector<Chunk> ready_;                      // filled
    std::vector<PinnedBlock> free_slots_;
    std::size_t slots_ = 0;  // of the ring, free or not
    std::size_t most_slots_;
    std::size_t waiting_ = 0;  // bytes of the queue that go through the ring
    int working_ = 0;          // stagers' jobs
    int reserved_ = 0;
    bool started_ = false;
    std::deque<Chunk> in_flight_;
    std::uint64_t next_number_ = 0;
    std::vector<std::shared_ptr<Event>> events_;  // to be used again

    std::thread thread_;
};

}  // namespace gpk
