// When a failure breaks a device for the process.
#include <algorithm>
#include <iterator>

#include "base/log.hpp"
#include "runtime/device.hpp"

namespace gpk {

namespace {

// Codes after which, by the CUDA driver API's manual (enum CUresult), "the process must be terminated and
// relaunched", and those that may be such. The device is asked too: a call can fail so alone.
constexpr int kBreaking[] = {
    214,  // ECC_UNCORRECTABLE
    220,  // NVLINK_UNCORRECTABLE
    700,  // ILLEGAL_ADDRESS
    702,  // LAUNCH_TIMEOUT
    710,  // ASSERT
    714,  // HARDWARE_STACK_ERROR
    715,  // ILLEGAL_INSTRUCTION
    716,  // MISALIGNED_ADDRESS
    717,  // INVALID_ADDRESS_SPACE
    718,  // INVALID_PC
    719,  // LAUNCH_FAILED
    999,  // UNKNOWN
};

bool may_break(const DriverError& failure) {
    return std::find(std::begin(kBreaking), std::end(kBreaking), failure.code()) != std::end(kBreaking);
}

}  // namespace

void Device::note(const DriverError& failure) noexcept {
    if (!may_break(failure) || lost()) return;
    try {
        driver_->memory_info();
    } catch (const DriverError& again) {
        if (!may_break(again)) return;
        std::lock_guard lock(lost_mutex_);
        if (lost()) return;
        try {
            first_failure_ = std::make_unique<DeviceLostError>(name_, failure);
            log(LogLevel::warning, first_failure_->what());
        } catch (const std::exception&) {
            if (!first_failure_) return;  // no memory for its name: the next failure tells
        }
        lost_.store(true, std::memory_order_release);
    } catch (const std::exception&) {
        // The driver did not answer; the next failure tells.
    }
}

void Device::throw_lost() const {
    std::lock_guard lock(lost_mutex_);
    throw DeviceLostError(*first_failure_);
}

}  // namespace gpk
