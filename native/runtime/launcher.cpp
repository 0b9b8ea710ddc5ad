#include "runtime/launcher.hpp"

#include <algorithm>
#include <utility>

#include "base/clock.hpp"
#include "runtime/device.hpp"
#include "runtime/graph.hpp"
#include "runtime/kernel.hpp"
#include "runtime/meter.hpp"
#include "runtime/observe.hpp"
#include "runtime/stream.hpp"
#include "runtime/tenant.hpp"

namespace gpk {

template <class Call>
void Launcher::submit(const WorkRecord& work, Call&& call) {
    if (Graph* graph = work.stream->capture()) graph->add_cost(work.cost);
    const Tenant* tenant = work.stream->tenant().get();
    LaunchHook* governor = tenant != nullptr ? tenant->governor() : nullptr;
    Meter& meter = work.stream->meter();
    const bool timed = work.kind == WorkKind::kernel && !work.captured && meter.time_this_launch();
    const std::int64_t start_ns = timed ? steady_clock().now_ns() : 0;
    try {
        device_.check_lost();
        if (governor != nullptr || hooked_.load(std::memory_order_acquire) || observe::listening()) {
            submit_asking(work, governor, std::forward<Call>(call));
        } else {
            device_.watched([&](Driver& driver) { call(driver, work.stream->handle()); });
        }
    } catch (...) {
        meter.add(Count::refused_work);
        throw;
    }
    if (timed) meter.launch_took(steady_clock().now_ns() - start_ns);
    meter.worked(work);
}

template <class Call>
void Launcher::submit_asking(const WorkRecord& work, LaunchHook* governor, Call&& call) {
    observe::Span span(observe::Topic::work, work.name, *work.stream, &work);
    std::shared_ptr<const Hooks> hooks;
    if (hooked_.load(std::memory_order_acquire)) {
        std::lock_guard lock(hook_mutex_);
        hooks = hooks_;
    }
    const std::size_t count = hooks ? hooks->size() : 0;
    std::size_t asked = 0;
    bool governed = false, queued = false;
    const auto tell = [&] {
        if (governed) governor->after(work, queued);
        while (asked > 0) (*hooks)[--asked]->after(work, queued);
    };
    try {
        for (; asked < count; ++asked) (*hooks)[asked]->before(work);
        if (governor != nullptr) governor->before(work);
        governed = governor != nullptr;
        span.queueing();
        device_.watched([&](Driver& driver) { call(driver, work.stream->handle()); });
        queued = true;
        span.queued();
    } catch (...) {
        tell();
        throw;
    }
    tell();
}

void Launcher::add_hook(std::shared_ptr<LaunchHook> hook) {
    std::lock_guard lock(hook_mutex_);
    auto hooks = hooks_ ? std::make_shared<Hooks>(*hooks_) : std::make_shared<Hooks>();
    hooks->push_back(std::move(hook));
    hooks_ = std::move(hooks);
    hooked_.store(true, std::memory_order_release);
}

void Launcher::remove_hook(const LaunchHook* hook) {
    std::lock_guard lock(hook_mutex_);
    if (!hooks_) return;
    auto hooks = std::make_shared<Hooks>(*hooks_);
    std::erase_if(*hooks, [&](const auto& each) { return each.get() == hook; });
    hooked_.store(!hooks->empty(), std::memory_order_release);
    hooks_ = std::move(hooks);
}

void Launcher::launch(Stream& stream, const Kernel& kernel, const LaunchConfig& config, const void* params,
                      std::size_t params_bytes, const Cost& cost) {
    const FunctionHandle function = kernel.on(device_);
    submit({WorkKind::kernel, kernel.name(), &stream, config, cost, stream.capture() != nullptr},
           [&](Driver& driver, StreamHandle handle) {
               driver.launch(handle, function, config, params, params_bytes);
           });
}

void Launcher::copy_to_device(Stream& stream, DevicePtr to, const void* from, std::size_t bytes) {
    if (bytes == 0) return;
    const Cost cost{.bytes = static_cast<double>(bytes)};
    submit({WorkKind::copy_to_device, "copy_to_device", &stream, {}, cost, stream.capture() != nullptr},
           [&](Driver& driver, StreamHandle handle) { driver.copy_to_device(handle, to, from, bytes); });
}

void Launcher::copy_to_host(Stream& stream, void* to, DevicePtr from, std::size_t bytes) {
    if (bytes == 0) return;
    const Cost cost{.bytes = static_cast<double>(bytes)};
    submit({WorkKind::copy_to_host, "copy_to_host", &stream, {}, cost, stream.capture() != nullptr},
           [&](Driver& driver, StreamHandle handle) { driver.copy_to_host(handle, to, from, bytes); });
}

void Launcher::copy_on_device(Stream& stream, DevicePtr to, DevicePtr from, std::size_t bytes) {
    if (bytes == 0) return;
    const Cost cost{.bytes = 2.0 * static_cast<double>(bytes)};
    submit({WorkKind::copy_on_device, "copy_on_device", &stream, {}, cost, stream.capture() != nullptr},
           [&](Driver& driver, StreamHandle handle) { driver.copy_on_device(handle, to, from, bytes); });
}

void Launcher::fill(Stream& stream, DevicePtr to, std::uint8_t value, std::size_t bytes) {
    if (bytes == 0) return;
    const Cost cost{.bytes = static_cast<double>(bytes)};
    submit({WorkKind::fill, "fill", &stream, {}, cost, stream.capture() != nullptr},
           [&](Driver& driver, StreamHandle handle) { driver.fill(handle, to, value, bytes); });
}

void Launcher::graph(Stream& stream, const Graph& graph) {
    submit({WorkKind::graph, "graph", &stream, {}, graph.cost(), stream.capture() != nullptr},
           [&](Driver& driver, StreamHandle handle) {
               graph.check_place(stream);  // again: the stream may have moved while a governor waited
               driver.graph_launch(graph.handle(), handle);
           });
}

}  // namespace gpk
