// Partition: a part of a device that work can be given: memory, SMs, streams, bandwidth. Its tenant is what
// streams belong to; docs/scheduling.md says which mechanism stands behind each promise.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/device.hpp"
#include "runtime/stream.hpp"
#include "runtime/tenant.hpp"
#include "scheduler/ledger.hpp"
#include "scheduler/limits.hpp"
#include "scheduler/pacing.hpp"

namespace gpk {

class PartitionGovernor;

struct PartitionConfig {
    Device* device = nullptr;      // null: the calling thread's current one
    std::size_t total_memory = 0;  // that the manager may give; 0: all of the device's
};

enum class GuaranteeLevel : std::uint8_t { enforced, advisory, simulated };
std::string_view to_string(GuaranteeLevel level) noexcept;

struct Guarantee {
    std::string resource;  // "memory", "compute", "bandwidth", "streams", "slicing"
    GuaranteeLevel level;
    std::string mechanism, reason;
};

struct PartitionUsage {
    std::size_t memory_used = 0, memory_peak = 0;
    int streams = 0;
    int entered = 0;  // scopes of it that are open now
};

class Partition {
   public:
    ~Partition();  // ends it: waits for its work
    Partition(const Partition&) = delete;
    Partition& operator=(const Partition&) = delete;

    const std::string& id() const noexcept { return id_; }
    const std::string& name() const noexcept { return name_; }
    Device& device() const noexcept { return device_; }
    bool alive() const;
    PartitionLimits limits() const;
    PartitionUsage usage() const;
    // What it was really given.
    std::vector<int> sm_groups() const;
    int multiprocessors() const;
    double compute() const;
    std::vector<Guarantee> guarantees() const;
    PacingStats pacing() const;  // since the last resize

    // Throws Error (unsupported) once it is destroyed.
    std::shared_ptr<Tenant> tenant() const;
    // A stream of the partition for the length of a scope: one that no scope has, a new one, or, where it has
    // all the streams it may, one that others share.
    std::shared_ptr<Stream> enter();
    void leave(const std::shared_ptr<Stream>& stream) noexcept;

   private:
    friend class PartitionManager;
    struct Own {
        std::shared_ptr<Stream> stream;
        int users = 0;
    };

    Partition(Device& device, std::string id, std::string name, const PartitionLimits& limits,
              std::shared_ptr<Tenant> parent);
    Share share_of(const PartitionLimits& limits) const;
    Capacity capacity() const;
    void check_alive(const char* call) const;
    void resize(const PartitionLimits& limits);
    // Waits for its work. Where `forced`, nothing stops it and nothing is thrown.
    void end(bool forced);
    void drain(const std::vector<std::shared_ptr<Stream>>& streams) const;
    void move(std::vector<std::shared_ptr<Stream>> streams, const std::shared_ptr<SmPartition>& sms);
    void give_back_share() noexcept;
    std::shared_ptr<KernelPacingEngine> make_pacing(const PartitionLimits& limits) const;
    void restart_pacing(const PartitionLimits& limits) noexcept;

    Device& device_;
    const std::string id_, name_;
    const std::shared_ptr<Ledger> ledger_;
    const std::shared_ptr<Stream> idle_;  // whose driver's stream stands in for those of ended partitions
    std::mutex change_mutex_;             // one resize or end at a time
    std::shared_ptr<PartitionGovernor> governor_;
    std::shared_ptr<Tenant> tenant_;
    mutable std::mutex mutex_;  // over all below
    PartitionLimits limits_;
    LedgerEntry entry_;
    bool alive_ = true;
    int entered_ = 0;
    std::vector<Own> own_;
    std::shared_ptr<KernelPacingEngine> pacing_;  // the governor's
};

class PartitionManager {
   public:
    // Throws Error (value) where there is less memory than total_memory.
    explicit PartitionManager(const PartitionConfig& config);
    // The device's own, for partitions without a manager of the caller's.
    static PartitionManager& of(Device& device);

    Device& device() const noexcept { return device_; }
    std::size_t total_memory() const noexcept { return total_memory_; }

    // Throws Error (value) for an id in use, (memory) and (unsupported) where the device has not so much
    // left.
    std::shared_ptr<Partition> create(std::string id, std::string name, const PartitionLimits& limits);
    // Without an id: lives as long as somebody holds it.
    std::shared_ptr<Partition> create_anonymous(std::string name, const PartitionLimits& limits);
    std::shared_ptr<Partition> get(const std::string& id) const;  // Error (value) for an unknown id
    std::vector<std::shared_ptr<Partition>> list() const;         // in the order of their ids
    // Waits for the partition's work; new work waits meanwhile, and then runs within the new limits. Where it
    // throws, the partition is as it was.
    void resize(Partition& partition, const PartitionLimits& limits);
    // Waits for its work. Error (unsupported) while a scope or a capture of it is open. Arrays made in it
    // live on, and what they hold of its memory is given back with them.
    void destroy(const std::string& id);

   private:
    void check_total(const std::vector<std::shared_ptr<Partition>>& all, const Partition* but,
                     const PartitionLimits& limits) const;
    std::vector<std::shared_ptr<Partition>> all_locked() const;

    Device& device_;
    const std::size_t total_memory_;
    const std::shared_ptr<Tenant> parent_;  // whose limit is total_memory; null where that is the device's
    mutable std::mutex mutex_;
    std::map<std::string, std::shared_ptr<Partition>> named_;
    std::vector<std::weak_ptr<Partition>> anonymous_;
    std::uint64_t next_anonymous_ = 1;
};

}  // namespace gpk
