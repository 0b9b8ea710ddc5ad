// SM partitions of one CUDA device, by green contexts (CUDA driver API, "Green Contexts"). Groups of separate
// splits overlap, so the device is split once, into the smallest groups it allows, and a partition is a set
// of these. The remainder of the split is weaker and not offered.
//
// A destroyed context is kept for the next partition of the same groups: making one takes 1.5 ms, and driver
// 580 does not give back the 4 MiB that each took.
#pragma once

#include <map>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "driver/cuda_api.hpp"

namespace gpk::cuda {

class GreenContexts {
   public:
    GreenContexts(const CudaApi& api, CUdevice device);
    ~GreenContexts();
    GreenContexts(const GreenContexts&) = delete;
    GreenContexts& operator=(const GreenContexts&) = delete;

    int group_size() const noexcept;
    int groups() const noexcept { return static_cast<int>(groups_.size()); }

    // `groups`: distinct indices below groups().
    CUgreenCtx create(std::span<const int> groups);
    CUstream create_stream(CUgreenCtx context, int priority);
    void destroy(CUgreenCtx context) noexcept;  // its streams are destroyed

   private:
    using Groups = std::vector<int>;  // sorted

    const CudaApi& api_;
    CUdevice device_;
    std::vector<CUdevResource> groups_;
    std::mutex mutex_;  // over all below; and a green context may be used from one thread at a time
    std::map<Groups, std::vector<CUgreenCtx>> idle_;
    std::unordered_map<CUgreenCtx, Groups> groups_of_;  // those in use
};

}  // namespace gpk::cuda
