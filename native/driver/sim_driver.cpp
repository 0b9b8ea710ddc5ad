#include "driver/sim_driver.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>

#include "base/byte_size.hpp"
#include "base/clock.hpp"
#include "base/log.hpp"
#include "base/parallel.hpp"
#include "base/platform.hpp"
#include "driver/sim_error.hpp"
#include "driver/sim_handles.hpp"

namespace gpk {

using namespace sim_handles;

namespace {

// The limits of every GPU of SM 80 and newer (CUDA programming guide, "Compute capabilities").
constexpr std::uint32_t kMaxGridX = 0x7fffffffu;
constexpr std::uint32_t kMaxGridYZ = 65535;
constexpr std::uint32_t kMaxBlockThreads = 1024;
constexpr std::uint32_t kMaxBlockZ = 64;
constexpr std::uint32_t kMaxCluster = 8;                      // portable
constexpr std::uint64_t kMaxThreads = 2048, kMaxBlocks = 32;  // of a multiprocessor at a time
constexpr std::size_t kSharedBytes = 227 * 1024;
constexpr std::uint32_t kSharedWithoutAsking = 48 * 1024;
constexpr std::size_t kMaxParamsBytes = 32764;
constexpr int kHighestPriority = -5;
constexpr double kMemoryBandwidth = 50e9;  // for shares of it: that of a host of today, roughly

std::size_t memory_of(const SimOptions& options) {
    if (options.memory_bytes != 0) return options.memory_bytes;
    if (const auto wanted = platform::environment("PYGPUKIT_SIM_MEMORY")) {
        return parse_byte_size("PYGPUKIT_SIM_MEMORY", *wanted);
    }
    return platform::physical_memory_bytes() / 4 * 3;
}

// Groups as an H100 has, whatever the host: a program that divides the device finds the same parts here.
constexpr int kDefaultSmGroups = 16;

int multiprocessors_of(const SimOptions& options) {
    if (options.multiprocessors < 0 || options.sm_group_size < 0) {
        throw error(ErrorKind::value, {.call = "SimDriver",
                                       .expected = "multiprocessors and sm_group_size from 0",
                                       .got = str(options.multiprocessors, " and ", options.sm_group_size)});
    }
    if (options.multiprocessors != 0) return options.multiprocessors;
    const int threads = static_cast<int>(parallel_threads());
    return (threads + kDefaultSmGroups - 1) / kDefaultSmGroups * kDefaultSmGroups;
}

void check_rates(const SimOptions& options) {
    const SimRates& rates = options.rates;
    const double all[] = {rates.flops, rates.bytes, rates.bytes_to_device, rates.bytes_to_host};
    const bool sound = std::all_of(std::begin(all), std::end(all),
                                   [](double rate) { return rate >= 0 && std::isfinite(rate); });
    if (sound && rates.launch_ns >= 0 && !options.interleaved) return;
    throw error(ErrorKind::value,
                {.call = "SimDriver",
                 .expected = "finite rates of 0 or more, and no interleaved mode beside a virtual clock",
                 .got = options.interleaved ? "both modes" : "other rates"});
}

// What expect_cost said, for the next piece of work.
thread_local SimCost expected_cost;

void* host(DevicePtr pointer) { return reinterpret_cast<void*>(static_cast<std::uintptr_t>(pointer)); }

}  // namespace

std::unique_ptr<SimDriver> make_sim_driver(const SimOptions& options) {
    return std::make_unique<SimDriver>(options);
}

SimDriver::SimDriver(const SimOptions& options)
    : memory_(memory_of(options), options.interleaved),
      virtual_memory_(memory_, options.physical_granularity) {
    info_.name = "CPU (simulated device)";
    info_.multiprocessors = multiprocessors_of(options);
    info_.physical_granularity = options.physical_granularity;
    info_.sm_group_size =
        options.sm_group_size == 0 ? info_.multiprocessors / kDefaultSmGroups : options.sm_group_size;
    info_.sm_groups = options.sm_partitions ? info_.multiprocessors / std::max(info_.sm_group_size, 1) : 0;
    if (info_.sm_groups == 0) info_.sm_group_size = 0;
    if (options.clock) {
        check_rates(options);
        queue_ = std::make_unique<SimTimeline>(options.clock, options.rates, info_.sm_groups);
    } else if (options.interleaved) {
        queue_ = std::make_unique<SimScheduler>(options.seed);
    }
    info_.max_threads_per_block = kMaxBlockThreads;
    info_.memory_bytes = memory_.capacity();
    info_.shared_bytes_per_block = kSharedBytes;
    info_.memory_bandwidth = kMemoryBandwidth;
    info_.highest_priority = kHighestPriority;
}

SimDriver::~SimDriver() = default;

void SimDriver::set_faults(const std::vector<Fault>& faults) {
    if (!calls_.plan(faults)) return;
    Lock lock(mutex_);
    for (const auto& [handle, stream] : streams_) {
        if (stream->capture) stream->capture->invalidate();
        stream->capture = nullptr;
        stream->tail.clear();
    }
    if (queue_) queue_->discard();
}

// -- Work ----------------------------------------------------------------------------------------------

const std::shared_ptr<SimStream>& SimDriver::stream_of(const char* call, StreamHandle handle) const {
    const auto& stream = find(call, "stream", handle, streams_);
    if (stream->partition && !stream->partition->alive) {
        throw sim_error(call, sim_code::kContextIsDestroyed, "the stream's SM partition was destroyed");
    }
    return stream;
}

void SimDriver::submit(SimCall call, StreamHandle handle, SimWork work, bool keep_source, bool wait) {
    Lock lock(mutex_);
    const auto stream = stream_of(name_of(call), handle);
    work.partition = stream->partition;
    if (stream->capture || queue_ != nullptr) {
        note_touches(work, stream->capture != nullptr);
        if (keep_source) work.own_source();
        if (stream->capture) return stream->capture->add(name_of(call), *stream, std::move(work));
        queue_->push(stream, std::move(work));
        if (!wait) return;
        const auto point = std::make_shared<SimPoint>();
        queue_->push(stream, SimRecord{point});
        return queue_->run_until(name_of(call), [&] { return point->reached; });
    }
    lock.unlock();
    std::lock_guard turn(stream->running);
    work.run();
}

// Work that waits is looked at again when it runs: memory that was unmapped meanwhile is an error of the
// work. A kernel's parameters are searched for addresses. A graph may run after its memory was mapped anew.
void SimDriver::note_touches(SimWork& work, bool captured) const {
    work.virtual_memory = &virtual_memory_;
    const auto touch = [&](const void* begin, std::size_t bytes, bool maybe) {
        const auto address = static_cast<DevicePtr>(reinterpret_cast<std::uintptr_t>(begin));
        if (!virtual_memory_.contains(address)) return;
        // A pointer just past an array is no use of what lies there.
        if (maybe && !virtual_memory_.newest_map(address, 1) && virtual_memory_.newest_map(address - 1, 1))
            return;
        const auto newest = captured ? std::nullopt : virtual_memory_.newest_map(address, bytes);
        work.touches.push_back({address, bytes, newest.value_or(UINT64_MAX)});
    };
    if (work.kind != SimWork::Kind::kernel) {
        touch(work.to, work.bytes, false);
        if (work.kind == SimWork::Kind::copy) touch(work.from, work.bytes, false);
        return;
    }
    const auto* words = static_cast<const std::byte*>(work.from);
    for (std::size_t at = 0; at + sizeof(void*) <= work.bytes; at += sizeof(void*)) {
        const void* word = nullptr;
        std::memcpy(&word, words + at, sizeof word);
        touch(word, 1, true);
    }
}

void SimDriver::copy_to_device(StreamHandle stream, DevicePtr to, const void* from, std::size_t bytes) {
    calls_.enter(SimCall::copy_to_device);
    if (bytes == 0) return;
    check_device_range("copy_to_device", to, bytes);
    const bool pinned = memory_.check_host_range("copy_to_device", from, bytes);
    if (!pinned) refuse_pageable("copy_to_device", stream);
    submit(SimCall::copy_to_device, stream, SimWork::copy(SimWork::Engine::to_device, host(to), from, bytes),
           !pinned, false);
}

void SimDriver::copy_to_host(StreamHandle stream, void* to, DevicePtr from, std::size_t bytes) {
    calls_.enter(SimCall::copy_to_host);
    if (bytes == 0) return;
    check_device_range("copy_to_host", from, bytes);
    const bool pinned = memory_.check_host_range("copy_to_host", to, bytes);
    if (!pinned) refuse_pageable("copy_to_host", stream);
    submit(SimCall::copy_to_host, stream, SimWork::copy(SimWork::Engine::to_host, to, host(from), bytes),
           false, !pinned);
}

void SimDriver::refuse_pageable(const char* call, StreamHandle handle) {
    Lock lock(mutex_);
    const auto& stream = stream_of(call, handle);
    if (stream->capture) stream->capture->refuse(call, "a copy of pageable host memory cannot be captured");
}

void SimDriver::copy_on_device(StreamHandle stream, DevicePtr to, DevicePtr from, std::size_t bytes) {
    calls_.enter(SimCall::copy_on_device);
    if (bytes == 0) return;
    check_device_range("copy_on_device", to, bytes);
    check_device_range("copy_on_device", from, bytes);
    submit(SimCall::copy_on_device, stream, SimWork::copy(SimWork::Engine::sms, host(to), host(from), bytes),
           false, false);
}

void SimDriver::fill(StreamHandle stream, DevicePtr to, std::uint8_t value, std::size_t bytes) {
    calls_.enter(SimCall::fill);
    if (bytes == 0) return;
    check_device_range("fill", to, bytes);
    submit(SimCall::fill, stream, SimWork::fill(host(to), value, bytes), false, false);
}

FunctionHandle SimDriver::function(const KernelDef& def) {
    calls_.enter(SimCall::function);
    if (def.twin == nullptr) {
        throw error(ErrorKind::unsupported, {.call = def.name,
                                             .got = "the kernel has no version for the simulated device",
                                             .fix = "run it on an NVIDIA GPU (device 'cuda')"});
    }
    const void* origin =
        def.image != nullptr ? static_cast<const void*>(def.image) : reinterpret_cast<const void*>(def.twin);
    Lock lock(mutex_);
    auto& known = functions_[{origin, def.name}];
    if (!known) {
        known = std::make_unique<Function>(Function{def.name, def.twin, def.max_shared_bytes, def.image});
    }
    return reinterpret_cast<FunctionHandle>(known.get());
}

void SimDriver::unload(const Image& image) noexcept {
    calls_.count(SimCall::unload);
    Lock lock(mutex_);
    std::erase_if(functions_, [&](const auto& entry) { return entry.second->image == &image; });
}

FunctionInfo SimDriver::function_info(FunctionHandle) {
    calls_.enter(SimCall::function_info);
    return {.max_threads_per_block = info_.max_threads_per_block};
}

void SimDriver::check_launch(const Function& function, const LaunchConfig& config,
                             std::size_t params_bytes) const {
    const Dim3 &grid = config.grid, &block = config.block;
    const auto refuse = [&](SimCode code, const std::string& reason) {
        throw sim_error("launch", code, str("kernel '", function.name, "': ", reason));
    };
    if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > kMaxGridX || grid.y > kMaxGridYZ ||
        grid.z > kMaxGridYZ) {
        refuse(sim_code::kInvalidValue, str("grid ", grid.x, " x ", grid.y, " x ", grid.z));
    }
    const std::uint64_t threads = std::uint64_t{block.x} * block.y * block.z;
    if (threads == 0 || block.x > kMaxBlockThreads || block.y > kMaxBlockThreads || block.z > kMaxBlockZ ||
        threads > kMaxBlockThreads) {
        refuse(sim_code::kInvalidValue, str("block ", block.x, " x ", block.y, " x ", block.z));
    }
    const std::uint32_t shared = std::max(function.max_shared_bytes, kSharedWithoutAsking);
    if (config.shared_bytes > shared || config.shared_bytes > kSharedBytes) {
        refuse(sim_code::kInvalidValue, str(config.shared_bytes, " bytes of shared memory, it may have ",
                                            std::min<std::size_t>(shared, kSharedBytes)));
    }
    if (config.cluster == 0) {
        const std::uint64_t by_threads = kMaxThreads / threads;
        const std::uint64_t by_memory = kSharedBytes / std::max<std::uint64_t>(config.shared_bytes, 1);
        const std::uint64_t room =
            static_cast<std::uint64_t>(info_.multiprocessors) * std::min({by_threads, by_memory, kMaxBlocks});
        const std::uint64_t blocks = std::uint64_t{grid.x} * grid.y * grid.z;
        if (blocks > room)
            refuse(sim_code::kCooperativeTooLarge, str(blocks, " blocks where ", room, " fit"));
    } else if (config.cluster > kMaxCluster || grid.x % config.cluster != 0) {
        refuse(sim_code::kInvalidClusterSize, str("cluster ", config.cluster, " in a grid of ", grid.x));
    }
    if (params_bytes > kMaxParamsBytes) {
        refuse(sim_code::kInvalidValue, str(params_bytes, " bytes of parameters"));
    }
}

void SimDriver::launch(StreamHandle stream, FunctionHandle handle, const LaunchConfig& config,
                       const void* params, std::size_t params_bytes) {
    const SimCost cost = std::exchange(expected_cost, {});
    calls_.enter(SimCall::launch);
    if (handle == nullptr) throw sim_error("launch", sim_code::kInvalidHandle, "no function");
    const auto& function = *reinterpret_cast<const Function*>(handle);
    check_launch(function, config, params_bytes);
    SimWork work = SimWork::kernel(function.twin, config, params, params_bytes);
    work.cost = cost;
    submit(SimCall::launch, stream, std::move(work), true, false);
}

void SimDriver::expect_cost(const SimCost& cost) noexcept { expected_cost = cost; }

std::optional<std::int64_t> SimDriver::next_end_ns() {
    Lock lock(mutex_);
    auto* const timeline = dynamic_cast<SimTimeline*>(queue_.get());
    if (timeline == nullptr) return std::nullopt;
    timeline->run_some();
    return timeline->next_end_ns();
}

// -- Waiting -------------------------------------------------------------------------------------------

void SimDriver::refuse_captures(const char* call) {
    std::shared_ptr<SimCapture> under_way;
    for (const auto& [handle, stream] : streams_) {
        if (!stream->capture) continue;
        under_way = stream->capture;
        under_way->invalidate();
    }
    if (under_way) under_way->refuse(call, "a stream of the device is capturing");
}

void SimDriver::drain() {
    Lock lock(mutex_);
    if (queue_) {
        if (!queue_->drain()) log(LogLevel::warning, "free: the device's queued work is in a deadlock");
        return;
    }
    std::vector<std::shared_ptr<SimStream>> streams;
    for (const auto& [handle, stream] : streams_) streams.push_back(stream);
    lock.unlock();
    for (const auto& stream : streams) std::lock_guard turn(stream->running);
}

void SimDriver::synchronize() {
    calls_.enter(SimCall::synchronize);
    Lock lock(mutex_);
    refuse_captures("synchronize");
    if (queue_) return queue_->run_until("synchronize", [this] { return queue_->idle(); });
    lock.unlock();
    drain();
}

// -- Streams and events --------------------------------------------------------------------------------

StreamHandle SimDriver::stream_create(int priority, SmPartitionHandle within) {
    calls_.enter(SimCall::stream_create);
    auto stream = std::make_shared<SimStream>();
    // Out of range is clamped, as cuStreamCreateWithPriority does.
    stream->priority = std::clamp(priority, info_.highest_priority, info_.lowest_priority);
    Lock lock(mutex_);
    if (within != nullptr) stream->partition = find("stream_create", "SM partition", within, partitions_);
    return keep(std::move(stream), streams_);
}

void SimDriver::stream_destroy(StreamHandle handle) noexcept {
    calls_.count(SimCall::stream_destroy);
    Lock lock(mutex_);
    const auto stream = forget("stream_destroy", handle, streams_);
    if (!stream) return;
    if (stream->capture) stream->capture->invalidate();
    if (stream->partition && !stream->partition->alive) {
        log(LogLevel::warning, "stream_destroy: the stream's SM partition was destroyed before it");
        memory_.count_invalid_free();
    }
    lock.unlock();
    std::lock_guard turn(stream->running);
}

void SimDriver::stream_synchronize(StreamHandle handle) {
    calls_.enter(SimCall::stream_synchronize);
    Lock lock(mutex_);
    const auto stream = stream_of("stream_synchronize", handle);
    if (stream->capture) stream->capture->refuse("stream_synchronize", "the stream is capturing");
    if (queue_) {
        return queue_->run_until("stream_synchronize", [&] { return stream->queue.empty(); });
    }
    lock.unlock();
    std::lock_guard turn(stream->running);
}

bool SimDriver::stream_query(StreamHandle handle) {
    calls_.enter(SimCall::stream_query);
    Lock lock(mutex_);
    const auto stream = stream_of("stream_query", handle);
    if (stream->capture) stream->capture->refuse("stream_query", "the stream is capturing");
    if (queue_) {
        queue_->run_some();
        return stream->queue.empty();
    }
    lock.unlock();
    return std::unique_lock(stream->running, std::try_to_lock).owns_lock();
}

void SimDriver::stream_wait_event(StreamHandle handle, EventHandle event_handle) {
    calls_.enter(SimCall::stream_wait_event);
    Lock lock(mutex_);
    const auto stream = stream_of("stream_wait_event", handle);
    const auto event = find("stream_wait_event", "event", event_handle, events_);
    if (stream->capture || event->capture) return SimCapture::wait("stream_wait_event", stream, *event);
    // In immediate mode what was recorded is done.
    if (queue_ && event->point) queue_->push(stream, SimWait{event->point});
}

EventHandle SimDriver::event_create(bool timing) {
    calls_.enter(SimCall::event_create);
    auto event = std::make_shared<SimEvent>();
    event->timing = timing;
    Lock lock(mutex_);
    return keep(std::move(event), events_);
}

void SimDriver::event_destroy(EventHandle handle) noexcept {
    calls_.count(SimCall::event_destroy);
    Lock lock(mutex_);
    forget("event_destroy", handle, events_);
}

void SimDriver::event_record(EventHandle event_handle, StreamHandle handle) {
    calls_.enter(SimCall::event_record);
    Lock lock(mutex_);
    const auto event = find("event_record", "event", event_handle, events_);
    const auto stream = stream_of("event_record", handle);
    if (stream->capture) return stream->capture->record("event_record", *event, *stream);
    const auto point = std::make_shared<SimPoint>();
    if (!queue_) {
        lock.unlock();
        std::lock_guard turn(stream->running);  // after what runs there now
        lock.lock();
        *point = {.reached = true, .time_ns = steady_clock().now_ns()};
    }
    event->point = point;
    event->capture = nullptr;
    event->nodes.clear();
    if (queue_) queue_->push(stream, SimRecord{point});
}

bool SimDriver::event_query(EventHandle handle) {
    calls_.enter(SimCall::event_query);
    Lock lock(mutex_);
    const auto event = find("event_query", "event", handle, events_);
    if (event->capture) event->capture->refuse_event("event_query");
    if (queue_) queue_->run_some();
    return !event->point || event->point->reached;
}

void SimDriver::event_synchronize(EventHandle handle) {
    calls_.enter(SimCall::event_synchronize);
    Lock lock(mutex_);
    const auto event = find("event_synchronize", "event", handle, events_);
    if (event->capture) event->capture->refuse_event("event_synchronize");
    const auto point = event->point;
    if (queue_ && point) queue_->run_until("event_synchronize", [&] { return point->reached; });
}

float SimDriver::event_elapsed_ms(EventHandle start_handle, EventHandle end_handle) {
    calls_.enter(SimCall::event_elapsed_ms);
    Lock lock(mutex_);
    const auto start = find("event_elapsed_ms", "event", start_handle, events_);
    const auto end = find("event_elapsed_ms", "event", end_handle, events_);
    for (const auto& event : {start, end}) {
        if (event->capture) event->capture->refuse_event("event_elapsed_ms");
        if (!event->timing || !event->point) {
            throw sim_error("event_elapsed_ms", sim_code::kInvalidHandle,
                            event->timing ? "the event was never recorded" : "the event has no timing");
        }
        if (!event->point->reached) {
            throw sim_error("event_elapsed_ms", sim_code::kNotReady, "the event was not reached yet");
        }
    }
    return static_cast<float>(static_cast<double>(end->point->time_ns - start->point->time_ns) * 1e-6);
}

// -- Graphs --------------------------------------------------------------------------------------------

void SimDriver::capture_begin(StreamHandle handle) {
    calls_.enter(SimCall::capture_begin);
    Lock lock(mutex_);
    SimCapture::begin("capture_begin", stream_of("capture_begin", handle));
}

GraphHandle SimDriver::capture_end(StreamHandle handle) {
    calls_.enter(SimCall::capture_end);
    Lock lock(mutex_);
    return keep(SimCapture::end("capture_end", stream_of("capture_end", handle)), graphs_);
}

void SimDriver::graph_launch(GraphHandle graph_handle, StreamHandle handle) {
    calls_.enter(SimCall::graph_launch);
    Lock lock(mutex_);
    const auto graph = find("graph_launch", "graph", graph_handle, graphs_);
    const auto stream = stream_of("graph_launch", handle);
    if (stream->capture) return stream->capture->add("graph_launch", *stream, *graph);
    if (queue_) {
        if (graph->last_launch) queue_->push(stream, SimWait{graph->last_launch});
        queue_->push(stream, SimGraphRun(graph));
        graph->last_launch = std::make_shared<SimPoint>();
        return queue_->push(stream, SimRecord{graph->last_launch});
    }
    lock.unlock();
    std::scoped_lock turn(graph->running, stream->running);
    for (const SimGraph::Node& node : graph->nodes) node.work.run();
}

void SimDriver::graph_destroy(GraphHandle handle) noexcept {
    calls_.count(SimCall::graph_destroy);
    Lock lock(mutex_);
    forget("graph_destroy", handle, graphs_);
}

std::size_t SimDriver::graph_node_count(GraphHandle handle) {
    calls_.enter(SimCall::graph_node_count);
    Lock lock(mutex_);
    return find("graph_node_count", "graph", handle, graphs_)->nodes.size();
}

// -- What is alive -------------------------------------------------------------------------------------

std::size_t SimDriver::live_streams() const {
    Lock lock(mutex_);
    return streams_.size();
}

std::size_t SimDriver::live_events() const {
    Lock lock(mutex_);
    return events_.size();
}

std::size_t SimDriver::live_graphs() const {
    Lock lock(mutex_);
    return graphs_.size();
}

std::size_t SimDriver::live_functions() const {
    Lock lock(mutex_);
    return functions_.size();
}

}  // namespace gpk
