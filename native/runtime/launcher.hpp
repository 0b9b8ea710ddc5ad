// Launcher: the one way to a device. Kernels of ours and of users, copies, fills and graphs all pass
// through submit(), so what watches or governs them (trace, later the scheduler) is asked in one place.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <string_view>

#include "driver/driver.hpp"
#include "runtime/cost.hpp"

namespace gpk {

class Device;
class Kernel;
class Stream;

enum class WorkKind { kernel, copy_to_device, copy_to_host, copy_on_device, fill, graph };

// One piece of work as a hook sees it.
struct WorkRecord {
    WorkKind kind;
    std::string_view name;  // the kernel's, or "copy_to_device" and so on
    const Stream* stream;
    LaunchConfig config;  // of kernels
    Cost cost;
};

// Asked before and told after each piece of work; may wait in before(), must not throw in after().
class LaunchHook {
   public:
    virtual ~LaunchHook() = default;
    virtual void before(const WorkRecord& work) = 0;
    virtual void after(const WorkRecord& work) noexcept = 0;
};

class Launcher {
   public:
    explicit Launcher(Device& device) : device_(device) {}

    void launch(Stream& stream, const Kernel& kernel, const LaunchConfig& config, const void* params,
                std::size_t params_bytes, const Cost& cost);
    // A kernel whose parameters are one struct: every prebuilt kernel.
    template <class Params>
    void launch(Stream& stream, const Kernel& kernel, const LaunchConfig& config, const Params& params,
                const Cost& cost) {
        launch(stream, kernel, config, &params, sizeof(params), cost);
    }

    void copy_to_device(Stream& stream, DevicePtr to, const void* from, std::size_t bytes);
    void copy_to_host(Stream& stream, void* to, DevicePtr from, std::size_t bytes);
    void copy_on_device(Stream& stream, DevicePtr to, DevicePtr from, std::size_t bytes);
    void fill(Stream& stream, DevicePtr to, std::uint8_t value, std::size_t bytes);
    void graph(Stream& stream, GraphHandle graph, const Cost& cost);

    // One hook at a time; false where there is another. Work that is under way on other threads when it is
    // cleared keeps it until it was told.
    bool try_set_hook(std::shared_ptr<LaunchHook> hook);
    void clear_hook(const LaunchHook* hook);
    std::shared_ptr<LaunchHook> hook() const;

   private:
    template <class Call>
    void submit(const WorkRecord& work, Call&& call);

    Device& device_;
    std::atomic<bool> hooked_{false};  // so that work without a hook takes no lock
    mutable std::mutex hook_mutex_;
    std::shared_ptr<LaunchHook> hook_;
};

}  // namespace gpk
