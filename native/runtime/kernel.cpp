#include "runtime/kernel.hpp"

namespace gpk {

FunctionHandle Kernel::resolve(Device& device) const {
    const FunctionHandle function = device.driver().function(def_);
    functions_[device.slot()].store(function, std::memory_order_release);
    return function;
}

}  // namespace gpk
