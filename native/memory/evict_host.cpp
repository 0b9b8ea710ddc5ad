// How eviction gets pinned memory: by moving what was away longest to the disk.
//
// Three locks are asked for in this order: a block's owner's, the disk mutex, the pool's driver mutex. Nobody
// waits for the disk while it holds the driver mutex, nor for an owner's, but for that of a block that is
// leaving, whose holder asks for neither. So no circle of waits can close.
#include <utility>

#include "base/error.hpp"
#include "memory/pool.hpp"
#include "memory/without.hpp"

namespace gpk {

// The disk mutex is held, and not the driver mutex. Throws Error (memory).
HostCopy Evictor::host_room(std::size_t bytes) {
    HostStore& host = away_.host();
    const auto attempt = [&](HostCopy* room) {
        try {
            *room = host.allocate(bytes);
            return true;
        } catch (const Error& failure) {
            if (failure.kind() != ErrorKind::memory || !host.could_hold(bytes)) throw;
            return false;
        }
    };
    HostCopy room;
    while (true) {
        if (attempt(&room)) return room;
        if (away_.spill()) continue;
        // With both mutexes nobody else is in the middle of an eviction or a reload, which take room, too.
        const std::lock_guard driver_lock(pool_.driver_mutex_);
        if (attempt(&room)) return room;
        if (!leaving_.empty()) {
            leaving_.front().copied->synchronize();
            finish(leaving_.front());
            leaving_.pop_front();
        } else if (!host.wait_for_one()) {
            throw error(ErrorKind::memory, {.call = "reload of an evicted block from the disk",
                                            .expected = str(bytes, " bytes of pinned host memory"),
                                            .got = away_.limits(),
                                            .fix = "allow more of either"});
        }
    }
}

// The driver mutex is held, and let go of meanwhile. False where there is no more room to be had.
bool Evictor::make_host_room(std::size_t bytes) {
    const Without driver_mutex(pool_.driver_mutex_);
    const std::lock_guard disk_lock(disk_mutex_);
    try {
        away_.host().release(host_room(bytes), nullptr);  // for whoever comes first
        return true;
    } catch (const Error& failure) {
        if (failure.kind() != ErrorKind::memory) throw;
        return false;
    }
}

void Evictor::return_to_memory(AwayData& data) {
    HostCopy room = host_room(data.bytes);
    try {
        away_.put_back(data, room);
    } catch (...) {
        away_.host().release(std::move(room), nullptr);
        throw;
    }
}

}  // namespace gpk
