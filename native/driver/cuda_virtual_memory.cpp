#include "driver/cuda_virtual_memory.hpp"

#include "base/error.hpp"

namespace gpk::cuda {

namespace {

bool has_calls(const CudaApi& api) {
#define GPK_IS_THERE(name, arguments) &&api.name != nullptr
    return true GPK_CUDA_VIRTUAL_MEMORY_CALLS(GPK_IS_THERE);
#undef GPK_IS_THERE
}

}  // namespace

VirtualMemory::VirtualMemory(const CudaApi& api, CUdevice device) : api_(api), device_(device) {
    if (!has_calls(api) ||
        device_attribute(api, device, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) == 0) {
        return;
    }
    const CUmemAllocationProp wanted = properties();
    check(api, "cuMemGetAllocationGranularity",
          api.cuMemGetAllocationGranularity(&granularity_, &wanted, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
}

CUmemAllocationProp VirtualMemory::properties() const noexcept {
    CUmemAllocationProp wanted{};
    wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    wanted.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device_};
    return wanted;
}

void VirtualMemory::require(const char* call) const {
    if (granularity_ == 0) {
        throw error(ErrorKind::unsupported, {.call = call, .got = "a device without virtual memory calls"});
    }
}

CUdeviceptr VirtualMemory::reserve(std::size_t bytes) const {
    require("reserve_address");
    CUdeviceptr address = 0;
    check(api_, "cuMemAddressReserve", api_.cuMemAddressReserve(&address, bytes, 0, 0, 0));
    return address;
}

CUmemGenericAllocationHandle VirtualMemory::create(std::size_t bytes) const {
    require("physical_create");
    const CUmemAllocationProp wanted = properties();
    CUmemGenericAllocationHandle physical = 0;
    check(api_, "cuMemCreate", api_.cuMemCreate(&physical, bytes, &wanted, 0));
    return physical;
}

void VirtualMemory::map(CUdeviceptr address, CUmemGenericAllocationHandle physical, std::size_t bytes) const {
    require("map");
    check(api_, "cuMemMap", api_.cuMemMap(address, bytes, 0, physical, 0));
}

void VirtualMemory::allow_access(CUdeviceptr address, std::size_t bytes) const {
    require("allow_access");
    const CUmemAccessDesc access{.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device_},
                                 .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    check(api_, "cuMemSetAccess", api_.cuMemSetAccess(address, bytes, &access, 1));
}

}  // namespace gpk::cuda
