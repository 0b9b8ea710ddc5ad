// What a partition is given, as it is asked for.
#pragma once

#include <cstddef>
#include <optional>

#include "runtime/tenant.hpp"
#include "scheduler/slicing.hpp"

namespace gpk {

// Each setter checks its number, throws Error (value) and returns the limits themselves.
class PartitionLimits {
   public:
    PartitionLimits& memory(std::size_t bytes);    // 1 to 2^63 - 1
    PartitionLimits& compute(double share);        // of the device's SMs, above 0 to 1
    PartitionLimits& bandwidth(double share);      // of the device's memory bandwidth, above 0 to 1
    PartitionLimits& streams(std::int64_t count);  // 1 to 4096
    PartitionLimits& qos(QosClass qos) noexcept;   // guaranteed by default
    PartitionLimits& slicing(const SliceConfig& config);

    // 0 where none was set.
    std::size_t memory() const noexcept { return memory_; }
    double compute() const noexcept { return compute_; }
    double bandwidth() const noexcept { return bandwidth_; }
    int streams() const noexcept { return streams_; }
    QosClass qos() const noexcept { return qos_; }
    const SliceConfig& slicing() const noexcept { return slicing_; }
    friend bool operator==(const PartitionLimits&, const PartitionLimits&) = default;

   private:
    std::size_t memory_ = 0;
    double compute_ = 0, bandwidth_ = 0;
    int streams_ = 0;
    QosClass qos_ = QosClass::guaranteed;
    SliceConfig slicing_;
};

// The SM groups that a share comes to: whole ones, not more than the share, at least one; 0 where there is no
// share or the device has no groups.
int groups_for(double share, int groups) noexcept;

}  // namespace gpk
