// Eviction: the memory of blocks that were not used for longest goes to pinned host memory when there is too
// little, and comes back at their next use. Addresses stay: only the chunks under them come and go.
//
// A block that leaves is first copied, on a stream of the pool's behind all its users; it is unmapped once
// that copy is done, and until then a use simply keeps it. A block that returns is mapped and copied on
// another such stream, which its next user waits for. Both happen on the device; the host waits only where
// memory is needed that is still being copied.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "memory/away_store.hpp"
#include "memory/block.hpp"
#include "memory/spin_lock.hpp"
#include "runtime/tenant.hpp"

namespace gpk {

class Evictable;
class MemoryPool;

bool belongs_to(const Tenant* tenant, const Tenant* above) noexcept;  // or is it

enum class Residence : std::uint8_t { here, leaving, away };

// What the pool knows of a block that it may move.
struct Movable {
    BlockRecord* record = nullptr;
    Evictable* owner = nullptr;                         // null once it is gone; under the registry's lock
    std::atomic<Residence> residence{Residence::here};  // changed under the owner's mutex
    std::atomic<std::uint64_t> last_use{0};
    std::atomic<std::uint64_t> departures{0};  // so far, for those who remember one
    std::shared_ptr<AwayData> data;            // leaving, away
    std::shared_ptr<Event> copied;             // leaving
};

// Who has a movable block: the array layer's Storage. Its mutex is over where the block is.
class Evictable {
   public:
    // While anyone holds it, the block stays where it is: for the length of an op, for which others may wait,
    // or for as long as somebody has it pinned.
    void hold() noexcept { holds_.fetch_add(1, std::memory_order_acq_rel); }
    void unhold() noexcept { holds_.fetch_sub(1, std::memory_order_acq_rel); }
    void pin() noexcept { pins_.fetch_add(1, std::memory_order_acq_rel); }
    void unpin() noexcept { pins_.fetch_sub(1, std::memory_order_acq_rel); }
    bool held() const noexcept {
        return holds_.load(std::memory_order_acquire) != 0 || pins_.load(std::memory_order_acquire) != 0;
    }

   protected:
    Evictable() = default;
    ~Evictable() = default;
    friend class Evictor;

    // The mutex is held in all three. The block is about to leave: `stream` waits for all its users. False
    // where that cannot be: one of them is captured.
    virtual bool order_leaving(const std::shared_ptr<Stream>& stream) = 0;
    // Whether it may leave soon, though nobody holds it and order_leaving() would refuse now.
    virtual bool may_leave_soon() const = 0;
    // It came back on `stream`, which its users must wait for.
    virtual void order_returned(const std::shared_ptr<Stream>& stream) = 0;

    std::mutex mutex_;

   private:
    std::atomic<int> holds_{0}, pins_{0};
};

struct EvictionStats {
    std::size_t evicted_bytes = 0;  // of blocks that are away
    std::size_t host_bytes = 0;     // what they take in pinned memory, with what is kept for the next
    std::size_t spilled_bytes = 0;  // of those whose data is on the disk
    std::size_t disk_bytes = 0;     // what the spill file takes
    std::uint64_t evictions = 0, reloads = 0;
};

class Evictor {
   public:
    explicit Evictor(MemoryPool& pool);
    ~Evictor();

    // From whoever makes and destroys a movable block's owner. leave() returns false where the block is not
    // on the device: there is nothing to release then.
    void enter(BlockRecord& record, Evictable& owner);
    bool leave(BlockRecord& record) noexcept;

    // Before a use; the owner's mutex is held, and the caller holds the block. Brings it back if need be.
    void use(Movable& block) {
        if (block.residence.load(std::memory_order_relaxed) != Residence::here) bring_back(block);
        block.last_use.store(tick(), std::memory_order_relaxed);
    }

    // The pool's driver mutex is held in these. Frees chunks by evicting: of those below `within` or, where
    // that is null, of anybody's that may give way to `asking`. False where nothing came free.
    bool make_room(std::size_t bytes, const Tenant* within, const Tenant* asking);

    // Moves one block now and waits for it. False where it is held or in use by a capture.
    bool evict(const std::shared_ptr<Movable>& block);

    // For who found no room. Whether ops of other threads have blocks that would else leave for it, or bring
    // some or free some now. `mine`: whose blocks the calling thread holds.
    bool others_at_work(const Tenant* within, const Tenant* asking,
                        const std::vector<const Evictable*>& mine) const;
    // What would be free if none of them were at work. The pool's driver mutex is held.
    std::size_t bytes_that_could_leave(const Tenant* within, const Tenant* asking,
                                       const std::vector<const Evictable*>& mine) const;
    // Changes with each use of other threads, and with each block that they take or free or fail to get.
    std::uint64_t activity() const noexcept { return clock_.load(std::memory_order_acquire) - own_passages_; }
    // Whether no other thread did any of that since activity() was `seen`, nor is about to.
    bool quiet_since(std::uint64_t seen) const noexcept {
        return passing_.load(std::memory_order_acquire) == 0 && activity() == seen;
    }
    bool any_movable() const;
    // A block is on its way between its owner and the free ones: others_at_work() is true meanwhile.
    class Passage {
       public:
        Passage(Evictor& evictor, bool real) noexcept : evictor_(real ? &evictor : nullptr) {
            if (real) evictor.passing_.fetch_add(1, std::memory_order_acq_rel);
        }
        ~Passage() {
            if (evictor_ == nullptr) return;
            ++own_passages_;
            evictor_->tick();
            evictor_->passing_.fetch_sub(1, std::memory_order_acq_rel);
        }
        Passage(const Passage&) = delete;
        Passage& operator=(const Passage&) = delete;

       private:
        Evictor* const evictor_;
    };

    EvictionStats stats() const noexcept;
    std::size_t bytes_that_may_leave(const Tenant* within, const Tenant* asking) const;
    AwayStore& away() noexcept { return away_; }
    const AwayStore& away() const noexcept { return away_; }

   private:
    struct Leaving {
        std::shared_ptr<Movable> block;
        std::uint64_t departure;
        std::shared_ptr<Event> copied;
        std::shared_ptr<Tenant> tenant;  // of the block, which may be gone
        std::size_t bytes;

        bool is_for(const Tenant* within, const Tenant* asking) const noexcept;
        bool still() const noexcept {  // false where it is in use again, or gone
            return block->residence == Residence::leaving && block->departures == departure;
        }
    };
    // A block whose owner is locked, so that it neither goes nor moves; null for none.
    struct Chosen {
        std::shared_ptr<Movable> block = nullptr;
        Evictable* owner = nullptr;  // its own pointer may be gone by now: the owner's end waits for the lock
        std::unique_lock<std::mutex> lock = {};
    };

    std::uint64_t tick() noexcept { return clock_.fetch_add(1, std::memory_order_acq_rel); }
    void bring_back(Movable& block);
    void reload(Movable& block, Tenant* tenant);
    Chosen choose(const Tenant* within, const Tenant* asking, std::vector<const Movable*>& passed_over);
    void no_longer_away(const BlockRecord& record) noexcept;
    bool begin(const std::shared_ptr<Movable>& block, Evictable& owner);
    std::size_t finish(const Leaving& leaving);
    std::size_t send_off(std::size_t target, const Tenant* within, const Tenant* asking);
    std::size_t take_up(std::size_t bytes, const Tenant* within, const Tenant* asking);
    bool make_host_room(std::size_t bytes);
    HostCopy host_room(std::size_t bytes);
    void return_to_memory(AwayData& data);
    Chosen lock_leaving(const Leaving& leaving);
    const std::shared_ptr<Stream>& own_stream(std::shared_ptr<Stream>& stream);

    MemoryPool& pool_;
    AwayStore away_;
    // Over what reads and writes the disk. Whoever holds the pool's driver mutex lets go of it before: nobody
    // else's launch or allocation waits for a disk.
    std::mutex disk_mutex_;
    std::shared_ptr<Stream> out_, in_;
    std::deque<Leaving> leaving_;  // the first to leave in front
    mutable SpinLock registry_lock_;
    std::vector<std::shared_ptr<Movable>> registry_;
    std::atomic<std::uint64_t> clock_{1};
    std::atomic<int> passing_{0};
    static inline thread_local constinit std::uint64_t own_passages_ = 0;  // ended, of any evictor
    std::atomic<std::size_t> evicted_bytes_{0};
    std::atomic<std::uint64_t> evictions_{0}, reloads_{0};
};

}  // namespace gpk
