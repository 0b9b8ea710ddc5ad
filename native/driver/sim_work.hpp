// One piece of work for the simulated device: a kernel's host twin, a copy or a fill.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "driver/driver.hpp"

namespace gpk {

class SimVirtualMemory;

struct SimPartition {
    std::vector<int> groups;
    bool alive = true;
};

// The SM groups on which the kernel runs whose host twin asks; empty: on all, or no kernel runs here.
std::span<const int> sim_running_groups() noexcept;

// Virtual memory that a piece of work uses, and the newest map in it when the work was queued.
struct SimTouch {
    DevicePtr address;
    std::size_t bytes;
    std::uint64_t newest_map;
};

// What work takes of the device, on a virtual clock. Copy engines look at the bytes alone.
struct SimCost {
    double flops = 0;
    double bytes = 0;  // read and written in device memory
};

struct SimWork {
    enum class Kind : std::uint8_t { kernel, copy, fill };
    // What carries it out: the SMs, or a copy engine.
    enum class Engine : std::uint8_t { sms, to_device, to_host };

    Kind kind = Kind::copy;
    Engine engine = Engine::sms;
    SimCost cost = {};
    std::uint8_t value = 0;    // fill
    LaunchConfig config = {};  // kernel
    HostTwin twin = nullptr;
    const void* from = nullptr;  // the copy's source, or the kernel's parameters
    void* to = nullptr;
    std::size_t bytes = 0;  // at `to`, or of the parameters
    std::shared_ptr<const void> owned = nullptr;
    std::shared_ptr<const SimPartition> partition = nullptr;
    const SimVirtualMemory* virtual_memory = nullptr;  // checked for `touches`
    std::vector<SimTouch> touches = {};

    static SimWork kernel(HostTwin twin, const LaunchConfig& config, const void* params, std::size_t bytes) {
        return {.kind = Kind::kernel, .config = config, .twin = twin, .from = params, .bytes = bytes};
    }
    static SimWork copy(Engine engine, void* to, const void* from, std::size_t bytes) {
        return {.kind = Kind::copy,
                .engine = engine,
                .cost = {.bytes = static_cast<double>(bytes) * (engine == Engine::sms ? 2 : 1)},
                .from = from,
                .to = to,
                .bytes = bytes};
    }
    static SimWork fill(void* to, std::uint8_t value, std::size_t bytes) {
        return {.kind = Kind::fill,
                .cost = {.bytes = static_cast<double>(bytes)},
                .value = value,
                .to = to,
                .bytes = bytes};
    }

    // Takes a copy of what `from` points at, so that the work may run after its caller has gone on.
    void own_source();
    void run() const;
};

}  // namespace gpk
