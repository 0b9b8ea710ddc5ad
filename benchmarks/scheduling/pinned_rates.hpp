// The limit that copies are held against: one plain copy of pinned memory, and one each way at once.
#pragma once

#include <cstddef>
#include <memory>

#include "runtime/device.hpp"
#include "runtime/stream.hpp"

namespace bench {

// Memory straight from the driver, past the pools: pinned on the host, and of the device.
class Pinned {
   public:
    Pinned(gpk::Device& device, std::size_t bytes)
        : device_(device), data_(device.driver().allocate_host(bytes)), bytes_(bytes) {}
    ~Pinned() { device_.driver().free_host(data_); }
    Pinned(const Pinned&) = delete;
    Pinned& operator=(const Pinned&) = delete;

    void* data() const noexcept { return data_; }
    std::size_t bytes() const noexcept { return bytes_; }

   private:
    gpk::Device& device_;
    void* data_;
    std::size_t bytes_;
};

class DriverMemory {
   public:
    DriverMemory(gpk::Device& device, std::size_t bytes)
        : device_(device), pointer_(device.driver().allocate(bytes)) {}
    ~DriverMemory() { device_.driver().free(pointer_); }
    DriverMemory(const DriverMemory&) = delete;
    DriverMemory& operator=(const DriverMemory&) = delete;

    gpk::DevicePtr pointer() const noexcept { return pointer_; }

   private:
    gpk::Device& device_;
    gpk::DevicePtr pointer_;
};

// GB/s. Each method copies once, by the driver's own calls, and waits.
class PinnedRates {
   public:
    PinnedRates(gpk::Device& device, std::size_t bytes);

    double to_device();
    double to_host();
    double each_way();  // of either, both at once

    Pinned source, target;  // of the host
    DriverMemory up, down;  // of the device: to_device writes the one, to_host reads the other

   private:
    gpk::Device& device_;
    std::shared_ptr<gpk::Stream> in_, out_;
};

}  // namespace bench
