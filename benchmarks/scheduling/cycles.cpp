// Things made and undone again and again: the device's free memory must come back to the byte.
#include <cmath>

#include "base/error.hpp"
#include "harness.hpp"
#include "kernels.hpp"
#include "memory/pool.hpp"
#include "scheduler/partition.hpp"

namespace bench {

namespace {

double free_bytes(gpk::Device& device) {
    device.synchronize();
    gpk::MemoryPool::of(device).trim();
    return static_cast<double>(device.driver().memory_info().free_bytes);
}

// `once` some times to warm up, then `count` times; rows of the bytes that did not come back and of its time.
void cycle(const Section& section, const std::string& what, int count, const std::function<void()>& once,
           const std::function<double()>& error) {
    for (int i = 0; i < 3; ++i) once();
    const double before = free_bytes(section.device);
    std::vector<double> times_us;
    for (int i = 0; i < count && !section.out_of_time(); ++i) times_us.push_back(seconds_of(once) * 1e6);
    const double after = free_bytes(section.device);
    section.row({.name = gpk::str("bytes that did not come back, ", what),
                 .value = std::abs(before - after),
                 .unit = "bytes",
                 .error = error(),
                 .goal = at_most(0),
                 .figures = {{"cycles", static_cast<double>(times_us.size())},
                             {"a cycle, p50 us", median(times_us)},
                             {"a cycle, p99 us", quantile(times_us, 0.99)}}});
}

void cycle_partitions(const Section& section, const Kernels& kernels) {
    constexpr std::uint32_t kBlocks = 64;
    gpk::Device& device = section.device;
    gpk::PartitionManager& manager = gpk::PartitionManager::of(device);
    const Memory counts(device, (kMostSms + 2) * sizeof(std::uint64_t));
    gpk::Stream& plain = *device.default_stream();
    device.launcher().fill(plain, counts.pointer(), 0, counts.bytes());
    plain.synchronize();
    std::uint64_t launched = 0;
    const auto once = [&] {
        const auto partition = manager.create_anonymous("cycled", gpk::PartitionLimits().compute(0.5));
        const auto stream = partition->enter();
        kernels.record_smid.launch(
            *stream, {.grid = {kBlocks}, .block = {32}},
            RecordSmidParams{counts.as<std::uint64_t>(), counts.as<std::uint64_t>() + kMostSms});
        launched += kBlocks;
        stream->synchronize();
        partition->leave(stream);
    };
    cycle(section, "a partition made, used and destroyed", section.options.sized(1000, 3), once, [&] {
        std::vector<std::uint64_t> found(kMostSms);
        device.launcher().copy_to_host(plain, found.data(), counts.pointer(),
                                       found.size() * sizeof(found[0]));
        plain.synchronize();
        double blocks = 0;
        for (const std::uint64_t count : found) blocks += static_cast<double>(count);
        return std::abs(blocks - static_cast<double>(launched)) / static_cast<double>(launched);
    });
}

}  // namespace

void measure_cycles(Section& section) {
    const Kernels kernels(section.device);
    cycle_partitions(section, kernels);
}

}  // namespace bench
