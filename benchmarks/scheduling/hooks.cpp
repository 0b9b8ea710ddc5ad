// What stands between a launch and the driver's call: nothing, a tenant, its governor, the trace. Batches of
// empty kernels in turns; what is added is the median of the differences within a turn.
#include <map>

#include "halves.hpp"
#include "harness.hpp"
#include "kernels.hpp"
#include "runtime/trace.hpp"

namespace bench {

namespace {

constexpr int kBatch = 256;  // fits the device's queue, so no launch waits for an earlier one
constexpr gpk::LaunchConfig kOne = {.grid = {1}, .block = {32}};

// What a governor costs at the least.
class Permissive final : public gpk::LaunchHook {
   public:
    void before(const gpk::WorkRecord&) override {}
    void after(const gpk::WorkRecord&, bool) noexcept override {}
};

struct Mode {
    std::string name;
    std::shared_ptr<gpk::Stream> stream;
    bool past_the_launcher = false;
    bool traced = false;
    double goal_ns = 0;  // added to what `beside` takes
    std::string beside = {};
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
        if (mode.past_the_launcher) {
            for (int i = 0; i < kBatch; ++i) {
                driver.launch(stream.handle(), function, kOne, &params, sizeof(params));
            }
        } else {
            for (int i = 0; i < kBatch; ++i) kernel.launch(stream, kOne, params);
        }
    });
    stream.synchronize();
    return seconds / kBatch * 1e9;
}

}  // namespace

void measure_hooks(Section& section) {
    gpk::Device& device = section.device;
    const Kernels kernels(device);
    const auto plain = gpk::Stream::create_for(nullptr, device);
    const auto with_tenant = gpk::Stream::create_for(tenant_with("tenant"), device);
    const auto governed =
        gpk::Stream::create_for(tenant_with("governed", std::make_shared<Permissive>()), device);
    const std::vector<Mode> modes = {
        {.name = "driver's launch", .stream = plain, .past_the_launcher = true, .beside = ""},
        {.name = "no hook, no tenant", .stream = plain, .goal_ns = 50, .beside = "driver's launch"},
        {.name = "tenant", .stream = with_tenant, .goal_ns = 50, .beside = "driver's launch"},
        {.name = "governor that permits all",
         .stream = governed,
         .goal_ns = 300,
         .beside = "no hook, no tenant"},
        {.name = "trace", .stream = plain, .traced = true, .goal_ns = 300, .beside = "no hook, no tenant"},
        {.name = "trace and governor",
         .stream = governed,
         .traced = true,
         .goal_ns = 300,
         .beside = "no hook, no tenant"},
    };
    std::map<std::string, std::vector<double>> times;
    for (const Mode& mode : modes) batch_ns(device, kernels.nothing, mode);
    const int rounds = section.options.sized(400, 5);
    for (int round = 0; round < rounds && !section.out_of_time(); ++round) {
        for (const Mode& mode : modes) times[mode.name].push_back(batch_ns(device, kernels.nothing, mode));
    }
    for (const Mode& mode : modes) {
        const std::vector<double>& own = times[mode.name];
        if (mode.beside.empty()) {
            section.row({.name = mode.name,
                         .value = median(own),
                         .unit = "ns",
                         .low = quantile(own, 0.05),
                         .high = quantile(own, 0.95)});
            continue;
        }
        std::vector<double> added;
        for (std::size_t i = 0; i < own.size(); ++i) added.push_back(own[i] - times[mode.beside][i]);
        section.row({.name = mode.name + ", added to " + mode.beside,
                     .value = median(added),
                     .unit = "ns",
                     .low = quantile(added, 0.05),
                     .high = quantile(added, 0.95),
                     .goal = at_most(mode.goal_ns),
                     .figures = {{"a launch ns", median(own)}}});
    }
}

}  // namespace bench
