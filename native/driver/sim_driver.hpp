// SimDriver: a simulated GPU on the host. It is what a machine without a GPU runs on, and the test bench
// for everything above Driver.
//
// Immediate mode (default): an operation runs on the calling thread before the call returns. Interleaved
// mode: operations queue, and run when somebody waits, in an order that a seed picks among all that
// streams and events allow; a missing wait then shows as a wrong result that the seed repeats.
#pragma once

#include <array>
#include <atomic>
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
#include "driver/sim_capture.hpp"
#include "driver/sim_memory.hpp"
#include "driver/sim_queue.hpp"

namespace gpk {

struct SimOptions {
    // The device's memory; 0 means PYGPUKIT_SIM_MEMORY ("4GiB"), else 3/4 of the machine's.
    std::size_t memory_bytes = 0;
    bool interleaved = false;
    std::uint64_t seed = 0;
};

// The `nth` call (from 1) of the Driver method `call` fails before it does anything. A sticky fault
// breaks the device, as a fault in a real kernel does: every later call fails the same way.
struct Fault {
    std::string call;
    int nth = 1;
    int code = 0;
    std::string code_name;
    bool sticky = false;
};

// The methods of Driver that are counted and may fail.
enum class SimCall : std::uint8_t {
    memory_info,
    synchronize,
    allocate,
    free,
    allocate_host,
    free_host,
    copy_to_device,
    copy_to_host,
    copy_on_device,
    fill,
    stream_create,
    stream_destroy,
    stream_synchronize,
    stream_query,
    stream_wait_event,
    event_create,
    event_destroy,
    event_record,
    event_query,
    event_synchronize,
    event_elapsed_ms,
    function,
    unload,
    function_info,
    launch,
    capture_begin,
    capture_end,
    graph_launch,
    graph_destroy,
    graph_node_count,
};
inline constexpr std::size_t kSimCallCount = 30;

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

    void capture_begin(StreamHandle stream) override;
    GraphHandle capture_end(StreamHandle stream) override;
    void graph_launch(GraphHandle graph, StreamHandle stream) override;
    void graph_destroy(GraphHandle graph) noexcept override;
    std::size_t graph_node_count(GraphHandle graph) override;

    // Replaces the plan, mends a device that a sticky fault broke, and counts calls from 0 again. Throws
    // Error (value) for a call that Driver does not have or that cannot fail.
    void set_faults(const std::vector<Fault>& faults);
    // Since the last set_faults, every method of Driver that is counted.
    std::map<std::string, int> call_counts() const;

    std::size_t live_allocations() const { return memory_.live_allocations(); }
    std::size_t live_host_allocations() const { return memory_.live_host_allocations(); }
    std::size_t host_bytes() const { return memory_.host_bytes(); }  // pinned
    std::size_t bytes_in_use() const;
    std::uint64_t invalid_frees() const { return memory_.invalid_frees(); }
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

    void enter(SimCall call);  // counts, and throws what the plan says
    void count(SimCall call) noexcept;
    void check_launch(const Function& function, const LaunchConfig& config, std::size_t params_bytes) const;
    // Runs, queues or records `work`, whichever the stream's state asks for. `wait`: until it ran.
    void submit(SimCall call, StreamHandle stream, SimWork work, bool keep_source, bool wait);
    void refuse_pageable(const char* call, StreamHandle stream);  // where it is capturing
    void drain();                                                 // waits for all streams
    void refuse_captures(const char* call);                       // for what no capture under way allows

    DeviceInfo info_;
    const bool interleaved_;
    SimMemory memory_;

    mutable std::mutex mutex_;  // over all below; never held while work runs in immediate mode
    SimScheduler scheduler_;
    std::unordered_map<StreamHandle, std::shared_ptr<SimStream>> streams_;
    std::unordered_map<EventHandle, std::shared_ptr<SimEvent>> events_;
    std::unordered_map<GraphHandle, std::shared_ptr<SimGraph>> graphs_;
    std::map<std::pair<const void*, std::string>, std::unique_ptr<Function>> functions_;

    std::array<std::atomic<int>, kSimCallCount> counts_{};
    std::atomic<bool> planned_{false};
    mutable std::mutex plan_mutex_;
    std::vector<Fault> plan_;
    std::optional<Fault> broken_;
};

std::unique_ptr<SimDriver> make_sim_driver(const SimOptions& options = {});

}  // namespace gpk
