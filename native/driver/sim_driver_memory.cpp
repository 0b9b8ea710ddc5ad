// SimDriver's memory and SM partitions.
#include "base/log.hpp"
#include "driver/sim_driver.hpp"
#include "driver/sim_handles.hpp"

namespace gpk {

using namespace sim_handles;

// -- Memory --------------------------------------------------------------------------------------------

MemoryInfo SimDriver::memory_info() {
    calls_.enter(SimCall::memory_info);
    return memory_.info();
}

std::size_t SimDriver::bytes_in_use() const {
    const MemoryInfo now = memory_.info();
    return now.total_bytes - now.free_bytes;
}

DevicePtr SimDriver::allocate(std::size_t bytes) {
    calls_.enter(SimCall::allocate);
    return memory_.allocate(bytes);
}

void SimDriver::free(DevicePtr pointer) noexcept {
    calls_.count(SimCall::free);
    drain();
    memory_.free(pointer);
}

void* SimDriver::allocate_host(std::size_t bytes) {
    calls_.enter(SimCall::allocate_host);
    return memory_.allocate_host(bytes);
}

void SimDriver::free_host(void* pointer) noexcept {
    calls_.count(SimCall::free_host);
    drain();
    memory_.free_host(pointer);
}

// -- Virtual memory ------------------------------------------------------------------------------------

// Work that is queued runs under the lock: no map changes under a piece of work that runs.
SimDriver::Lock SimDriver::between_work() const { return queue_ ? Lock(mutex_) : Lock(); }

DevicePtr SimDriver::reserve_address(std::size_t bytes) {
    calls_.enter(SimCall::reserve_address);
    return virtual_memory_.reserve(bytes);
}

void SimDriver::release_address(DevicePtr address, std::size_t bytes) noexcept {
    calls_.count(SimCall::release_address);
    if (address == 0) return;
    const Lock lock = between_work();
    virtual_memory_.release(address, bytes);
}

PhysicalHandle SimDriver::physical_create(std::size_t bytes) {
    calls_.enter(SimCall::physical_create);
    return virtual_memory_.create(bytes);
}

void SimDriver::physical_destroy(PhysicalHandle physical) noexcept {
    calls_.count(SimCall::physical_destroy);
    if (physical != nullptr) virtual_memory_.destroy(physical);
}

void SimDriver::map(DevicePtr address, PhysicalHandle physical, std::size_t bytes) {
    calls_.enter(SimCall::map);
    const Lock lock = between_work();
    virtual_memory_.map(address, physical, bytes);
}

void SimDriver::allow_access(DevicePtr address, std::size_t bytes) {
    calls_.enter(SimCall::allow_access);
    virtual_memory_.allow_access(address, bytes);
}

void SimDriver::unmap(DevicePtr address, std::size_t bytes) noexcept {
    calls_.count(SimCall::unmap);
    if (address == 0) return;
    const Lock lock = between_work();
    virtual_memory_.unmap(address, bytes);
}

// -- Memory of others ----------------------------------------------------------------------------------

void SimDriver::admit(DevicePtr pointer, std::size_t bytes) {
    calls_.enter(SimCall::admit);
    memory_.admit(pointer, bytes);
}

void SimDriver::dismiss(DevicePtr pointer, std::size_t bytes) noexcept {
    calls_.count(SimCall::dismiss);
    memory_.dismiss(pointer, bytes);
}

TensorMap SimDriver::tensor_map(const TensorMapDef& def) {
    calls_.enter(SimCall::tensor_map);
    check_tensor_map(info_, def);
    std::uint64_t bytes = def.extents[0] * itemsize(def.dtype);
    for (int i = 1; i < def.rank; ++i) bytes += (def.extents[i] - 1) * def.strides_bytes[i - 1];
    check_device_range("tensor_map", def.address, bytes);
    TensorMap map;
    map.words[0] = def.address;
    return map;
}

void SimDriver::check_device_range(const char* call, DevicePtr pointer, std::size_t bytes) const {
    if (virtual_memory_.contains(pointer)) return virtual_memory_.check_range(call, pointer, bytes);
    memory_.check_device_range(call, pointer, bytes);
}

// -- SM partitions -------------------------------------------------------------------------------------

SmPartitionHandle SimDriver::sm_partition_create(std::span<const int> groups) {
    calls_.enter(SimCall::sm_partition_create);
    check_sm_groups(info_, groups);
    auto partition = std::make_shared<SimPartition>();
    partition->groups.assign(groups.begin(), groups.end());
    Lock lock(mutex_);
    return keep(std::move(partition), partitions_);
}

void SimDriver::sm_partition_destroy(SmPartitionHandle handle) noexcept {
    calls_.count(SimCall::sm_partition_destroy);
    if (handle == nullptr) return;
    Lock lock(mutex_);
    const auto partition = forget("sm_partition_destroy", handle, partitions_);
    if (!partition) return memory_.count_invalid_free();
    partition->alive = false;
}

std::vector<int> SimDriver::sm_groups_of(StreamHandle handle) const {
    Lock lock(mutex_);
    const auto& stream = find("sm_groups_of", "stream", handle, streams_);
    return stream->partition ? stream->partition->groups : std::vector<int>{};
}

std::size_t SimDriver::live_sm_partitions() const {
    Lock lock(mutex_);
    return partitions_.size();
}

}  // namespace gpk
