// The simulated device's memory: host allocations under a capacity, and the pinned host memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

#include "driver/driver.hpp"

namespace gpk {

class SimMemory {
   public:
    // `poison`: fresh memory is filled with a pattern that is NaN in every float type.
    SimMemory(std::size_t capacity_bytes, bool poison) : capacity_(capacity_bytes), poison_(poison) {}
    ~SimMemory();
    SimMemory(const SimMemory&) = delete;
    SimMemory& operator=(const SimMemory&) = delete;

    DevicePtr allocate(std::size_t bytes);
    void* allocate_host(std::size_t bytes);
    // False, and counted, where the pointer is not one that is live.
    bool free(DevicePtr pointer) noexcept;
    bool free_host(void* pointer) noexcept;

    // Memory of others that counts as the device's, and takes nothing of the capacity. It may be given twice.
    void admit(DevicePtr pointer, std::size_t bytes);
    bool dismiss(DevicePtr pointer, std::size_t bytes) noexcept;

    // Throws CUDA_ERROR_INVALID_VALUE unless [pointer, pointer + bytes) lies in one live allocation.
    void check_device_range(const char* call, DevicePtr pointer, std::size_t bytes) const;
    // Whether a host range is pinned. Throws CUDA_ERROR_INVALID_VALUE for null, and for a range that
    // begins in pinned memory and leaves it.
    bool check_host_range(const char* call, const void* pointer, std::size_t bytes) const;

    // Device memory that lives elsewhere, under the same capacity. take() throws CUDA_ERROR_OUT_OF_MEMORY.
    void take(const char* call, std::size_t bytes);
    void give(std::size_t bytes) noexcept;
    // Fresh memory in interleaved mode.
    void poison(void* memory, std::size_t bytes) const noexcept;
    void count_invalid_free() noexcept;

    MemoryInfo info() const;
    std::size_t capacity() const noexcept { return capacity_; }
    std::size_t live_allocations() const;
    std::size_t live_host_allocations() const;
    std::size_t admitted() const;
    std::size_t host_bytes() const;
    std::uint64_t invalid_frees() const;

   private:
    using Blocks = std::map<std::uintptr_t, std::size_t>;  // address -> bytes

    [[noreturn]] void throw_full(const char* call, std::size_t bytes) const;
    bool free_from(Blocks& blocks, std::size_t& used, std::uintptr_t address, const char* call) noexcept;

    const std::size_t capacity_;
    const bool poison_;
    mutable std::mutex mutex_;
    Blocks device_, host_;
    std::multimap<std::uintptr_t, std::size_t> admitted_;
    std::size_t device_bytes_ = 0, host_bytes_ = 0;
    std::uint64_t invalid_frees_ = 0;
};

}  // namespace gpk
