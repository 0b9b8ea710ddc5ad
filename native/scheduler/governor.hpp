// PartitionGovernor: what each piece of a partition's work passes. It lives as long as the tenant, which
// arrays may keep after the partition's end, and gives the last of its share back.
#pragma once

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
        : name_(std::move(name)), ledger_(std::move(ledger)), share_(share), pacing_(std::move(pacing)) {}
    ~PartitionGovernor() override;

    void before(const WorkRecord& work) override;
    void after(const WorkRecord& work, bool queued) noexcept override;

    Gate gate;
    const std::shared_ptr<KernelPacingEngine>& pacing() const noexcept { return pacing_; }
    void set_pacing(std::shared_ptr<KernelPacingEngine> pacing) noexcept {  // while the gate is closed
        pacing_ = std::move(pacing);
    }

   private:
    const std::string name_;
    const std::shared_ptr<Ledger> ledger_;
    const std::uint64_t share_;
    std::shared_ptr<KernelPacingEngine> pacing_;
};

[[noreturn]] void refuse_ended(const std::string& call, const std::string& partition);

}  // namespace gpk
