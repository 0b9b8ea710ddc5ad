// Driver: the calls to one device that everything above makes. CudaDriver answers them with the CUDA
// driver API, SimDriver with a simulated GPU on the host. Nothing above this file knows which.
//
// Calls that can fail throw DriverError; those named noexcept log instead. Work that names a stream
// is queued in that stream's order and the call returns at once, unless it says otherwise.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/dtype.hpp"
#include "base/image.hpp"

namespace gpk {

// An address on the device. On the simulated device it is a host address.
using DevicePtr = std::uint64_t;

struct DriverStream;
struct DriverEvent;
struct DriverGraph;
struct DriverFunction;
struct DriverPhysical;
struct DriverSmPartition;
using StreamHandle = DriverStream*;
using EventHandle = DriverEvent*;
using GraphHandle = DriverGraph*;
using FunctionHandle = DriverFunction*;
using PhysicalHandle = DriverPhysical*;
using SmPartitionHandle = DriverSmPartition*;

struct Dim3 {
    std::uint32_t x = 1, y = 1, z = 1;
};

struct LaunchConfig {
    Dim3 grid = {};
    Dim3 block = {};
    std::uint32_t shared_bytes = 0;  // dynamic shared memory
    std::uint32_t cluster = 1;       // blocks of a cluster, along x (SM 90); 0: the grid, all at once
};

// The kernel on the host: the plain and correct version, which the simulated device runs. It computes
// the whole grid. `params` is what the device kernel gets.
using HostTwin = void (*)(const void* params, const LaunchConfig& config);

// As `max_shared_bytes`: all that the device has beside the kernel's static shared memory.
inline constexpr std::uint32_t kAllSharedBytes = 0xffffffff;

// What a kernel is, on every device.
struct KernelDef {
    const char* name;  // also its symbol in the image
    const Image* image = nullptr;
    HostTwin twin = nullptr;
    std::uint32_t max_shared_bytes = 0;  // dynamic shared memory it may ask for; over 48 KiB needs saying
    // The kernel waits for its predecessor before its first read of global memory, so it may be
    // launched while that one still drains (programmatic stream serialization, SM 90 and newer).
    bool waits_for_predecessor = false;
};

struct DeviceInfo {
    std::string name;
    int ordinal = 0;
    int sm = 0;  // compute capability, 10 * major + minor; 0 for the simulated device
    int multiprocessors = 1;
    int max_threads_per_block = 1024;
    int clock_khz = 0;
    int driver_version = 0;  // 1000 * major + 10 * minor, as the CUDA driver gives it
    std::size_t memory_bytes = 0;
    std::size_t l2_bytes = 0;
    double memory_bandwidth = 0;  // bytes a second, by clock and width; 0 where the driver does not say
    std::size_t shared_bytes_per_block = 0;  // the most a kernel can opt in to
    int lowest_priority = 0;                 // of streams: a smaller number is more urgent
    int highest_priority = 0;
    std::string pci_bus_id;
    // What sizes and addresses of the virtual memory calls are multiples of; 0 where there are none.
    std::size_t physical_granularity = 0;
    // What SM partitions are made of: groups of so many SMs, all of one split of the device. 0 groups where
    // the driver has no green contexts.
    int sm_group_size = 0;
    int sm_groups = 0;
};

struct MemoryInfo {
    std::size_t free_bytes = 0;
    std::size_t total_bytes = 0;
};

struct FunctionInfo {
    int registers = 0;
    std::size_t shared_bytes = 0;  // static
    std::size_t local_bytes = 0;   // a thread
    int max_threads_per_block = 0;
};

// A tensor in global memory as the bulk copy engine of SM 90 and newer knows it: kernels get it in their
// parameter struct and name boxes of it by their coordinates. Elements of a box outside the tensor read as 0
// and are not written.
struct alignas(64) TensorMap {
    std::uint64_t words[16] = {};
};

// How 16-byte pieces of a box are permuted in shared memory, within rows of so many bytes.
enum class TensorSwizzle : std::uint8_t { none, bytes_32, bytes_64, bytes_128 };

inline constexpr int kMaxTensorMapRank = 5;

// Dimensions run from the innermost, whose elements follow one another.
struct TensorMapDef {
    DevicePtr address = 0;  // a multiple of 16
    DType dtype = DType::uint8;
    int rank = 1;
    std::uint64_t extents[kMaxTensorMapRank] = {};  // 1 to 2^32
    std::uint64_t strides_bytes[kMaxTensorMapRank - 1] =
        {};                                       // of dimensions 1, 2, ...: multiples of 16, below 2^40
    std::uint32_t box[kMaxTensorMapRank] = {};    // 1 to 256; the innermost a multiple of 16 bytes
    TensorSwizzle swizzle = TensorSwizzle::none;  // its rows hold the innermost extent of the box
    bool to_tf32 = false;                         // float32 is rounded to nearest as it is read
};

class Driver {
   public:
    virtual ~Driver() = default;

    virtual std::string_view kind() const noexcept = 0;  // "cuda" or "cpu"
    virtual const DeviceInfo& info() const noexcept = 0;
    virtual MemoryInfo memory_info() = 0;
    virtual void synchronize() = 0;  // waits for all work on the device

    // Device memory is aligned to 256 bytes. free() may wait for the device.
    virtual DevicePtr allocate(std::size_t bytes) = 0;
    virtual void free(DevicePtr pointer) noexcept = 0;
    // Pinned host memory: copies to and from it run beside the host.
    virtual void* allocate_host(std::size_t bytes) = 0;
    virtual void free_host(void* pointer) noexcept = 0;

    // A pageable source is read, and a pageable target written, before the call returns.
    virtual void copy_to_device(StreamHandle stream, DevicePtr to, const void* from, std::size_t bytes) = 0;
    virtual void copy_to_host(StreamHandle stream, void* to, DevicePtr from, std::size_t bytes) = 0;
    virtual void copy_on_device(StreamHandle stream, DevicePtr to, DevicePtr from, std::size_t bytes) = 0;
    virtual void fill(StreamHandle stream, DevicePtr to, std::uint8_t value, std::size_t bytes) = 0;

    // Virtual memory: addresses without memory, memory without an address, and the tie between the two. Sizes
    // and addresses are multiples of info().physical_granularity; where that is 0, each throws Error
    // (unsupported). A map() is of the whole of a physical memory, which is at one address at a time, and
    // must be followed by allow_access() before use. unmap() takes whole maps, one or several in a row, and
    // the contents stay with the memory. Nothing may use what is unmapped: the caller has waited. Destroyed
    // memory lives until it is unmapped; a released reservation holds no map.
    virtual DevicePtr reserve_address(std::size_t bytes) = 0;
    virtual void release_address(DevicePtr address, std::size_t bytes) noexcept = 0;
    virtual PhysicalHandle physical_create(std::size_t bytes) = 0;
    virtual void physical_destroy(PhysicalHandle physical) noexcept = 0;
    virtual void map(DevicePtr address, PhysicalHandle physical, std::size_t bytes) = 0;
    virtual void allow_access(DevicePtr address, std::size_t bytes) = 0;
    virtual void unmap(DevicePtr address, std::size_t bytes) noexcept = 0;

    // Memory that another library made, for work here: until dismiss(), when nothing uses it any more. Error
    // (value) where the device does not know it as memory of its own.
    virtual void admit(DevicePtr pointer, std::size_t bytes) = 0;
    virtual void dismiss(DevicePtr pointer, std::size_t bytes) noexcept = 0;

    // SMs that streams can be confined to. `groups`: distinct indices below info().sm_groups, else Error
    // (value); partitions that share no group share no SM. Where there are no groups: Error (unsupported).
    // Its streams are destroyed before it.
    virtual SmPartitionHandle sm_partition_create(std::span<const int> groups) = 0;
    virtual void sm_partition_destroy(SmPartitionHandle partition) noexcept = 0;

    // `within` null: on all SMs.
    virtual StreamHandle stream_create(int priority, SmPartitionHandle within = nullptr) = 0;
    // Work already queued still runs.
    virtual void stream_destroy(StreamHandle stream) noexcept = 0;
    virtual void stream_synchronize(StreamHandle stream) = 0;
    virtual bool stream_query(StreamHandle stream) = 0;  // true when all its work is done
    virtual void stream_wait_event(StreamHandle stream, EventHandle event) = 0;

    virtual EventHandle event_create(bool timing) = 0;
    virtual void event_destroy(EventHandle event) noexcept = 0;
    virtual void event_record(EventHandle event, StreamHandle stream) = 0;
    virtual bool event_query(EventHandle event) = 0;  // true when reached, or never recorded
    virtual void event_synchronize(EventHandle event) = 0;
    virtual float event_elapsed_ms(EventHandle start, EventHandle end) = 0;

    // The function of a kernel, its image loaded if need be. `def` and its image must outlive it.
    virtual FunctionHandle function(const KernelDef& def) = 0;
    // Unloads an image that a user compiled, with its functions.
    virtual void unload(const Image& image) noexcept = 0;
    virtual FunctionInfo function_info(FunctionHandle function) = 0;
    // `params` holds the kernel's parameters, packed as the device lays them out.
    virtual void launch(StreamHandle stream, FunctionHandle function, const LaunchConfig& config,
                        const void* params, std::size_t params_bytes) = 0;

    // Nothing is queued. Throws Error (value) for a definition that the copy engine cannot have, and Error
    // (unsupported) where the device has no such engine.
    virtual TensorMap tensor_map(const TensorMapDef& def) = 0;

    // Work queued between begin and end is recorded into a graph instead of run.
    virtual void capture_begin(StreamHandle stream) = 0;
    virtual GraphHandle capture_end(StreamHandle stream) = 0;  // ready to launch
    virtual void graph_launch(GraphHandle graph, StreamHandle stream) = 0;
    virtual void graph_destroy(GraphHandle graph) noexcept = 0;
    virtual std::size_t graph_node_count(GraphHandle graph) = 0;
};

// What both drivers ask of the arguments of sm_partition_create.
void check_sm_groups(const DeviceInfo& info, std::span<const int> groups);
// The same of tensor_map().
void check_tensor_map(const DeviceInfo& info, const TensorMapDef& def);

}  // namespace gpk
