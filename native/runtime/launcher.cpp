#include "runtime/launcher.hpp"

#include <utility>

#include "runtime/device.hpp"
#include "runtime/graph.hpp"
#include "runtime/kernel.hpp"
#include "runtime/stream.hpp"

namespace gpk {

template <class Call>
void Launcher::submit(const WorkRecord& work, Call&& call) {
    if (Graph* graph = work.stream->capture()) graph->add_cost(work.cost);
    const std::shared_ptr<LaunchHook> hook = this->hook();
    if (hook != nullptr) hook->before(work);
    call(device_.driver(), work.stream->handle());
    if (hook != nullptr) hook->after(work);
}

bool Launcher::try_set_hook(std::shared_ptr<LaunchHook> hook) {
    std::lock_guard lock(hook_mutex_);
    if (hook_ != nullptr) return false;
    hook_ = std::move(hook);
    hooked_.store(true, std::memory_order_release);
    return true;
}

void Launcher::clear_hook(const LaunchHook* hook) {
    std::lock_guard lock(hook_mutex_);
    if (hook_.get() != hook) return;
    hook_.reset();
    hooked_.store(false, std::memory_order_release);
}

std::shared_ptr<LaunchHook> Launcher::hook() const {
    if (!hooked_.load(std::memory_order_acquire)) return nullptr;
    std::lock_guard lock(hook_mutex_);
    return hook_;
}

void Launcher::launch(Stream& stream, const Kernel& kernel, const LaunchConfig& config, const void* params,
                      std::size_t params_bytes, const Cost& cost) {
    const FunctionHandle function = kernel.on(device_);
    submit({WorkKind::kernel, kernel.name(), &stream, config, cost},
           [&](Driver& driver, StreamHandle handle) {
               driver.launch(handle, function, config, params, params_bytes);
           });
}

void Launcher::copy_to_device(Stream& stream, DevicePtr to, const void* from, std::size_t bytes) {
    if (bytes == 0) return;
    const Cost cost{.bytes = static_cast<double>(bytes)};
    submit({WorkKind::copy_to_device, "copy_to_device", &stream, {}, cost},
           [&](Driver& driver, StreamHandle handle) { driver.copy_to_device(handle, to, from, bytes); });
}

void Launcher::copy_to_host(Stream& stream, void* to, DevicePtr from, std::size_t bytes) {
    if (bytes == 0) return;
    const Cost cost{.bytes = static_cast<double>(bytes)};
    submit({WorkKind::copy_to_host, "copy_to_host", &stream, {}, cost},
           [&](Driver& driver, StreamHandle handle) { driver.copy_to_host(handle, to, from, bytes); });
}

void Launcher::copy_on_device(Stream& stream, DevicePtr to, DevicePtr from, std::size_t bytes) {
    if (bytes == 0) return;
    const Cost cost{.bytes = 2.0 * static_cast<double>(bytes)};
    submit({WorkKind::copy_on_device, "copy_on_device", &stream, {}, cost},
           [&](Driver& driver, StreamHandle handle) { driver.copy_on_device(handle, to, from, bytes); });
}

void Launcher::fill(Stream& stream, DevicePtr to, std::uint8_t value, std::size_t bytes) {
    if (bytes == 0) return;
    const Cost cost{.bytes = static_cast<double>(bytes)};
    submit({WorkKind::fill, "fill", &stream, {}, cost},
           [&](Driver& driver, StreamHandle handle) { driver.fill(handle, to, value, bytes); });
}

void Launcher::graph(Stream& stream, GraphHandle graph, const Cost& cost) {
    submit({WorkKind::graph, "graph", &stream, {}, cost},
           [&](Driver& driver, StreamHandle handle) { driver.graph_launch(graph, handle); });
}

}  // namespace gpk
