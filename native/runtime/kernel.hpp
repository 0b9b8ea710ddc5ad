// Kernel: a KernelDef with its function on each device, resolved at first use.
#pragma once

#include <atomic>

#include "driver/driver.hpp"
#include "runtime/device.hpp"

namespace gpk {

class Kernel {
   public:
    // Prebuilt kernels: constructed from constants, before anything runs.
    constexpr explicit Kernel(const KernelDef& def) : def_(def) {}
    Kernel(const Kernel&) = delete;
    Kernel& operator=(const Kernel&) = delete;

    const KernelDef& def() const noexcept { return def_; }
    const char* name() const noexcept { return def_.name; }

    FunctionHandle on(Device& device) const {
        const int slot = device.slot();
        if (slot >= kCachedDevices) return device.driver().function(def_);
        const FunctionHandle known = functions_[slot].load(std::memory_order_acquire);
        return known != nullptr ? known : resolve(device);
    }

   private:
    FunctionHandle resolve(Device& device) const;

    KernelDef def_;
    mutable std::atomic<FunctionHandle> functions_[kCachedDevices] = {};
};

}  // namespace gpk
