// Tenant: who work is done for: a partition, a task, a memory pool of the user's.
//
// A stream belongs to one tenant or to none. What is allocated on the stream is charged to its tenant and
// to all above it; what is launched on it passes the tenant's governor. So a promise made to a tenant is
// kept where the work goes by, not beside it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <vector>

#include "driver/driver.hpp"

namespace gpk {

class Device;
class LaunchHook;
class Stream;

// As in Kubernetes: what was promised in full, what was promised in part, what takes what is left.
enum class QosClass : std::uint8_t { guaranteed, burstable, best_effort };
std::string_view to_string(QosClass qos) noexcept;  // "guaranteed" and so on

// SMs set aside on a device, given back with the last stream that runs there.
class SmPartition {
   public:
    // `groups`: indices below info().sm_groups. Throws Error (unsupported) where the device has none.
    SmPartition(Device& device, std::vector<int> groups);
    ~SmPartition();
    SmPartition(const SmPartition&) = delete;
    SmPartition& operator=(const SmPartition&) = delete;

    Device& device() const noexcept { return device_; }
    SmPartitionHandle handle() const noexcept { return handle_; }
    const std::vector<int>& groups() const noexcept { return groups_; }
    int multiprocessors() const noexcept;

   private:
    Device& device_;
    std::vector<int> groups_;
    SmPartitionHandle handle_;
};

struct TenantOptions {
    std::string name;
    QosClass qos = QosClass::burstable;
    std::size_t memory_limit = 0;  // bytes; 0 for none of its own
    int max_streams = 0;           // 0 for no limit
    std::shared_ptr<LaunchHook> governor = nullptr;
    std::shared_ptr<SmPartition> sms = nullptr;  // null: as the parent
    // False for the many that live shortly, such as tasks: metrics and traces show what is theirs as the
    // parent's, with their own class.
    bool shown = true;
};

class Tenant {
   public:
    static std::shared_ptr<Tenant> create(TenantOptions options, std::shared_ptr<Tenant> parent = nullptr);
    ~Tenant();
    Tenant(const Tenant&) = delete;
    Tenant& operator=(const Tenant&) = delete;

    std::uint64_t id() const noexcept { return id_; }  // unique in the process, never reused
    const std::string& name() const noexcept { return name_; }
    QosClass qos() const noexcept { return qos_.load(std::memory_order_relaxed); }
    void set_qos(QosClass qos) noexcept { qos_.store(qos, std::memory_order_relaxed); }
    Tenant* parent() const noexcept { return parent_.get(); }
    // The nearest, from this one on up, that metrics and traces show; null for none.
    const Tenant* shown() const noexcept { return shown_; }
    // Its own or, without one, the nearest above it; null for none.
    LaunchHook* governor() const noexcept { return governor_; }
    // As the governor: its own or that of the nearest above it. set_sms() is for streams to come; whoever
    // calls it moves the live ones, and keeps others from being made meanwhile (placing_alone).
    std::shared_ptr<SmPartition> sms() const;
    void set_sms(std::shared_ptr<SmPartition> sms) noexcept;
    // The SMs that a kernel of this tenant can use, for those that size themselves by it.
    int multiprocessors(const Device& device) const;

    // Memory. charge() takes from this tenant and all above it, or, returning the one that has no room,
    // from none; null means done.
    const Tenant* charge(std::size_t bytes) noexcept;
    void uncharge(std::size_t bytes) noexcept;
    std::size_t memory_used() const noexcept { return used_.load(std::memory_order_relaxed); }
    std::size_t memory_peak() const noexcept { return peak_.load(std::memory_order_relaxed); }
    std::size_t memory_limit() const noexcept { return limit_.load(std::memory_order_relaxed); }
    // Below what is used now: nothing is taken away, and charges fail until it fits.
    void set_memory_limit(std::size_t bytes) noexcept { limit_.store(bytes, std::memory_order_relaxed); }

    int live_streams() const noexcept { return live_streams_.load(std::memory_order_relaxed); }
    void set_max_streams(int count) noexcept { max_streams_.store(count, std::memory_order_relaxed); }
    // Those of this tenant and of all below it.
    std::vector<std::shared_ptr<Stream>> streams() const;
    // Held while a stream is made; the second keeps all others of the same tree waiting.
    std::shared_lock<std::shared_mutex> placing() { return std::shared_lock(top().placing_mutex_); }
    std::unique_lock<std::shared_mutex> placing_alone() { return std::unique_lock(top().placing_mutex_); }

   private:
    friend class Stream;
    Tenant(TenantOptions options, std::shared_ptr<Tenant> parent);
    bool add_stream() noexcept;  // false where this tenant or one above has all it may
    void drop_stream() noexcept;
    void know(const std::shared_ptr<Stream>& stream);
    Tenant& top() noexcept { return parent_ ? parent_->top() : *this; }

    const std::string name_;
    const std::shared_ptr<Tenant> parent_;
    const std::uint64_t id_;
    const Tenant* const shown_;
    const std::shared_ptr<LaunchHook> own_governor_;
    LaunchHook* const governor_;
    std::atomic<QosClass> qos_;
    std::atomic<std::size_t> limit_, used_{0}, peak_{0};
    std::atomic<int> max_streams_, live_streams_{0};
    std::shared_mutex placing_mutex_;
    mutable std::mutex mutex_;  // over the two below
    std::shared_ptr<SmPartition> own_sms_;
    std::vector<std::weak_ptr<Stream>> streams_;
};

// Those that somebody holds now, in the order in which they were made.
std::vector<std::shared_ptr<Tenant>> live_tenants();

}  // namespace gpk
