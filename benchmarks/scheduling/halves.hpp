// Two tenants, each confined to half of a device's SMs.
#pragma once

#include <memory>
#include <numeric>
#include <vector>

#include "runtime/device.hpp"
#include "runtime/stream.hpp"
#include "runtime/tenant.hpp"

namespace bench {

// The `index`-th of `of` equal shares of the device's SM groups; null where it has none (the simulated device
// may), which then runs without.
inline std::shared_ptr<gpk::SmPartition> share_of_sms(gpk::Device& device, int index, int of) {
    const int size = device.info().sm_groups / of;
    if (size == 0 && !device.is_cuda()) return nullptr;
    std::vector<int> groups(static_cast<std::size_t>(size));
    std::iota(groups.begin(), groups.end(), index * size);
    return std::make_shared<gpk::SmPartition>(device, groups);
}

inline std::shared_ptr<gpk::Tenant> tenant_on(std::shared_ptr<gpk::SmPartition> sms, const char* name,
                                              std::shared_ptr<gpk::LaunchHook> governor = nullptr) {
    return gpk::Tenant::create({.name = name, .governor = std::move(governor), .sms = std::move(sms)});
}

}  // namespace bench
