// The simulated device's virtual memory, by the host's: a physical memory is pages that move to the address
// at which they are mapped, and back to their home when they are unmapped.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>

#include "driver/driver.hpp"
#include "driver/sim_work.hpp"

namespace gpk {

class SimMemory;

class SimVirtualMemory {
   public:
    // `granularity` 0: a device without these calls. `memory` counts what is used.
    SimVirtualMemory(SimMemory& memory, std::size_t granularity);
    ~SimVirtualMemory();
    SimVirtualMemory(const SimVirtualMemory&) = delete;
    SimVirtualMemory& operator=(const SimVirtualMemory&) = delete;

    DevicePtr reserve(std::size_t bytes);
    PhysicalHandle create(std::size_t bytes);
    void map(DevicePtr address, PhysicalHandle physical, std::size_t bytes);
    void allow_access(DevicePtr address, std::size_t bytes);
    // What these three cannot take is counted as an invalid free, and nothing changes.
    void unmap(DevicePtr address, std::size_t bytes) noexcept;
    void destroy(PhysicalHandle physical) noexcept;
    void release(DevicePtr address, std::size_t bytes) noexcept;

    bool contains(DevicePtr address) const noexcept;  // in a reservation
    // The newest map in the range, numbered in the order in which they were made; none unless all of the
    // range is mapped and accessible.
    std::optional<std::uint64_t> newest_map(DevicePtr address, std::size_t bytes) const noexcept;
    // Throws CUDA_ERROR_INVALID_VALUE unless all of the range can be used.
    void check_range(const char* call, DevicePtr address, std::size_t bytes) const;
    // Throws CUDA_ERROR_ILLEGAL_ADDRESS unless the range can be used and was not mapped anew since.
    void check_touch(const SimTouch& touch) const;

    std::size_t live_reservations() const;
    std::size_t live_physical() const;  // destroyed ones that are still mapped too

   private:
    struct Physical {
        void* home = nullptr;
        std::size_t bytes = 0;
        bool mapped = false;
        bool destroyed = false;
    };
    struct Map {
        std::shared_ptr<Physical> physical;
        std::uint64_t number = 0;
        bool accessible = false;
    };
    using Maps = std::map<std::uintptr_t, Map>;  // by address
    struct Reservation {
        std::size_t bytes = 0;
        Maps maps;
    };
    using Reservations = std::map<std::uintptr_t, Reservation>;

    void require(const char* call, std::uint64_t address, std::size_t bytes) const;
    // The reservation that holds all of the range, or null. The lock is held.
    const Reservation* reservation_of(std::uintptr_t address, std::size_t bytes) const noexcept;
    Reservation* reservation_of(std::uintptr_t address, std::size_t bytes) noexcept;
    void end(const std::shared_ptr<Physical>& physical) noexcept;
    void complain(const char* call, const char* what) noexcept;

    SimMemory& memory_;
    const std::size_t granularity_;
    mutable std::mutex mutex_;
    Reservations reservations_;
    std::unordered_map<PhysicalHandle, std::shared_ptr<Physical>> physical_;
    std::size_t live_physical_ = 0;
    std::uint64_t maps_made_ = 0;
    std::atomic<std::size_t> reserved_{0};  // reservations, so that a device without any looks no further
};

}  // namespace gpk
