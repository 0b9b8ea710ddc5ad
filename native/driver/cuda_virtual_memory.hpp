// The virtual memory calls of one CUDA device. The device's context is current in every call.
#pragma once

#include <cstddef>

#include "driver/cuda_api.hpp"

namespace gpk::cuda {

class VirtualMemory {
   public:
    VirtualMemory(const CudaApi& api, CUdevice device);

    // Of sizes and addresses; 0 where the device or the driver has no virtual memory calls.
    std::size_t granularity() const noexcept { return granularity_; }

    CUdeviceptr reserve(std::size_t bytes) const;
    CUmemGenericAllocationHandle create(std::size_t bytes) const;
    void map(CUdeviceptr address, CUmemGenericAllocationHandle physical, std::size_t bytes) const;
    void allow_access(CUdeviceptr address, std::size_t bytes) const;

   private:
    CUmemAllocationProp properties() const noexcept;
    void require(const char* call) const;

    const CudaApi& api_;
    CUdevice device_;
    std::size_t granularity_ = 0;
};

}  // namespace gpk::cuda
