#include "driver/cuda_driver.hpp"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <unordered_map>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/platform.hpp"
#include "driver/cublaslt.hpp"
#include "driver/cuda_green_contexts.hpp"
#include "driver/cuda_virtual_memory.hpp"

namespace gpk {

using namespace cuda;

namespace {

constexpr std::uint32_t kSharedBytesWithoutOptIn = 48 * 1024;
// From here on, programmatic stream serialization can be captured into graphs.
constexpr int kOverlapDriver = 12030;

[[noreturn]] void throw_forked() {
    throw error(ErrorKind::unsupported,
                {.call = "CUDA",
                 .got = "a process forked after CUDA was initialised in its parent, where CUDA cannot work",
                 .fix = "start child processes with multiprocessing's 'spawn' or 'forkserver' method, or "
                        "fork before the first use of the GPU"});
}

// What a FunctionHandle points to.
struct LoadedFunction {
    CUfunction function = nullptr;
    bool may_overlap = false;  // with its predecessor on the stream
    bool one_struct = false;   // is its only parameter: prebuilt kernels
    bool library = false;      // cuBLASLt's product, which launches by itself
};

struct LoadedImage {
    CUmodule module = nullptr;
    // The option to opt in to more shared memory belongs to the function, so one entry a name.
    std::map<std::string, std::unique_ptr<LoadedFunction>, std::less<>> functions;
};

struct LoadedGraph {
    CUgraphExec exec = nullptr;
    std::size_t nodes = 0;
};

CUstream stream_of(StreamHandle handle) { return reinterpret_cast<CUstream>(handle); }
CUevent event_of(EventHandle handle) { return reinterpret_cast<CUevent>(handle); }
LoadedFunction* function_of(FunctionHandle handle) { return reinterpret_cast<LoadedFunction*>(handle); }
CUgreenCtx green_of(SmPartitionHandle handle) { return reinterpret_cast<CUgreenCtx>(handle); }
CUmemGenericAllocationHandle physical_of(PhysicalHandle handle) {
    return reinterpret_cast<CUmemGenericAllocationHandle>(handle);
}
LoadedGraph* graph_of(GraphHandle handle) { return reinterpret_cast<LoadedGraph*>(handle); }

// A driver call in the device's context; a failure becomes DriverError with the call's name.
#define GPK_CALL(name, ...)                           \
    do {                                              \
        const CUresult code = api_.name(__VA_ARGS__); \
        if (code != CUDA_SUCCESS) [[unlikely]]        \
            fail(api_, #name, code);                  \
    } while (false)

class CudaDriver final : public Driver {
   public:
    CudaDriver(const CudaApi& api, int ordinal);
    ~CudaDriver() override;

    std::string_view kind() const noexcept override { return "cuda"; }
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
    void dismiss(DevicePtr, std::size_t) noexcept override {}  // the driver knows all memory by itself

    SmPartitionHandle sm_partition_create(std::span<const int> groups) override;
    void sm_partition_destroy(SmPartitionHandle partition) noexcept override;

    StreamHandle stream_create(int priority, SmPartitionHandle within) override;
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
    TensorMap tensor_map(const TensorMapDef& def) override;

    void capture_begin(StreamHandle stream) override;
    GraphHandle capture_end(StreamHandle stream) override;
    void graph_launch(GraphHandle graph, StreamHandle stream) override;
    void graph_destroy(GraphHandle graph) noexcept override;
    std::size_t graph_node_count(GraphHandle graph) override;

   private:
    // Makes our context the thread's current one: another library may have set its own since.
    void enter() const {
        if (forked_after_init.load(std::memory_order_relaxed)) [[unlikely]]
            throw_forked();
        CUcontext current = nullptr;
        if (api_.cuCtxGetCurrent(&current) != CUDA_SUCCESS || current != context_) [[unlikely]] {
            GPK_CALL(cuCtxSetCurrent, context_);
        }
    }
    template <class Call>
    void release(const char* name, Call&& call) const noexcept;
    bool ready(const char* call, CUresult code) const;
    bool must_wait_for_host_copy(CUstream stream, const void* host) const;
    LoadedImage& load(const Image& image, const char* kernel);
    int function_attribute(CUfunction function, int which) const {
        int value = 0;
        GPK_CALL(cuFuncGetAttribute, &value, which, function);
        return value;
    }

    const CudaApi& api_;
    CUdevice device_ = 0;
    CUcontext context_ = nullptr;
    DeviceInfo info_;
    std::optional<VirtualMemory> virtual_memory_;
    std::optional<GreenContexts> green_contexts_;
    bool overlap_ = false;
    bool reads_pageable_memory_late_ = false;
    LoadedFunction library_function_{.library = true};
    std::unique_ptr<CublasLt> cublaslt_;  // at first use, under images_mutex_
    std::mutex images_mutex_;
    std::unordered_map<const Image*, LoadedImage> images_;
};

CudaDriver::CudaDriver(const CudaApi& api, int ordinal) : api_(api) {
    if (forked_after_init.load(std::memory_order_relaxed)) throw_forked();
    GPK_CALL(cuDeviceGet, &device_, ordinal);
    info_.name = device_name(api_, device_);
    info_.ordinal = ordinal;
    info_.sm = compute_capability(api_, device_);
    info_.multiprocessors = device_attribute(api_, device_, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
    info_.max_threads_per_block = device_attribute(api_, device_, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
    info_.clock_khz = device_attribute(api_, device_, CU_DEVICE_ATTRIBUTE_CLOCK_RATE);
    // Two transfers a clock, on every memory that these GPUs have.
    info_.memory_bandwidth = 2e3 * device_attribute(api_, device_, CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE) *
                             device_attribute(api_, device_, CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH) / 8;
    info_.l2_bytes =
        static_cast<std::size_t>(device_attribute(api_, device_, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE));
    info_.shared_bytes_per_block = static_cast<std::size_t>(
        device_attribute(api_, device_, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN));
    GPK_CALL(cuDriverGetVersion, &info_.driver_version);
    GPK_CALL(cuDeviceTotalMem_v2, &info_.memory_bytes, device_);
    char bus_id[32] = {};
    GPK_CALL(cuDeviceGetPCIBusId, bus_id, sizeof(bus_id) - 1, device_);
    info_.pci_bus_id = bus_id;
    overlap_ = info_.sm >= 90 && info_.driver_version >= kOverlapDriver &&
               platform::environment("PYGPUKIT_NO_OVERLAP").value_or("0") != "1";
    // With address translation (Grace), the GPU may read pageable memory itself, after the call returned.
    reads_pageable_memory_late_ =
        device_attribute(api_, device_, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES) !=
        0;
    GPK_CALL(cuDevicePrimaryCtxRetain, &context_, device_);
    try {
        enter();
        GPK_CALL(cuCtxGetStreamPriorityRange, &info_.lowest_priority, &info_.highest_priority);
        virtual_memory_.emplace(api_, device_);
        info_.physical_granularity = virtual_memory_->granularity();
        green_contexts_.emplace(api_, device_);
        info_.sm_groups = green_contexts_->groups();
        info_.sm_group_size = green_contexts_->group_size();
    } catch (...) {
        api_.cuDevicePrimaryCtxRelease_v2(device_);
        throw;
    }
}

CudaDriver::~CudaDriver() {
    for (auto& [image, loaded] : images_) {
        release("cuModuleUnload", [&, module = loaded.module] { return api_.cuModuleUnload(module); });
    }
    cublaslt_.reset();
    green_contexts_.reset();
    release("cuDevicePrimaryCtxRelease", [&] { return api_.cuDevicePrimaryCtxRelease_v2(device_); });
}

// Calls that give something back cannot throw: they log, and stay silent once the process ends and
// the driver with it, or in a forked child, where there is nothing to give back.
template <class Call>
void CudaDriver::release(const char* name, Call&& call) const noexcept {
    if (forked_after_init.load(std::memory_order_relaxed)) return;
    try {
        CUcontext current = nullptr;
        CUresult code = api_.cuCtxGetCurrent(&current);
        if (code == CUDA_SUCCESS && current != context_) code = api_.cuCtxSetCurrent(context_);
        if (code == CUDA_SUCCESS) code = call();
        if (code == CUDA_SUCCESS || code == CUDA_ERROR_DEINITIALIZED) return;
        log(LogLevel::warning, str(name, " failed: ", error_name(api_, code), " (", code, ")"));
    } catch (...) {
        // Only the message could not be made.
    }
}

MemoryInfo CudaDriver::memory_info() {
    enter();
    MemoryInfo memory;
    GPK_CALL(cuMemGetInfo_v2, &memory.free_bytes, &memory.total_bytes);
    return memory;
}

void CudaDriver::synchronize() {
    enter();
    GPK_CALL(cuCtxSynchronize);
}

DevicePtr CudaDriver::allocate(std::size_t bytes) {
    enter();
    CUdeviceptr pointer = 0;
    GPK_CALL(cuMemAlloc_v2, &pointer, std::max<std::size_t>(bytes, 1));
    return pointer;
}

void CudaDriver::free(DevicePtr pointer) noexcept {
    if (pointer == 0) return;
    release("cuMemFree", [&] { return api_.cuMemFree_v2(pointer); });
}

void* CudaDriver::allocate_host(std::size_t bytes) {
    enter();
    void* pointer = nullptr;
    GPK_CALL(cuMemHostAlloc, &pointer, std::max<std::size_t>(bytes, 1), CU_MEMHOSTALLOC_PORTABLE);
    return pointer;
}

void CudaDriver::free_host(void* pointer) noexcept {
    if (pointer == nullptr) return;
    release("cuMemFreeHost", [&] { return api_.cuMemFreeHost(pointer); });
}

// The driver's manual only says that a copy with pageable memory "might be synchronous".
bool CudaDriver::must_wait_for_host_copy(CUstream stream, const void* host) const {
    unsigned type = 0;
    // The plural call: the singular one fails for memory that the driver does not know.
    int which = CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
    void* values[] = {&type};
    GPK_CALL(cuPointerGetAttributes, 1, &which, values, reinterpret_cast<CUdeviceptr>(host));
    if (type == CU_MEMORYTYPE_HOST) return false;  // pinned
    int capturing = CU_STREAM_CAPTURE_STATUS_NONE;
    GPK_CALL(cuStreamIsCapturing, stream, &capturing);
    return capturing == CU_STREAM_CAPTURE_STATUS_NONE;
}

void CudaDriver::copy_to_device(StreamHandle stream, DevicePtr to, const void* from, std::size_t bytes) {
    if (bytes == 0) return;
    enter();
    GPK_CALL(cuMemcpyHtoDAsync_v2, to, from, bytes, stream_of(stream));
    // Elsewhere the driver has staged a pageable source before it returns.
    if (reads_pageable_memory_late_ && must_wait_for_host_copy(stream_of(stream), from)) {
        GPK_CALL(cuStreamSynchronize, stream_of(stream));
    }
}

void CudaDriver::copy_to_host(StreamHandle stream, void* to, DevicePtr from, std::size_t bytes) {
    if (bytes == 0) return;
    enter();
    GPK_CALL(cuMemcpyDtoHAsync_v2, to, from, bytes, stream_of(stream));
    if (must_wait_for_host_copy(stream_of(stream), to)) GPK_CALL(cuStreamSynchronize, stream_of(stream));
}

void CudaDriver::copy_on_device(StreamHandle stream, DevicePtr to, DevicePtr from, std::size_t bytes) {
    if (bytes == 0) return;
    enter();
    GPK_CALL(cuMemcpyDtoDAsync_v2, to, from, bytes, stream_of(stream));
}

void CudaDriver::fill(StreamHandle stream, DevicePtr to, std::uint8_t value, std::size_t bytes) {
    if (bytes == 0) return;
    enter();
    GPK_CALL(cuMemsetD8Async, to, value, bytes, stream_of(stream));
}

DevicePtr CudaDriver::reserve_address(std::size_t bytes) {
    enter();
    return virtual_memory_->reserve(bytes);
}

void CudaDriver::release_address(DevicePtr address, std::size_t bytes) noexcept {
    if (address == 0 || info_.physical_granularity == 0) return;
    release("cuMemAddressFree", [&] { return api_.cuMemAddressFree(address, bytes); });
}

PhysicalHandle CudaDriver::physical_create(std::size_t bytes) {
    enter();
    return reinterpret_cast<PhysicalHandle>(virtual_memory_->create(bytes));
}

void CudaDriver::physical_destroy(PhysicalHandle physical) noexcept {
    if (physical == nullptr || info_.physical_granularity == 0) return;
    release("cuMemRelease", [&] { return api_.cuMemRelease(physical_of(physical)); });
}

void CudaDriver::map(DevicePtr address, PhysicalHandle physical, std::size_t bytes) {
    enter();
    virtual_memory_->map(address, physical_of(physical), bytes);
}

void CudaDriver::allow_access(DevicePtr address, std::size_t bytes) {
    enter();
    virtual_memory_->allow_access(address, bytes);
}

void CudaDriver::unmap(DevicePtr address, std::size_t bytes) noexcept {
    if (address == 0 || info_.physical_granularity == 0) return;
    release("cuMemUnmap", [&] { return api_.cuMemUnmap(address, bytes); });
}

// Its first and its last byte are looked at: what lies between may be mapped from several pieces.
void CudaDriver::admit(DevicePtr pointer, std::size_t bytes) {
    enter();
    for (const DevicePtr each : {pointer, pointer + std::max<std::size_t>(bytes, 1) - 1}) {
        unsigned type = 0;
        int ordinal = -1;
        int which[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
        void* values[] = {&type, &ordinal};
        GPK_CALL(cuPointerGetAttributes, 2, which, values, each);
        if (type != 0 && (type != CU_MEMORYTYPE_DEVICE || ordinal == info_.ordinal)) continue;
        throw error(ErrorKind::value, {.call = "admit",
                                       .argument = "pointer",
                                       .expected = str("memory of cuda:", info_.ordinal),
                                       .got = type == 0 ? str("address ", reinterpret_cast<void*>(each),
                                                              ", which CUDA does not know")
                                                        : str("memory of cuda:", ordinal)});
    }
}

SmPartitionHandle CudaDriver::sm_partition_create(std::span<const int> groups) {
    check_sm_groups(info_, groups);
    enter();
    return reinterpret_cast<SmPartitionHandle>(green_contexts_->create(groups));
}

void CudaDriver::sm_partition_destroy(SmPartitionHandle partition) noexcept {
    if (partition == nullptr || info_.sm_groups == 0) return;
    green_contexts_->destroy(green_of(partition));
}

// A stream of a green context obeys its SMs with the primary context current, so that nothing else asks
// where a stream belongs.
StreamHandle CudaDriver::stream_create(int priority, SmPartitionHandle within) {
    enter();
    CUstream stream = nullptr;
    if (within != nullptr) {
        stream = green_contexts_->create_stream(green_of(within), priority);
    } else {
        GPK_CALL(cuStreamCreateWithPriority, &stream, CU_STREAM_NON_BLOCKING, priority);
    }
    return reinterpret_cast<StreamHandle>(stream);
}

void CudaDriver::stream_destroy(StreamHandle stream) noexcept {
    if (stream == nullptr) return;
    release("cuStreamDestroy", [&] { return api_.cuStreamDestroy_v2(stream_of(stream)); });
}

void CudaDriver::stream_synchronize(StreamHandle stream) {
    enter();
    GPK_CALL(cuStreamSynchronize, stream_of(stream));
}

bool CudaDriver::ready(const char* call, CUresult code) const {
    if (code == CUDA_ERROR_NOT_READY) return false;
    if (code != CUDA_SUCCESS) fail(api_, call, code);
    return true;
}

bool CudaDriver::stream_query(StreamHandle stream) {
    enter();
    return ready("cuStreamQuery", api_.cuStreamQuery(stream_of(stream)));
}

void CudaDriver::stream_wait_event(StreamHandle stream, EventHandle event) {
    enter();
    GPK_CALL(cuStreamWaitEvent, stream_of(stream), event_of(event), 0);
}

EventHandle CudaDriver::event_create(bool timing) {
    enter();
    CUevent event = nullptr;
    GPK_CALL(cuEventCreate, &event, timing ? CU_EVENT_DEFAULT : CU_EVENT_DISABLE_TIMING);
    return reinterpret_cast<EventHandle>(event);
}

void CudaDriver::event_destroy(EventHandle event) noexcept {
    if (event == nullptr) return;
    release("cuEventDestroy", [&] { return api_.cuEventDestroy_v2(event_of(event)); });
}

void CudaDriver::event_record(EventHandle event, StreamHandle stream) {
    enter();
    GPK_CALL(cuEventRecord, event_of(event), stream_of(stream));
}

bool CudaDriver::event_query(EventHandle event) {
    enter();
    return ready("cuEventQuery", api_.cuEventQuery(event_of(event)));
}

void CudaDriver::event_synchronize(EventHandle event) {
    enter();
    GPK_CALL(cuEventSynchronize, event_of(event));
}

float CudaDriver::event_elapsed_ms(EventHandle start, EventHandle end) {
    enter();
    float milliseconds = 0;
    GPK_CALL(cuEventElapsedTime, &milliseconds, event_of(start), event_of(end));
    return milliseconds;
}

LoadedImage& CudaDriver::load(const Image& image, const char* kernel) {
    if (const auto known = images_.find(&image); known != images_.end()) return known->second;
    CUmodule module = nullptr;
    const CUresult code = api_.cuModuleLoadData(&module, image.data);
    if (code == CUDA_ERROR_NO_BINARY_FOR_GPU || code == CUDA_ERROR_UNSUPPORTED_PTX_VERSION) {
        throw error(ErrorKind::unsupported,
                    {.call = str("kernel '", kernel, "'"),
                     .expected = str("device code for SM ", info_.sm, " (", info_.name, ")"),
                     .got = str("a build without it (", error_name(api_, code), ")"),
                     .fix = str("build with PYGPUKIT_CUDA_ARCHS=", info_.sm, ", or update the GPU driver")});
    }
    if (code != CUDA_SUCCESS) fail(api_, "cuModuleLoadData", code);
    LoadedImage& loaded = images_[&image];
    loaded.module = module;
    return loaded;
}

FunctionHandle CudaDriver::function(const KernelDef& def) {
    if (def.image == &kCublasLtImage) {
        enter();
        std::lock_guard lock(images_mutex_);
        if (!cublaslt_) cublaslt_ = std::make_unique<CublasLt>();
        return reinterpret_cast<FunctionHandle>(&library_function_);
    }
    if (def.image == nullptr || def.image->data == nullptr) {
        throw error(ErrorKind::unsupported, {.call = str("kernel '", def.name, "'"),
                                             .got = "a PyGPUkit that was built without device code",
                                             .fix = "rebuild without PYGPUKIT_CUDA=0, or use device 'cpu'"});
    }
    enter();
    std::lock_guard lock(images_mutex_);
    LoadedImage& image = load(*def.image, def.name);
    if (const auto known = image.functions.find(def.name); known != image.functions.end()) {
        return reinterpret_cast<FunctionHandle>(known->second.get());
    }
    auto loaded = std::make_unique<LoadedFunction>();
    const CUresult code = api_.cuModuleGetFunction(&loaded->function, image.module, def.name);
    if (code == CUDA_ERROR_NOT_FOUND) {
        throw DriverError("cuModuleGetFunction", code, error_name(api_, code),
                          str("the image has no kernel '", def.name, "'"));
    }
    if (code != CUDA_SUCCESS) fail(api_, "cuModuleGetFunction", code);
    std::size_t shared_bytes = def.max_shared_bytes, own = 0;
    if (shared_bytes > 0) {
        own = static_cast<std::size_t>(
            function_attribute(loaded->function, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES));
    }
    if (def.max_shared_bytes == kAllSharedBytes) {
        shared_bytes = info_.shared_bytes_per_block - std::min(info_.shared_bytes_per_block, own);
    }
    if (shared_bytes + own > kSharedBytesWithoutOptIn) {  // what is static counts too
        GPK_CALL(cuFuncSetAttribute, loaded->function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                 static_cast<int>(shared_bytes));
    }
    loaded->one_struct = def.waits_for_predecessor;
    // What the driver compiled from older PTX has no griddepcontrol in it, and would not wait.
    loaded->may_overlap = overlap_ && def.waits_for_predecessor &&
                          function_attribute(loaded->function, CU_FUNC_ATTRIBUTE_PTX_VERSION) >= 90 &&
                          function_attribute(loaded->function, CU_FUNC_ATTRIBUTE_BINARY_VERSION) >= 90;
    const auto entry = image.functions.emplace(def.name, std::move(loaded)).first;
    return reinterpret_cast<FunctionHandle>(entry->second.get());
}

void CudaDriver::unload(const Image& image) noexcept {
    std::lock_guard lock(images_mutex_);
    const auto known = images_.find(&image);
    if (known == images_.end()) return;
    release("cuModuleUnload", [&] { return api_.cuModuleUnload(known->second.module); });
    images_.erase(known);
}

FunctionInfo CudaDriver::function_info(FunctionHandle function) {
    enter();
    FunctionInfo info;
    if (function_of(function)->library) return info;  // it has many
    const CUfunction which = function_of(function)->function;
    info.registers = function_attribute(which, CU_FUNC_ATTRIBUTE_NUM_REGS);
    info.shared_bytes =
        static_cast<std::size_t>(function_attribute(which, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES));
    info.local_bytes =
        static_cast<std::size_t>(function_attribute(which, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES));
    info.max_threads_per_block = function_attribute(which, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
    return info;
}

void CudaDriver::launch(StreamHandle stream, FunctionHandle function, const LaunchConfig& config,
                        const void* params, std::size_t params_bytes) {
    enter();
    const LoadedFunction& loaded = *function_of(function);
    if (loaded.library)
        return cublaslt_->multiply(stream_of(stream), *static_cast<const LibraryProduct*>(params));
    CUlaunchAttribute attributes[3];
    unsigned count = 0;
    if (config.cluster > 1) {
        attributes[count].id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
        attributes[count].value.clusterDim = {config.cluster, 1, 1};
        ++count;
    }
    if (config.cluster == 0) {
        attributes[count].id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
        attributes[count].value.cooperative = 1;
        ++count;
    } else if (loaded.may_overlap) {  // blocks that wait for each other may not come one by one
        attributes[count].id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
        attributes[count].value.programmaticStreamSerializationAllowed = 1;
        ++count;
    }
    const CUlaunchConfig launch = {config.grid.x,  config.grid.y,  config.grid.z,       config.block.x,
                                   config.block.y, config.block.z, config.shared_bytes, stream_of(stream),
                                   attributes,     count};
    // A struct with tensor maps is aligned to 64 bytes, and begins later than the parameters do: only the
    // driver knows where. What the host packed it takes as it is.
    void* one[] = {const_cast<void*>(params)};
    void* extra[] = {reinterpret_cast<void*>(CU_LAUNCH_PARAM_BUFFER_POINTER), const_cast<void*>(params),
                     reinterpret_cast<void*>(CU_LAUNCH_PARAM_BUFFER_SIZE), &params_bytes,
                     reinterpret_cast<void*>(CU_LAUNCH_PARAM_END)};
    const bool any = params_bytes > 0, whole = loaded.one_struct;
    GPK_CALL(cuLaunchKernelEx, &launch, loaded.function, any && whole ? one : nullptr,
             any && !whole ? extra : nullptr);
}

TensorMap CudaDriver::tensor_map(const TensorMapDef& def) {
    check_tensor_map(info_, def);
    if (api_.cuTensorMapEncodeTiled == nullptr) {
        throw error(ErrorKind::unsupported, {.call = "tensor_map",
                                             .got = "a CUDA driver without cuTensorMapEncodeTiled",
                                             .fix = "update the GPU driver"});
    }
    // Of the element type only the size matters to plain copies, and the kind to those that add.
    static constexpr int kTypes[kDTypeCount] = {
        CU_TENSOR_MAP_DATA_TYPE_UINT8,   CU_TENSOR_MAP_DATA_TYPE_UINT8,    CU_TENSOR_MAP_DATA_TYPE_UINT16,
        CU_TENSOR_MAP_DATA_TYPE_INT32,   CU_TENSOR_MAP_DATA_TYPE_INT64,    CU_TENSOR_MAP_DATA_TYPE_UINT8,
        CU_TENSOR_MAP_DATA_TYPE_UINT16,  CU_TENSOR_MAP_DATA_TYPE_UINT32,   CU_TENSOR_MAP_DATA_TYPE_UINT64,
        CU_TENSOR_MAP_DATA_TYPE_FLOAT16, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
        CU_TENSOR_MAP_DATA_TYPE_FLOAT64, CU_TENSOR_MAP_DATA_TYPE_UINT8,    CU_TENSOR_MAP_DATA_TYPE_UINT8};
    static constexpr std::uint32_t kOnes[kMaxTensorMapRank] = {1, 1, 1, 1, 1};
    CUtensorMap map;
    GPK_CALL(cuTensorMapEncodeTiled, &map,
             def.to_tf32 ? CU_TENSOR_MAP_DATA_TYPE_TFLOAT32 : kTypes[static_cast<int>(def.dtype)],
             static_cast<unsigned>(def.rank), reinterpret_cast<void*>(def.address), def.extents,
             def.strides_bytes, def.box, kOnes, CU_TENSOR_MAP_INTERLEAVE_NONE, static_cast<int>(def.swizzle),
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    TensorMap result;
    static_assert(sizeof(result.words) == sizeof(map.opaque));
    std::copy(std::begin(map.opaque), std::end(map.opaque), result.words);
    return result;
}

void CudaDriver::capture_begin(StreamHandle stream) {
    if (api_.cuStreamBeginCapture_v2 == nullptr || api_.cuStreamEndCapture == nullptr ||
        api_.cuGraphInstantiateWithFlags == nullptr || api_.cuGraphGetNodes == nullptr ||
        api_.cuGraphLaunch == nullptr || api_.cuGraphExecDestroy == nullptr ||
        api_.cuGraphDestroy == nullptr) {
        throw error(ErrorKind::unsupported, {.call = "Graph.capture",
                                             .got = "a CUDA driver without graph calls",
                                             .fix = "update the GPU driver"});
    }
    enter();
    GPK_CALL(cuStreamBeginCapture_v2, stream_of(stream), CU_STREAM_CAPTURE_MODE_RELAXED);
}

GraphHandle CudaDriver::capture_end(StreamHandle stream) {
    enter();
    CUgraph graph = nullptr;
    GPK_CALL(cuStreamEndCapture, stream_of(stream), &graph);
    auto captured = std::make_unique<LoadedGraph>();
    CUresult code = api_.cuGraphGetNodes(graph, nullptr, &captured->nodes);
    const char* call = "cuGraphGetNodes";
    if (code == CUDA_SUCCESS) {
        code = api_.cuGraphInstantiateWithFlags(&captured->exec, graph, 0);
        call = "cuGraphInstantiateWithFlags";
    }
    api_.cuGraphDestroy(graph);
    if (code != CUDA_SUCCESS) fail(api_, call, code);
    return reinterpret_cast<GraphHandle>(captured.release());
}

void CudaDriver::graph_launch(GraphHandle graph, StreamHandle stream) {
    enter();
    GPK_CALL(cuGraphLaunch, graph_of(graph)->exec, stream_of(stream));
}

void CudaDriver::graph_destroy(GraphHandle graph) noexcept {
    if (graph == nullptr) return;
    const std::unique_ptr<LoadedGraph> owned(graph_of(graph));
    release("cuGraphExecDestroy", [&] { return api_.cuGraphExecDestroy(owned->exec); });
}

std::size_t CudaDriver::graph_node_count(GraphHandle graph) { return graph_of(graph)->nodes; }

#undef GPK_CALL

}  // namespace

std::unique_ptr<Driver> make_cuda_driver(const CudaApi& api, int ordinal) {
    return std::make_unique<CudaDriver>(api, ordinal);
}

}  // namespace gpk
