// TransferEngine: a device's copies in the background, so that an urgent one passes a bulk one.
//
// Each direction has a lane for urgent copies and one for the others, a lane being a stream and a thread. A
// copy goes in chunks, of which few are in flight: the next chunk is of the most urgent transfer, whatever
// was begun. Pageable memory goes through a ring of pinned chunks that several threads fill or empty.
// Tenants have lanes of their own, so their governors see what is copied for them.
#pragma once

#include <array>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "memory/pinned.hpp"
#include "memory/stagers.hpp"
#include "memory/transfer.hpp"
#include "memory/transfer_lane.hpp"

namespace gpk {

struct TransferOptions {
    // Of pinned memory. Each chunk costs its copy engine some 3 us: 2 % of one of 8 MiB at 52 GB/s. Two in
    // flight keep the engine busy while the host queues the next. A long urgent copy waits for what is in
    // flight, a small one passes it.
    std::size_t direct_chunk_bytes = std::size_t{8} << 20;
    std::size_t in_flight_bytes = std::size_t{16} << 20;
    // Of the ring: threads fill it at 84 GB/s (H200, 12 threads), so what is left to gain is the 3 us.
    std::size_t chunk_bytes = std::size_t{3} << 20;
    // An urgent copy of at most so much goes beside the others; a longer one holds them back.
    std::size_t small_bytes = std::size_t{256} << 10;
    // On the device a copy is some fifty times as fast.
    std::size_t device_chunk_bytes = std::size_t{64} << 20;
    std::size_t device_in_flight_bytes = std::size_t{128} << 20;
    // The smallest chunk of pageable memory: short copies are cut finer, for more threads.
    std::size_t least_chunk_bytes = std::size_t{256} << 10;
    // Pinned chunks of a lane: one a thread, some on their way and some that wait for it.
    std::size_t ring_chunks = 28;
    unsigned threads = 0;           // that fill and empty; 0: one less than the cores, 12 at most
    bool streaming_stores = false;  // past the caches, into the ring and out of it
    bool populate_targets = true;   // maps a fresh target's pages in one call a chunk, not by faults
};

struct TransferStats {
    struct Direction {
        std::uint64_t completed = 0, failed = 0, cancelled = 0;
        std::uint64_t bytes = 0;         // copied by completed ones
        std::uint64_t staged_bytes = 0;  // of these, through the ring
    };
    std::array<Direction, kTransferKinds> directions = {};
    std::uint64_t queued = 0, in_progress = 0;  // now
};

class TransferEngine : public DeviceAttachment {
   public:
    static TransferEngine& of(Device& device);

    explicit TransferEngine(Device& device);
    // Cancels what is queued and waits for what is under way.
    ~TransferEngine() override;
    TransferEngine(const TransferEngine&) = delete;
    TransferEngine& operator=(const TransferEngine&) = delete;

    // False in a process forked after the engine's first use: its threads run in the parent.
    bool usable() const noexcept { return process_ == process_generation(); }

    // The stream that the calling thread's transfers of this kind run on: what is allocated on it needs to
    // wait for nobody else's work.
    std::shared_ptr<Stream> stream_for(TransferKind kind, int priority);

    // A transfer for the tenant of the calling thread's current stream, not queued yet: follow() gives it its
    // order. Then submit() or abandon() must be called.
    std::shared_ptr<Transfer> prepare(TransferRequest request);
    void submit(const std::shared_ptr<Transfer>& transfer);
    void abandon(const std::shared_ptr<Transfer>& transfer) noexcept;

    TransferStats stats() const;
    void drain();  // until no transfer is left, and nothing that they held
    // Throws Error (value) once a transfer was made, or for sizes that cannot work.
    void configure(const TransferOptions& options);
    TransferOptions options() const;

   private:
    friend class Transfer;
    friend class TransferLane;

    struct Gate {
        std::size_t in_flight = 0;  // bytes of lanes that are not urgent
        int held = 0;               // by so many urgent transfers
        int bulk = 0;               // transfers that are not urgent
    };

    void check_process(const char* call) const;
    TransferLane& lane_for(TransferKind kind, bool urgent, std::unique_lock<std::mutex>& lock);
    void start(TransferLane& lane);  // and the threads that it needs
    void notify();
    void tell_of(const Transfer& transfer, const Stream& stream) noexcept;
    // Under the shared mutex:
    bool holds_others(const Transfer& transfer) const noexcept;
    void count_queued(Transfer& transfer) noexcept;
    void count_begun(Transfer& transfer) noexcept;
    void post(const std::shared_ptr<Transfer>& transfer);
    void finish(const std::shared_ptr<Transfer>& transfer, TransferState state);
    void retire(TransferLane* lane);  // the lane's own thread ends with this
    void bump_all();

    Device& device_;
    PinnedPool& pinned_;
    const unsigned process_;
    const std::shared_ptr<TransferSync> sync_;
    TransferOptions options_;
    std::unique_ptr<Stagers> stagers_;

    // Under the shared mutex:
    std::vector<std::unique_ptr<TransferLane>> lanes_, retired_;
    std::array<Gate, kTransferKinds> gates_;
    std::deque<std::shared_ptr<Transfer>> posts_;
    std::condition_variable posted_;
    TransferStats stats_;
    std::uint64_t next_sequence_ = 0;
    std::size_t active_ = 0;  // prepared and not over
    bool notifying_ = false;
    bool stop_ = false;
    std::thread notifier_;
};

}  // namespace gpk
