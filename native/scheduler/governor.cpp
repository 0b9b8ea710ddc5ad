#include "scheduler/governor.hpp"

#include "base/error.hpp"

namespace gpk {

PartitionGovernor::~PartitionGovernor() { ledger_->give_back(share_); }

void PartitionGovernor::before(const WorkRecord& work) {
    if (!gate.enter()) refuse_ended(std::string(work.name), name_);
    try {
        pacing_->before(work);
    } catch (...) {
        gate.leave();
        throw;
    }
}

void PartitionGovernor::after(const WorkRecord& work, bool queued) noexcept {
    pacing_->after(work, queued);
    gate.leave();
}

// Of an ended partition: the launch itself will say so.
std::int64_t PartitionGovernor::slices(const WorkRecord& whole, std::int64_t most) {
    if (!slicing_.load(std::memory_order_relaxed) || !gate.enter()) return 1;
    const std::int64_t count = pacing_->slices(whole, most);
    gate.leave();
    return count;
}

void refuse_ended(const std::string& call, const std::string& partition) {
    throw error(ErrorKind::unsupported, {.call = call,
                                         .expected = "a partition that is there",
                                         .got = str("'", partition, "', which was destroyed"),
                                         .fix = "run it outside, or in another partition"});
}

}  // namespace gpk
