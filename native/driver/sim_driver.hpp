// SimDriver: a simulated GPU on the host. It is what a machine without a GPU runs on, and the test bench
// for everything above Driver.
//
// Immediate mode (default): an operation runs on the calling thread before the call returns. Interleaved
// mode: operations queue, and run when somebody waits, in an order that a seed picks among all that
// streams and events allow; a missing wait then shows as a wrong result that the seed repeats. With a virtual
// clock: operations take simulated time, which moves when somebody waits.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "driver/driver.hpp"
#include "driver/sim_calls.hpp"
#include "driver/sim_capture.hpp"
#include "driver/sim_memory.hpp"
#include "driver/sim_queue.hpp"
#include "driver/sim_timeline.hpp"
#include "driver/sim_virtual_memory.hpp"

namespace gpk {

struct SimOptions {
    // The device's memory; 0 means PYGPUKIT_SIM_MEMORY ("4GiB"), else 3/4 of the machine's.
    std::size_t memory_bytes = 0;
    bool interleaved = false;
    std::uint64_t seed = 0;
    // Of the virtual memory calls: a power of two of at least a page; 0 for a driver that has none.
    std::size_t physical_granularity = std::size_t{2} << 20;
    // 0: at least the host's threads. SM partitions are made of groups of `sm_group_size` (0: a 16th); what
    // is left over is not offered.
    int multiprocessors = 0;
    int sm_group_size = 0;
    bool sm_partitions = true;  // false: as a driver without green contexts
    // Work takes the time that the rates give it, on this clock; see driver/sim_timeline.hpp. Not together
    // with interleaved mode.
    std::shared_ptr<VirtualClock> clock = nullptr;
    SimRates rates = {};
};

class SimDriver final : public Driver {
   public:
    explicit SimDriver(const SimOptions& options);
    ~SimDriver() override;

    std::string_view kind() const noexcept override { return "cpu"; }
    const DeviceInfo& info() const noexcept override { return info_; }
    MemoryInfo memory_info() override;
    void synchronize() override;

    DevicePtr allocate(std::size_t bytes) override;
    void free(DevicePtr pointer) noexcept override;
    void* allocate_host(std::size_t bytes) override;
    void free_host(void* pointer) noexcept override;

    void copy_to_device(StreamHandle stream, DevicePtr to, const void* from, std::size_t bytes) override;
    void copy_to_host(StreamHandle stream, void* to, DevicePtr from, std::size_t bytes) override;
    void copy_on_device(StreamHandle stream, DevicePtr to, DevicePtr from, std::size_t bytes) override;
    void fill(StreamHandle stream, DevicePtr to, std::uint8_t value, std::size_t bytes) override;

    DevicePtr reserve_address(std::size_t bytes) override;
    void release_address(DevicePtr address, std::size_t bytes) noexcept override;
    PhysicalHandle physical_create(std::size_t bytes) override;
    void physical_destroy(PhysicalHandle physical) noexcept override;
    void map(DevicePtr address, PhysicalHandle physical, std::size_t bytes) override;
    void allow_access(DevicePtr address, std::size_t bytes) override;
    void unmap(DevicePtr address, std::size_t bytes) noexcept override;
    void admit(DevicePtr pointer, std::size_t bytes) override;
    void dismiss(DevicePtr pointer, std::size_t bytes) noexcept override;

    SmPartitionHandle sm_partition_create(std::span<const int> groups) override;
    void sm_partition_destroy(SmPartitionHandle partition) noexcept override;

    StreamHandle stream_create(int priority, SmPartitionHandle within = nullptr) override;
    void stream_destroy(StreamHandle stream) noexcept override;
    void stream_synchronize(StreamHandle stream) override;
    bool stream_query(StreamHandle stream) override;
    void stream_wait_event(StreamHandle stream, EventHandle event) override;

    EventHandle event_create(bool timing) override;
    void event_destroy(EventHandle event) noexcept override;
    void event_record(EventHandle event, StreamHandle stream) override;
    bool event_query(EventHandle event) override;
    void event_synchronize(EventHandle event) override;
    float event_elapsed_ms(EventHandle start, EventHandle end) override;

    FunctionHandle function(const KernelDef& def) override;
    void unload(const Image& image) noexcept override;
    FunctionInfo function_info(FunctionHandle function) override;
    void launch(StreamHandle stream, FunctionHandle function, const LaunchConfig& config, const void* params,
                std::size_t params_bytes) override;
    // No host twin reads what it gives; that the tensor lies in device memory is checked as well.
    TensorMap tensor_map(const TensorMapDef& def) override;

    void capture_begin(StreamHandle stream) override;
    GraphHandle capture_end(StreamHandle stream) override;
    void graph_launch(GraphHandle graph, StreamHandle stream) override;
    void graph_destroy(GraphHandle graph) noexcept override;
    std::size_t graph_node_count(GraphHandle graph) override;

    // Replaces the plan, mends a device that a sticky fault broke (what was queued or captured on it is
    // gone), and counts calls from 0 again. Throws Error (value) for a call that Driver does not have or that
    // cannot fail.
    void set_faults(const std::vector<Fault>& faults);
    // Since the last set_faults, every method of Driver that is counted.
    std::map<std::string, int> call_counts() const { return calls_.counts(); }

    // With a virtual clock: what the calling thread's next launch takes of the device. Without it, nothing
    // but the launch's latency.
    static void expect_cost(const SimCost& cost) noexcept;
    // When the next piece of work ends if none is added; none where nothing runs, or without a virtual clock.
    std::optional<std::int64_t> next_end_ns();

    std::size_t live_allocations() const { return memory_.live_allocations(); }
    std::size_t live_host_allocations() const { return memory_.live_host_allocations(); }
    std::size_t admitted() const { return memory_.admitted(); }      // ranges of other libraries
    std::size_t host_bytes() const { return memory_.host_bytes(); }  // pinned
    std::size_t bytes_in_use() const;
    std::size_t live_reservations() const { return virtual_memory_.live_reservations(); }
    std::size_t live_physical() const { return virtual_memory_.live_physical(); }
    std::size_t live_sm_partitions() const;
    // Frees, unmaps, destroys and releases of what was not there to give back.
    std::uint64_t invalid_frees() const { return memory_.invalid_frees(); }
    // The SM groups that a stream's work runs on; empty for all. A host twin asks sim_running_groups().
    std::vector<int> sm_groups_of(StreamHandle stream) const;
    std::size_t live_streams() const;
    std::size_t live_events() const;
    std::size_t live_graphs() const;
    std::size_t live_functions() const;

   private:
    struct Function {
        std::string name;
        HostTwin twin;
        std::uint32_t max_shared_bytes;
        const Image* image;
    };
    using Lock = std::unique_lock<std::mutex>;

    void check_launch(const Function& function, const LaunchConfig& config, std::size_t params_bytes) const;
    // Runs, queues or records `work`, whichever the stream's state asks for. `wait`: until it ran.
    void submit(SimCall call, StreamHandle stream, SimWork work, bool keep_source, bool wait);
    const std::shared_ptr<SimStream>& stream_of(const char* call, StreamHandle handle) const;
    void note_touches(SimWork& work, bool captured) const;
    void check_device_range(const char* call, DevicePtr pointer, std::size_t bytes) const;
    Lock between_work() const;
    void refuse_pageable(const char* call, StreamHandle stream);  // where it is capturing
    void drain();                                                 // waits for all streams
    void refuse_captures(const char* call);                       // for what no capture under way allows

    DeviceInfo info_;
    SimMemory memory_;
    SimVirtualMemory virtual_memory_;

    mutable std::mutex mutex_;         // over all below; never held while work runs in immediate mode
    std::unique_ptr<SimQueue> queue_;  // null in immediate mode
    std::unordered_map<StreamHandle, std::shared_ptr<SimStream>> streams_;
    std::unordered_map<SmPartitionHandle, std::shared_ptr<SimPartition>> partitions_;
    std::unordered_map<EventHandle, std::shared_ptr<SimEvent>> events_;
    std::unordered_map<GraphHandle, std::shared_ptr<SimGraph>> graphs_;
    std::map<std::pair<const void*, std::string>, std::unique_ptr<Function>> functions_;

    SimCalls calls_;
};

std::unique_ptr<SimDriver> make_sim_driver(const SimOptions& options = {});

}  // namespace gpk
