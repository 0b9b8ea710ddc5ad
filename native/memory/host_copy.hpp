// HostStore: pinned host memory for the data of evicted blocks, in pieces that are used again, since pinning
// costs far more than copying.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "runtime/device.hpp"
#include "runtime/stream.hpp"

namespace gpk {

struct HostPiece {
    std::byte* data = nullptr;
    std::size_t bytes = 0;        // of the data in it
    std::size_t class_bytes = 0;  // what it takes
};
using HostCopy = std::vector<HostPiece>;

// Thread-safe.
class HostStore {
   public:
    static constexpr std::size_t kPiece = std::size_t{32} << 20;  // the most that lies in one

    explicit HostStore(Device& device);
    ~HostStore();
    HostStore(const HostStore&) = delete;
    HostStore& operator=(const HostStore&) = delete;

    // Throws Error (memory) where the limit or the host has no room.
    HostCopy allocate(std::size_t bytes);
    // `after`: the copies that still use it; null for none. It is given out again behind them.
    void release(HostCopy copy, const std::shared_ptr<Event>& after) noexcept;

    // Whether the limit would have room if nothing else were here.
    bool could_hold(std::size_t bytes) const;
    // Waits for a copy that still uses a free piece. False where there is none, or none was since the last
    // call.
    bool wait_for_one();

    // Gives free pieces that no copy uses back to the driver. Returns their bytes.
    std::size_t give_back() noexcept;
    std::size_t reserved_bytes() const;
    // The most that the store may take; half of the machine's memory unless set.
    void set_limit(std::size_t bytes);
    std::size_t limit() const;

   private:
    struct Free {
        std::byte* data;
        std::shared_ptr<Event> after;
    };

    std::byte* take(std::size_t class_bytes);
    std::size_t give_back_locked() noexcept;

    Device& device_;
    mutable std::mutex mutex_;
    std::map<std::size_t, std::vector<Free>> free_;  // by class
    std::size_t reserved_ = 0, limit_;
};

}  // namespace gpk
