// Launcher: the one way to a device. Kernels of ours and of users, copies, fills and graphs all pass
// through submit(), so what watches them (hooks of the device: trace, metrics) and what governs them (the
// governor of the stream's tenant) is asked in one place.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "driver/driver.hpp"
#include "runtime/cost.hpp"

namespace gpk {

class Device;
class Graph;
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
    bool captured;  // recorded into a graph, to run with its launches
};

// Asked before and told after each piece of work, on the thread that queues it.
class LaunchHook {
   public:
    virtual ~LaunchHook() = default;
    // May wait, and may refuse by throwing; the work is then not queued, and hooks that were asked before
    // this one are told so.
    virtual void before(const WorkRecord& work) = 0;
    // `queued`: false where a later hook or the driver refused it.
    virtual void after(const WorkRecord& work, bool queued) noexcept = 0;
    // Of a governor: in how many launches, `most` at the most, a piece of work should go that can be cut. It
    // is asked before the first; each passes before() and after() as any other work.
    virtual std::int64_t slices(const WorkRecord& /*whole*/, std::int64_t /*most*/) { return 1; }
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
    void graph(Stream& stream, const Graph& graph);

    // Hooks of the device see the work of every stream, in the order in which they were added. Work that is
    // under way on other threads when one is removed keeps it until it was told.
    void add_hook(std::shared_ptr<LaunchHook> hook);
    void remove_hook(const LaunchHook* hook);

   private:
    using Hooks = std::vector<std::shared_ptr<LaunchHook>>;

    template <class Call>
    void submit(const WorkRecord& work, Call&& call);
    template <class Call>
    void submit_asking(const WorkRecord& work, LaunchHook* governor, Call&& call);

    Device& device_;
    std::atomic<bool> hooked_{false};  // so that work without a hook reads no more than this
    mutable std::mutex hook_mutex_;
    std::shared_ptr<const Hooks> hooks_;  // never changed, only replaced
};

}  // namespace gpk
