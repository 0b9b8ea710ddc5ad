// SM partitions of one CUDA device, by green contexts (CUDA driver API, "Green Contexts"). Groups of separate
// splits overlap, so the device is split once, into the smallest groups it allows, and a partition is a set
// of these. The remainder of the split is weaker and not offered.
#pragma once

#include <mutex>
#include <span>
#include <vector>

#include "driver/cuda_api.hpp"

namespace gpk::cuda {

class GreenContexts {
   public:
    GreenContexts(const CudaApi& api, CUdevice device);

    int group_size() const noexcept;
    int groups() const noexcept { return static_cast<int>(groups_.size()); }

    // `groups`: distinct indices below groups().
    CUgreenCtx create(std::span<const int> groups);
    CUstream create_stream(CUgreenCtx context, int priority);
    CUresult destroy(CUgreenCtx context);

   private:
    const CudaApi& api_;
    CUdevice device_;
    std::vector<CUdevResource> groups_;
    std::mutex mutex_;  // a green context may be used from one thread at a time
};

}  // namespace gpk::cuda
