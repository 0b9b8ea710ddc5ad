#include "driver/sim_driver.hpp"

#include <algorithm>

#include "base/byte_size.hpp"
#include "base/log.hpp"
#include "base/parallel.hpp"
#include "base/platform.hpp"
#include "driver/sim_error.hpp"

namespace gpk {

namespace {

struct CallInfo {
    const char* name;
    bool can_fail;
};

// In the order of SimCall.
constexpr CallInfo kCalls[kSimCallCount] = {
    {"memory_info", true},
    {"synchronize", true},
    {"allocate", true},
    {"free", false},
    {"allocate_host", true},
    {"free_host", false},
    {"copy_to_device", true},
    {"copy_to_host", true},
    {"copy_on_device", true},
    {"fill", true},
    {"stream_create", true},
    {"stream_destroy", false},
    {"stream_synchronize", true},
    {"stream_query", true},
    {"stream_wait_event", true},
    {"event_create", true},
    {"event_destroy", false},
    {"event_record", true},
    {"event_query", true},
    {"event_synchronize", true},
    {"event_elapsed_ms", true},
    {"function", true},
    {"unload", false},
    {"function_info", true},
    {"launch", true},
    {"capture_begin", true},
    {"capture_end", true},
    {"graph_launch", true},
    {"graph_destroy", false},
    {"graph_node_count", true},
};

constexpr std::size_t index_of(SimCall call) { return static_cast<std::size_t>(call); }
constexpr const char* name_of(SimCall call) { return kCalls[index_of(call)].name; }
static_assert(index_of(SimCall::graph_node_count) + 1 == kSimCallCount);
static_assert(std::string_view(name_of(SimCall::graph_node_count)) == "graph_node_count");
static_assert(std::string_view(name_of(SimCall::function)) == "function");

// The limits of every GPU of SM 80 and newer (CUDA programming guide, "Compute capabilities").
constexpr std::uint32_t kMaxGridX = 0x7fffffffu;
constexpr std::uint32_t kMaxGridYZ = 65535;
constexpr std::uint32_t kMaxBlockThreads = 1024;
constexpr std::uint32_t kMaxBlockZ = 64;
constexpr std::uint32_t kMaxCluster = 8;  // portable
constexpr std::size_t kSharedBytes = 227 * 1024;
constexpr std::uint32_t kSharedWithoutAsking = 48 * 1024;
constexpr std::size_t kMaxParamsBytes = 32764;
constexpr int kHighestPriority = -5;

std::size_t memory_of(const SimOptions& options) {
    if (options.memory_bytes != 0) return options.memory_bytes;
    if (const auto wanted = platform::environment("PYGPUKIT_SIM_MEMORY")) {
        return parse_byte_size("PYGPUKIT_SIM_MEMORY", *wanted);
    }
    return platform::physical_memory_bytes() / 4 * 3;
}

template <class Handle, class Object>
const std::shared_ptr<Object>& find(const char* call, const char* what, Handle handle,
                                    const std::unordered_map<Handle, std::shared_ptr<Object>>& known) {
    const auto found = known.find(handle);
    if (found == known.end()) {
        throw sim_error(call, sim_code::kInvalidHandle, str("not a live ", what));
    }
    return found->second;
}

// A handle is the object's address.
template <class Handle, class Object>
Handle keep(std::shared_ptr<Object> object, std::unordered_map<Handle, std::shared_ptr<Object>>& known) {
    const auto handle = reinterpret_cast<Handle>(object.get());
    known.emplace(handle, std::move(object));
    return handle;
}

template <class Handle, class Object>
std::shared_ptr<Object> forget(const char* call, Handle handle,
                               std::unordered_map<Handle, std::shared_ptr<Object>>& known) {
    const auto found = known.find(handle);
    if (found == known.end()) {
        log(LogLevel::warning, str(call, ": not a live handle"));
        return nullptr;
    }
    auto object = std::move(found->second);
    known.erase(found);
    return object;
}

void* host(DevicePtr pointer) { return reinterpret_cast<void*>(static_cast<std::uintptr_t>(pointer)); }

}  // namespace

std::unique_ptr<SimDriver> make_sim_driver(const SimOptions& options) {
    return std::make_unique<SimDriver>(options);
}

SimDriver::SimDriver(const SimOptions& options)
    : interleaved_(options.interleaved),
      memory_(memory_of(options), options.interleaved),
      scheduler_(options.seed) {
    info_.name = "CPU (simulated device)";
    info_.multiprocessors = static_cast<int>(parallel_threads());
    info_.max_threads_per_block = kMaxBlockThreads;
    info_.memory_bytes = memory_.capacity();
    info_.shared_bytes_per_block = kSharedBytes;
    info_.highest_priority = kHighestPriority;
}

SimDriver::~SimDriver() = default;

// -- The fault plan and the counts ---------------------------------------------------------------------

void SimDriver::count(SimCall call) noexcept {
    counts_[index_of(call)].fetch_add(1, std::memory_order_relaxed);
}

void SimDriver::enter(SimCall call) {
    const int nth = counts_[index_of(call)].fetch_add(1, std::memory_order_relaxed) + 1;
    if (!planned_.load(std::memory_order_acquire)) return;
    std::lock_guard lock(plan_mutex_);
    if (!broken_) {
        const auto due = std::find_if(plan_.begin(), plan_.end(), [&](const Fault& fault) {
            return fault.nth == nth && fault.call == name_of(call);
        });
        if (due == plan_.end()) return;
        if (!due->sticky) throw DriverError(due->call, due->code, due->code_name, "planned fault");
        broken_ = *due;
    }
    throw DriverError(name_of(call), broken_->code, broken_->code_name, "planned fault, sticky");
}

void SimDriver::set_faults(const std::vector<Fault>& faults) {
    for (const Fault& fault : faults) {
        const auto* known = std::find_if(std::begin(kCalls), std::end(kCalls),
                                         [&](const CallInfo& entry) { return fault.call == entry.name; });
        if (known == std::end(kCalls) || !known->can_fail || fault.nth < 1) {
            throw error(ErrorKind::value, {.call = "set_faults",
                                           .argument = "faults",
                                           .expected = "a call of Driver that can fail, and nth from 1",
                                           .got = str("'", fault.call, "', nth ", fault.nth)});
        }
    }
    std::lock_guard lock(plan_mutex_);
    for (auto& calls : counts_) calls.store(0, std::memory_order_relaxed);
    plan_ = faults;
    broken_.reset();
    planned_.store(!plan_.empty(), std::memory_order_release);
}

std::map<std::string, int> SimDriver::call_counts() const {
    std::map<std::string, int> counts;
    for (std::size_t i = 0; i < kSimCallCount; ++i) {
        counts[kCalls[i].name] = counts_[i].load(std::memory_order_relaxed);
    }
    return counts;
}

// -- Memory --------------------------------------------------------------------------------------------

MemoryInfo SimDriver::memory_info() {
    enter(SimCall::memory_info);
    return memory_.info();
}

std::size_t SimDriver::bytes_in_use() const {
    const MemoryInfo now = memory_.info();
    return now.total_bytes - now.free_bytes;
}

DevicePtr SimDriver::allocate(std::size_t bytes) {
    enter(SimCall::allocate);
    return memory_.allocate(bytes);
}

void SimDriver::free(DevicePtr pointer) noexcept {
    count(SimCall::free);
    drain();
    memory_.free(pointer);
}

void* SimDriver::allocate_host(std::size_t bytes) {
    enter(SimCall::allocate_host);
    return memory_.allocate_host(bytes);
}

void SimDriver::free_host(void* pointer) noexcept {
    count(SimCall::free_host);
    drain();
    memory_.free_host(pointer);
}

// -- Work ----------------------------------------------------------------------------------------------

void SimDriver::submit(SimCall call, StreamHandle handle, SimWork work, bool keep_source, bool wait) {
    Lock lock(mutex_);
    const auto stream = find(name_of(call), "stream", handle, streams_);
    if (stream->capture || interleaved_) {
        if (keep_source) work.own_source();
        if (stream->capture) return stream->capture->add(name_of(call), *stream, std::move(work));
        scheduler_.push(stream, std::move(work));
        if (!wait) return;
        const auto point = std::make_shared<SimPoint>();
        scheduler_.push(stream, SimRecord{point});
        return scheduler_.run_until(name_of(call), [&] { return point->reached; });
    }
    lock.unlock();
    std::lock_guard turn(stream->running);
    work.run();
}

void SimDriver::copy_to_device(StreamHandle stream, DevicePtr to, const void* from, std::size_t bytes) {
    enter(SimCall::copy_to_device);
    if (bytes == 0) return;
    memory_.check_device_range("copy_to_device", to, bytes);
    const bool pinned = memory_.check_host_range("copy_to_device", from, bytes);
    if (!pinned) refuse_pageable("copy_to_device", stream);
    submit(SimCall::copy_to_device, stream, SimWork::copy(host(to), from, bytes), !pinned, false);
}

void SimDriver::copy_to_host(StreamHandle stream, void* to, DevicePtr from, std::size_t bytes) {
    enter(SimCall::copy_to_host);
    if (bytes == 0) return;
    memory_.check_device_range("copy_to_host", from, bytes);
    const bool pinned = memory_.check_host_range("copy_to_host", to, bytes);
    if (!pinned) refuse_pageable("copy_to_host", stream);
    submit(SimCall::copy_to_host, stream, SimWork::copy(to, host(from), bytes), false, !pinned);
}

void SimDriver::refuse_pageable(const char* call, StreamHandle handle) {
    Lock lock(mutex_);
    const auto& stream = find(call, "stream", handle, streams_);
    if (stream->capture) stream->capture->refuse(call, "a copy of pageable host memory cannot be captured");
}

void SimDriver::copy_on_device(StreamHandle stream, DevicePtr to, DevicePtr from, std::size_t bytes) {
    enter(SimCall::copy_on_device);
    if (bytes == 0) return;
    memory_.check_device_range("copy_on_device", to, bytes);
    memory_.check_device_range("copy_on_device", from, bytes);
    submit(SimCall::copy_on_device, stream, SimWork::copy(host(to), host(from), bytes), false, false);
}

void SimDriver::fill(StreamHandle stream, DevicePtr to, std::uint8_t value, std::size_t bytes) {
    enter(SimCall::fill);
    if (bytes == 0) return;
    memory_.check_device_range("fill", to, bytes);
    submit(SimCall::fill, stream, SimWork::fill(host(to), value, bytes), false, false);
}

FunctionHandle SimDriver::function(const KernelDef& def) {
    enter(SimCall::function);
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
    count(SimCall::unload);
    Lock lock(mutex_);
    std::erase_if(functions_, [&](const auto& entry) { return entry.second->image == &image; });
}

FunctionInfo SimDriver::function_info(FunctionHandle) {
    enter(SimCall::function_info);
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
    if (config.cluster == 0 || config.cluster > kMaxCluster || grid.x % config.cluster != 0) {
        refuse(sim_code::kInvalidClusterSize, str("cluster ", config.cluster, " in a grid of ", grid.x));
    }
    if (params_bytes > kMaxParamsBytes) {
        refuse(sim_code::kInvalidValue, str(params_bytes, " bytes of parameters"));
    }
}

void SimDriver::launch(StreamHandle stream, FunctionHandle handle, const LaunchConfig& config,
                       const void* params, std::size_t params_bytes) {
    enter(SimCall::launch);
    if (handle == nullptr) throw sim_error("launch", sim_code::kInvalidHandle, "no function");
    const auto& function = *reinterpret_cast<const Function*>(handle);
    check_launch(function, config, params_bytes);
    submit(SimCall::launch, stream, SimWork::kernel(function.twin, config, params, params_bytes), true,
           false);
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
    if (interleaved_) {
        if (!scheduler_.drain()) log(LogLevel::warning, "free: the device's queued work is in a deadlock");
        return;
    }
    std::vector<std::shared_ptr<SimStream>> streams;
    for (const auto& [handle, stream] : streams_) streams.push_back(stream);
    lock.unlock();
    for (const auto& stream : streams) std::lock_guard turn(stream->running);
}

void SimDriver::synchronize() {
    enter(SimCall::synchronize);
    Lock lock(mutex_);
    refuse_captures("synchronize");
    if (interleaved_) return scheduler_.run_until("synchronize", [this] { return scheduler_.idle(); });
    lock.unlock();
    drain();
}

// -- Streams and events --------------------------------------------------------------------------------

StreamHandle SimDriver::stream_create(int priority, SmPartitionHandle within) {
    enter(SimCall::stream_create);
    if (within != nullptr) throw sim_error("stream_create", sim_code::kInvalidHandle, "not a live partition");
    auto stream = std::make_shared<SimStream>();
    // Out of range is clamped, as cuStreamCreateWithPriority does.
    stream->priority = std::clamp(priority, info_.highest_priority, info_.lowest_priority);
    Lock lock(mutex_);
    return keep(std::move(stream), streams_);
}

void SimDriver::stream_destroy(StreamHandle handle) noexcept {
    count(SimCall::stream_destroy);
    Lock lock(mutex_);
    const auto stream = forget("stream_destroy", handle, streams_);
    if (!stream) return;
    if (stream->capture) stream->capture->invalidate();
    lock.unlock();
    std::lock_guard turn(stream->running);
}

void SimDriver::stream_synchronize(StreamHandle handle) {
    enter(SimCall::stream_synchronize);
    Lock lock(mutex_);
    const auto stream = find("stream_synchronize", "stream", handle, streams_);
    if (stream->capture) stream->capture->refuse("stream_synchronize", "the stream is capturing");
    if (interleaved_) {
        return scheduler_.run_until("stream_synchronize", [&] { return stream->queue.empty(); });
    }
    lock.unlock();
    std::lock_guard turn(stream->running);
}

bool SimDriver::stream_query(StreamHandle handle) {
    enter(SimCall::stream_query);
    Lock lock(mutex_);
    const auto stream = find("stream_query", "stream", handle, streams_);
    if (stream->capture) stream->capture->refuse("stream_query", "the stream is capturing");
    if (interleaved_) {
        scheduler_.run_some();
        return stream->queue.empty();
    }
    lock.unlock();
    return std::unique_lock(stream->running, std::try_to_lock).owns_lock();
}

void SimDriver::stream_wait_event(StreamHandle handle, EventHandle event_handle) {
    enter(SimCall::stream_wait_event);
    Lock lock(mutex_);
    const auto stream = find("stream_wait_event", "stream", handle, streams_);
    const auto event = find("stream_wait_event", "event", event_handle, events_);
    if (stream->capture || event->capture) return SimCapture::wait("stream_wait_event", stream, *event);
    // In immediate mode what was recorded is done.
    if (interleaved_ && event->point) scheduler_.push(stream, SimWait{event->point});
}

EventHandle SimDriver::event_create(bool timing) {
    enter(SimCall::event_create);
    auto event = std::make_shared<SimEvent>();
    event->timing = timing;
    Lock lock(mutex_);
    return keep(std::move(event), events_);
}

void SimDriver::event_destroy(EventHandle handle) noexcept {
    count(SimCall::event_destroy);
    Lock lock(mutex_);
    forget("event_destroy", handle, events_);
}

void SimDriver::event_record(EventHandle event_handle, StreamHandle handle) {
    enter(SimCall::event_record);
    Lock lock(mutex_);
    const auto event = find("event_record", "event", event_handle, events_);
    const auto stream = find("event_record", "stream", handle, streams_);
    if (stream->capture) return stream->capture->record("event_record", *event, *stream);
    const auto point = std::make_shared<SimPoint>();
    if (!interleaved_) {
        lock.unlock();
        std::lock_guard turn(stream->running);  // after what runs there now
        lock.lock();
        *point = {.reached = true, .time = std::chrono::steady_clock::now()};
    }
    event->point = point;
    event->capture = nullptr;
    event->nodes.clear();
    if (interleaved_) scheduler_.push(stream, SimRecord{point});
}

bool SimDriver::event_query(EventHandle handle) {
    enter(SimCall::event_query);
    Lock lock(mutex_);
    const auto event = find("event_query", "event", handle, events_);
    if (event->capture) event->capture->refuse_event("event_query");
    if (interleaved_) scheduler_.run_some();
    return !event->point || event->point->reached;
}

void SimDriver::event_synchronize(EventHandle handle) {
    enter(SimCall::event_synchronize);
    Lock lock(mutex_);
    const auto event = find("event_synchronize", "event", handle, events_);
    if (event->capture) event->capture->refuse_event("event_synchronize");
    const auto point = event->point;
    if (interleaved_ && point) scheduler_.run_until("event_synchronize", [&] { return point->reached; });
}

float SimDriver::event_elapsed_ms(EventHandle start_handle, EventHandle end_handle) {
    enter(SimCall::event_elapsed_ms);
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
    return std::chrono::duration<float, std::milli>(end->point->time - start->point->time).count();
}

// -- Graphs --------------------------------------------------------------------------------------------

void SimDriver::capture_begin(StreamHandle handle) {
    enter(SimCall::capture_begin);
    Lock lock(mutex_);
    SimCapture::begin("capture_begin", find("capture_begin", "stream", handle, streams_));
}

GraphHandle SimDriver::capture_end(StreamHandle handle) {
    enter(SimCall::capture_end);
    Lock lock(mutex_);
    return keep(SimCapture::end("capture_end", find("capture_end", "stream", handle, streams_)), graphs_);
}

void SimDriver::graph_launch(GraphHandle graph_handle, StreamHandle handle) {
    enter(SimCall::graph_launch);
    Lock lock(mutex_);
    const auto graph = find("graph_launch", "graph", graph_handle, graphs_);
    const auto stream = find("graph_launch", "stream", handle, streams_);
    if (stream->capture) return stream->capture->add("graph_launch", *stream, *graph);
    if (interleaved_) {
        if (graph->last_launch) scheduler_.push(stream, SimWait{graph->last_launch});
        scheduler_.push(stream, SimGraphRun(graph));
        graph->last_launch = std::make_shared<SimPoint>();
        return scheduler_.push(stream, SimRecord{graph->last_launch});
    }
    lock.unlock();
    std::scoped_lock turn(graph->running, stream->running);
    for (const SimGraph::Node& node : graph->nodes) node.work.run();
}

void SimDriver::graph_destroy(GraphHandle handle) noexcept {
    count(SimCall::graph_destroy);
    Lock lock(mutex_);
    forget("graph_destroy", handle, graphs_);
}

std::size_t SimDriver::graph_node_count(GraphHandle handle) {
    enter(SimCall::graph_node_count);
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
