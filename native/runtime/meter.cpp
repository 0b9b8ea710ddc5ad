#include "runtime/meter.hpp"

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>

#include "base/clock.hpp"
#include "base/platform.hpp"
#include "runtime/device.hpp"
#include "runtime/tenant.hpp"

namespace gpk {

namespace {

struct Registry {
    std::mutex mutex;
    std::map<MeterLabels, std::unique_ptr<Meter>> meters;
};

std::atomic<Registry*> current{nullptr};

// Never destroyed: streams may outlive static objects. A child process counts anew, with a lock that no
// thread of its parent holds; meters that objects of the parent point to stay.
Registry& registry() {
    [[maybe_unused]] static const bool made = [] {
        current.store(new Registry);
        platform::on_fork_in_child([] { current.store(new Registry); });
        return true;
    }();
    return *current.load(std::memory_order_acquire);
}

}  // namespace

void Meter::worked(const WorkRecord& work) noexcept {
    if (work.captured) return add(Count::captured_work);
    add(static_cast<Count>(work.kind));
    const auto bytes = work.cost.bytes > 0 ? static_cast<std::uint64_t>(std::min(work.cost.bytes, 1e18)) : 0;
    add(Count::declared_bytes, bytes);
    switch (work.kind) {
        case WorkKind::copy_to_device: add(Count::to_device_bytes, bytes); break;
        case WorkKind::copy_to_host: add(Count::to_host_bytes, bytes); break;
        case WorkKind::copy_on_device: add(Count::on_device_bytes, bytes / 2); break;  // read and written
        default: break;
    }
}

void Meter::launch_took(std::int64_t ns) noexcept {
    const auto bucket = std::lower_bound(kLaunchBoundsNs.begin(), kLaunchBoundsNs.end(), ns);
    launches_[static_cast<std::size_t>(bucket - kLaunchBoundsNs.begin())].fetch_add(
        1, std::memory_order_relaxed);
    launch_ns_.fetch_add(static_cast<std::uint64_t>(std::max<std::int64_t>(ns, 0)),
                         std::memory_order_relaxed);
}

Meter& meter_of(const Device& device, const Tenant* tenant) {
    MeterLabels labels{device.name(), {}, {}};
    if (tenant != nullptr) {
        if (const Tenant* shown = tenant->shown()) labels.partition = shown->name();
        labels.qos = to_string(tenant->qos());
    }
    Registry& all = registry();
    std::lock_guard lock(all.mutex);
    if (const auto known = all.meters.find(labels); known != all.meters.end()) return *known->second;
    if (!labels.partition.empty() && all.meters.size() >= kMeterLimit) labels.partition = "(others)";
    auto& meter = all.meters[std::move(labels)];
    if (!meter) meter = std::make_unique<Meter>();
    return *meter;
}

std::vector<MeterEntry> meters() {
    Registry& all = registry();
    std::lock_guard lock(all.mutex);
    std::vector<MeterEntry> entries;
    for (const auto& [labels, meter] : all.meters) entries.push_back({labels, meter.get()});
    return entries;
}

HostWait::HostWait(Meter& meter) noexcept : meter_(meter), start_ns_(steady_clock().now_ns()) {}

HostWait::~HostWait() {
    meter_.add(Count::host_waits);
    meter_.add(Count::host_wait_ns, static_cast<std::uint64_t>(steady_clock().now_ns() - start_ns_));
}

}  // namespace gpk
