// Who the benchmarks' work is done for.
#pragma once

#include <memory>
#include <utility>

#include "runtime/device.hpp"
#include "runtime/stream.hpp"
#include "runtime/tenant.hpp"
#include "scheduler/partition.hpp"

namespace bench {

// Half of the device, as any user gets it: by the device's ledger, which other processes share.
inline std::shared_ptr<gpk::Partition> half_of(gpk::Device& device, const char* name) {
    return gpk::PartitionManager::of(device).create_anonymous(name, gpk::PartitionLimits().compute(0.5));
}

// A tenant with a governor of its own and no partition.
inline std::shared_ptr<gpk::Tenant> tenant_with(const char* name,
                                                std::shared_ptr<gpk::LaunchHook> governor = nullptr) {
    return gpk::Tenant::create({.name = name, .governor = std::move(governor)});
}

}  // namespace bench
