// PartitionGovernor: what each piece of a partition's work passes. It lives as long as the tenant, which
// arrays may keep after the partition's end, and gives the last of its share back.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "runtime/launcher.hpp"
#include "runtime/tenant.hpp"
#include "scheduler/gate.hpp"
#include "scheduler/ledger.hpp"
#include "scheduler/pacing.hpp"

namespace gpk {

class PartitionGovernor : public LaunchHook {
   public:
    PartitionGovernor(std::string name, std::shared_ptr<Ledger> ledger, std::uint64_t share,
                      std::shared_ptr<KernelPacingEngine> pacing)
        : name_(std::move(name)), ledger_(std::move(ledger)), share_(share) {
        set_pacing(std::move(pacing));
    }
    ~PartitionGovernor() override;

    void before(const WorkRecord& work) override;
    void after(const WorkRecord& work, bool queued) noexcept override;
    std::int64_t slices(const WorkRecord& whole, std::int64_t most) override;

    Gate gate;
    const std::shared_ptr<KernelPacingEngine>& pacing() const noexcept { return pacing_; }
    void set_pacing(std::shared_ptr<KernelPacingEngine> pacing) noexcept {  // while the gate is closed
        pacing_ = std::move(pacing);
        slicing_.store(pacing_->config().slicing.max_ns > 0, std::memory_order_relaxed);
    }

   private:
    const std::string name_;
    const std::shared_ptr<Ledger> ledger_;
    const std::uint64_t share_;
    std::shared_ptr<KernelPacingEngine> pacing_;
    std::atomic<bool> slicing_{false};  // so that work of a tenant that cuts nothing reads no more than this
};

[[noreturn]] void refuse_ended(const std::string& call, const std::string& partition);

}  // namespace gpk
