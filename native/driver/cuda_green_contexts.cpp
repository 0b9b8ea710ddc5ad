#include "driver/cuda_green_contexts.hpp"

#include <algorithm>
#include <utility>

#include "base/error.hpp"
#include "base/log.hpp"

namespace gpk::cuda {

namespace {

bool has_calls(const CudaApi& api) {
#define GPK_IS_THERE(name, arguments) &&api.name != nullptr
    return true GPK_CUDA_GREEN_CONTEXT_CALLS(GPK_IS_THERE);
#undef GPK_IS_THERE
}

}  // namespace

// What fails here (MIG, MPS with a share of the threads, an odd driver) leaves a device without partitions.
GreenContexts::GreenContexts(const CudaApi& api, CUdevice device) : api_(api), device_(device) {
    if (!has_calls(api)) return;
    CUdevResource all{};
    unsigned count = 0;
    const char* call = "cuDeviceGetDevResource";
    CUresult code = api.cuDeviceGetDevResource(device, &all, CU_DEV_RESOURCE_TYPE_SM);
    std::vector<CUdevResource> groups;
    if (code == CUDA_SUCCESS) {
        call = "cuDevSmResourceSplitByCount";
        // At least 1 SM: the driver rounds up to the smallest group. Without a result it only counts.
        code = api.cuDevSmResourceSplitByCount(nullptr, &count, &all, nullptr, 0, 1);
        if (code == CUDA_SUCCESS && count > 0) {
            groups.resize(count);
            CUdevResource remainder{};
            code = api.cuDevSmResourceSplitByCount(groups.data(), &count, &all, &remainder, 0, 1);
            groups.resize(std::min<std::size_t>(count, groups.size()));
        }
    }
    if (code != CUDA_SUCCESS) {
        log(LogLevel::info, str("no SM partitions: ", call, " failed: ", error_name(api, code)));
        return;
    }
    groups_ = std::move(groups);
}

int GreenContexts::group_size() const noexcept {
    return groups_.empty() ? 0 : static_cast<int>(groups_.front().sm.smCount);
}

CUgreenCtx GreenContexts::create(std::span<const int> groups) {
    Groups key(groups.begin(), groups.end());
    std::sort(key.begin(), key.end());
    std::lock_guard lock(mutex_);
    auto& idle = idle_[key];
    idle.reserve(idle.size() + groups_of_.size() + 1);  // so that destroy() needs no memory
    if (!idle.empty()) {
        const CUgreenCtx context = idle.back();
        groups_of_.emplace(context, std::move(key));
        idle.pop_back();
        return context;
    }
    std::vector<CUdevResource> chosen;
    chosen.reserve(key.size());
    for (const int group : key) chosen.push_back(groups_[static_cast<std::size_t>(group)]);
    CUdevResourceDesc description = nullptr;
    CUgreenCtx context = nullptr;
    check(api_, "cuDevResourceGenerateDesc",
          api_.cuDevResourceGenerateDesc(&description, chosen.data(), static_cast<unsigned>(chosen.size())));
    check(api_, "cuGreenCtxCreate",
          api_.cuGreenCtxCreate(&context, description, device_, CU_GREEN_CTX_DEFAULT_STREAM));
    groups_of_.emplace(context, std::move(key));
    return context;
}

CUstream GreenContexts::create_stream(CUgreenCtx context, int priority) {
    CUstream stream = nullptr;
    std::lock_guard lock(mutex_);
    check(api_, "cuGreenCtxStreamCreate",
          api_.cuGreenCtxStreamCreate(&stream, context, CU_STREAM_NON_BLOCKING, priority));
    return stream;
}

void GreenContexts::destroy(CUgreenCtx context) noexcept {
    std::lock_guard lock(mutex_);
    const auto used = groups_of_.find(context);
    if (used == groups_of_.end()) return;
    idle_.find(used->second)->second.push_back(context);
    groups_of_.erase(used);
}

GreenContexts::~GreenContexts() {
    for (const auto& [groups, contexts] : idle_) {
        for (const CUgreenCtx context : contexts) api_.cuGreenCtxDestroy(context);
    }
}

}  // namespace gpk::cuda
