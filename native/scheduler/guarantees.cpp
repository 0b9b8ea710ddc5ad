// What stands behind each of a partition's limits, on this device and driver.
#include "base/error.hpp"
#include "scheduler/partition.hpp"

namespace gpk {

std::string_view to_string(GuaranteeLevel level) noexcept {
    static constexpr std::string_view kNames[] = {"enforced", "advisory", "simulated"};
    return kNames[static_cast<int>(level)];
}

std::vector<Guarantee> Partition::guarantees() const {
    const DeviceInfo& info = device_.info();
    const PartitionLimits limits = this->limits();
    const auto level = [&](GuaranteeLevel on_gpu) {
        return device_.is_cuda() ? on_gpu : GuaranteeLevel::simulated;
    };
    const std::string unlimited = "no limit was set";
    const std::string others = ledger_->shared()
                                   ? "promised once over all processes of this user that use this library; "
                                     "others are not bound by it"
                                   : "promised once within this process: there is no ledger for others";
    std::vector<Guarantee> all;
    all.push_back({"memory", level(GuaranteeLevel::enforced), "the memory pool charges each allocation",
                   limits.memory() == 0 ? unlimited : others});
    if (limits.compute() == 0) {
        all.push_back({"compute", level(GuaranteeLevel::advisory), "none", unlimited});
    } else if (info.sm_groups > 0) {
        all.push_back({"compute", level(GuaranteeLevel::enforced), "SMs of its own (a green context)",
                       str(multiprocessors(), " of ", info.multiprocessors, " SMs, in groups of ",
                           info.sm_group_size, "; work outside of all partitions uses every SM; ", others)});
    } else {
        all.push_back(
            {"compute", level(GuaranteeLevel::advisory), "launches are paced by measured device time",
             "this driver has no green contexts: it gets no more than its share of time, and nothing "
             "keeps others off its SMs"});
    }
    if (limits.bandwidth() == 0) {
        all.push_back({"bandwidth", level(GuaranteeLevel::advisory), "none", unlimited});
    } else if (info.memory_bandwidth == 0) {
        all.push_back({"bandwidth", level(GuaranteeLevel::advisory), "none",
                       "the share is accounted; the driver does not say how much bandwidth there is"});
    } else {
        all.push_back(
            {"bandwidth", level(GuaranteeLevel::advisory), "launches are paced by the bytes they declare",
             str(limits.bandwidth(), " of ", info.memory_bandwidth / 1e9,
                 " GB/s on the average of some milliseconds; kernels of the user's declare none, and "
                 "a kernel that runs is not slowed")});
    }
    all.push_back({"streams", level(GuaranteeLevel::enforced), "a stream beyond the limit is refused",
                   limits.streams() == 0 ? unlimited : str(limits.streams(), " at most")});
    if (limits.slicing() == SliceConfig()) {
        all.push_back({"slicing", level(GuaranteeLevel::advisory), "none", "no length of a launch was set"});
    } else {
        all.push_back({"slicing", level(GuaranteeLevel::advisory),
                       "products and attention go as several launches, each of which is paced",
                       str(static_cast<double>(limits.slicing().max_ns) / 1e3,
                           " us of a launch, by the times measured of its kernel; one has at least a block "
                           "for each SM, and other kernels are not cut")});
    }
    return all;
}

}  // namespace gpk
