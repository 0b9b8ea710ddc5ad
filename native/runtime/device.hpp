// Device: one GPU, or the simulated one, with its driver, launcher and default stream.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "driver/driver.hpp"
#include "runtime/launcher.hpp"

namespace gpk {

class Stream;

// What a higher layer (the memory pool, the transfer engine) keeps for a device; it goes with the device.
class DeviceAttachment {
   public:
    virtual ~DeviceAttachment() = default;
};

class Device {
   public:
    Device(int slot, std::string name, std::unique_ptr<Driver> driver);
    ~Device();

    int slot() const noexcept { return slot_; }                 // unique in this process, never reused
    const std::string& name() const noexcept { return name_; }  // "cuda:0", "cpu"
    bool is_cuda() const noexcept { return driver_->kind() == "cuda"; }
    const DeviceInfo& info() const noexcept { return driver_->info(); }
    Driver& driver() noexcept { return *driver_; }
    Launcher& launcher() noexcept { return launcher_; }
    const std::shared_ptr<Stream>& default_stream() noexcept { return default_stream_; }
    void synchronize();

    // A kernel that reads a wrong address, and failures like it, break the device for the whole process:
    // every later call fails. From then on launches are refused at once, with DeviceLostError.
    bool lost() const noexcept { return lost_.load(std::memory_order_acquire); }
    void check_lost() const {
        if (lost()) [[unlikely]]
            throw_lost();
    }
    // A call to the driver: where it fails for good, the device is lost.
    template <class Call>
    auto watched(Call&& call) {
        try {
            return call(*driver_);
        } catch (const DriverError& failure) {
            note(failure);
            throw;
        }
    }

    // The device's one T, a DeviceAttachment that is made from the device by whoever asks first.
    template <class T>
    T& attached() {
        static const int kind = next_attachment_kind();
        if (DeviceAttachment* known = attachments_[kind].load(std::memory_order_acquire)) {
            return static_cast<T&>(*known);
        }
        return static_cast<T&>(attach(kind, [this] { return std::make_unique<T>(*this); }));
    }

   private:
    void note(const DriverError& failure) noexcept;
    [[noreturn]] void throw_lost() const;

    static constexpr int kMaxAttachments = 16;
    static int next_attachment_kind();
    DeviceAttachment& attach(int kind, const std::function<std::unique_ptr<DeviceAttachment>()>& make);

    int slot_;
    std::string name_;
    std::unique_ptr<Driver> driver_;
    Launcher launcher_;
    std::shared_ptr<Stream> default_stream_;
    std::atomic<bool> lost_{false};
    mutable std::mutex lost_mutex_;
    std::unique_ptr<const DeviceLostError> first_failure_;
    std::recursive_mutex attach_mutex_;  // one attachment may ask for another while it is made
    std::vector<std::unique_ptr<DeviceAttachment>> attached_;  // destroyed last first
    std::atomic<DeviceAttachment*> attachments_[kMaxAttachments] = {};
};

// Kernels cache their functions for the devices in the first slots; later ones (tests) ask the driver.
inline constexpr int kCachedDevices = 16;

// "cpu", "cuda" (the first GPU) or "cuda:1". Throws Error (value) for another form and Error
// (unsupported), with the reason, where there is no such device. Devices live as
// long as the process.
Device& device(std::string_view name);

// The calling thread's device: set_device's, else the one set by the process (PYGPUKIT_DEVICE), else
// the first GPU, else the simulated device with one warning that says why.
Device& current_device();
void set_device(Device& device);

// Adds a device with a driver of its own, for tests: a second simulated GPU, with faults or a seed.
Device& add_device(std::string name, std::unique_ptr<Driver> driver);
// Takes such a device away again; nothing of it may be alive.
void remove_device(Device& device);
std::vector<std::string> device_names();  // those opened so far

// Why no GPU can be used here; empty when one can. Does not warn.
std::string why_no_cuda();
int cuda_device_count();  // usable ones; 0 without a driver

}  // namespace gpk
