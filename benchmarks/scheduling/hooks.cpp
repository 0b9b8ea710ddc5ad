// What stands between a launch and the driver's call: nothing, a tenant, its partition's governor, a
// dispatcher, the trace. Batches of empty kernels in turns; what is added is the median of the differences
// within a turn.
#include <map>

#include "halves.hpp"
#include "harness.hpp"
#include "kernels.hpp"
#include "runtime/trace.hpp"
#include "scheduler/dispatch.hpp"

namespace bench {

namespace {

constexpr int kBatch = 256;  // fits the device's queue, so no launch waits for an earlier one
constexpr gpk::LaunchConfig kOne = {.grid = {1}, .block = {32}};
constexpr const char* kBare = "driver's launch";

struct Mode {
    std::string name;
    std::shared_ptr<gpk::Stream> stream;
    double goal_ns = 0;  // added to the driver's launch
    bool traced = false;
    gpk::KernelDispatcher* dispatcher = nullptr;
};

double batch_ns(gpk::Device& device, const BenchKernel& kernel, const Mode& mode) {
    const NothingParams params{0, 1.0f, 16};
    gpk::Stream& stream = *mode.stream;
    std::unique_ptr<gpk::Trace> trace;
    if (mode.traced) trace = std::make_unique<gpk::Trace>(device);
    const gpk::FunctionHandle function = kernel.kernel().on(device);
    gpk::Driver& driver = device.driver();
    for (int i = 0; i < 8; ++i) kernel.launch(stream, kOne, params);  // makes the trace's buffer
    stream.synchronize();
    const double seconds = seconds_of([&] {
        if (mode.name == kBare) {
            for (int i = 0; i < kBatch; ++i) {
                driver.launch(stream.handle(), function, kOne, &params, sizeof(params));
            }
        } else if (mode.dispatcher != nullptr) {
            for (int i = 0; i < kBatch; ++i) {
                mode.dispatcher->submit("nothing", [&] { kernel.launch(stream, kOne, params); });
            }
        } else {
            for (int i = 0; i < kBatch; ++i) kernel.launch(stream, kOne, params);
        }
    });
    if (mode.dispatcher != nullptr) mode.dispatcher->synchronize();
    stream.synchronize();
    return seconds / kBatch * 1e9;
}

// A tenant whose launches are counted against a share of the bandwidth, none of which these kernels take: in
// a partition, or, where the driver does not say how much there is, with an engine alone.
std::shared_ptr<gpk::Tenant> shared_tenant(gpk::Device& device, std::shared_ptr<gpk::Partition>& partition) {
    if (device.info().memory_bandwidth > 0) {
        partition = gpk::PartitionManager::of(device).create_anonymous(
            "share", gpk::PartitionLimits().bandwidth(0.9).qos(gpk::QosClass::best_effort));
        return partition->tenant();
    }
    return tenant_with("share",
                       std::make_shared<gpk::KernelPacingEngine>(
                           device, gpk::PacingConfig{.bandwidth_share = 0.9, .device_bandwidth = 1e12}));
}

}  // namespace

void measure_hooks(Section& section) {
    gpk::Device& device = section.device;
    const Kernels kernels(device);
    const auto plain = gpk::Stream::create_for(nullptr, device);
    const auto with_tenant = gpk::Stream::create_for(tenant_with("tenant"), device);
    const auto idle = gpk::PartitionManager::of(device).create_anonymous(
        "no limits", gpk::PartitionLimits().qos(gpk::QosClass::best_effort));
    const auto in_partition = gpk::Stream::create_for(idle->tenant(), device);
    std::shared_ptr<gpk::Partition> share;
    const auto paced = gpk::Stream::create_for(shared_tenant(device, share), device);
    // No launch waits for room.
    gpk::KernelDispatcher dispatcher(device, {.max_outstanding = 1 << 16});
    const std::vector<Mode> modes = {
        {.name = kBare, .stream = plain},
        {.name = "no hook, no tenant", .stream = plain, .goal_ns = 50},
        {.name = "tenant", .stream = with_tenant, .goal_ns = 50},
        {.name = "partition without limits", .stream = in_partition, .goal_ns = 50},
        {.name = "partition with a share", .stream = paced, .goal_ns = 300},
        {.name = "dispatcher", .stream = dispatcher.stream(), .goal_ns = 300, .dispatcher = &dispatcher},
        {.name = "trace", .stream = plain, .goal_ns = 300, .traced = true},
        {.name = "trace, partition with a share", .stream = paced, .goal_ns = 300, .traced = true},
    };
    std::map<std::string, std::vector<double>> times;
    for (const Mode& mode : modes) batch_ns(device, kernels.nothing, mode);
    const int rounds = section.options.sized(400, 5);
    for (int round = 0; round < rounds && !section.out_of_time(); ++round) {
        for (const Mode& mode : modes) times[mode.name].push_back(batch_ns(device, kernels.nothing, mode));
    }
    const std::vector<double>& bare = times[kBare];
    section.row({.name = kBare,
                 .value = median(bare),
                 .unit = "ns",
                 .low = quantile(bare, 0.05),
                 .high = quantile(bare, 0.95)});
    for (std::size_t i = 1; i < modes.size(); ++i) {
        const std::vector<double>& own = times[modes[i].name];
        std::vector<double> added;
        for (std::size_t round = 0; round < own.size(); ++round) added.push_back(own[round] - bare[round]);
        section.row({.name = modes[i].name + ", added",
                     .value = median(added),
                     .unit = "ns",
                     .low = quantile(added, 0.05),
                     .high = quantile(added, 0.95),
                     .goal = at_most(modes[i].goal_ns),
                     .figures = {{"a launch ns", median(own)}}});
    }
}

}  // namespace bench
