// Admission: which task may start now. What is admitted has everything it asked for reserved, in its own
// account and in all above it, or nothing at all: two tasks can never each hold a part and wait for the rest.
//
// Accounts form a tree: the device, below it partitions and tenants. The controller is deterministic (it
// asks no clock and no lock; the time is an argument) and a copy of it is a complete state, which is what
// the simulation and the model checker rest on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "scheduler/qos.hpp"

namespace gpk {

using TaskId = std::uint64_t;   // from 1
using AccountId = std::size_t;  // index; 0 is the device
inline constexpr AccountId kDeviceAccount = 0;
inline constexpr std::size_t kUnlimited = static_cast<std::size_t>(-1);

struct AccountLimits {
    std::size_t memory = kUnlimited;    // bytes; that of the device's account must be said
    double bandwidth = 1, compute = 1;  // shares of the device
    std::size_t max_queued = kUnlimited;
    std::size_t max_running = kUnlimited;
};

struct TaskRequest {
    QosTaskMeta qos;     // its bandwidth is a share of the device
    double compute = 0;  // share of the device; reserved for Guaranteed and Burstable
    AccountId account = kDeviceAccount;
    std::int64_t expected_ns = 0;  // how long it will run; 0 where that is unknown
};

enum class Verdict : std::uint8_t {
    admitted,   // all is reserved
    queued,     // something is missing now; asked again when something is released
    throttled,  // held back for others' sake until retry_after_ns has passed
    rejected,   // can never be admitted, or the queue is full
};
enum class Reason : std::uint8_t {
    none,
    dependencies,
    memory,
    bandwidth,
    compute,
    running_limit,  // the account runs as many tasks as it may
    pressure,
    queue_full,
    exceeds_memory,  // more than the account can ever have
    exceeds_bandwidth,
    exceeds_compute,
    shut_down,
};
std::string_view to_string(Verdict verdict) noexcept;
std::string_view to_string(Reason reason) noexcept;

struct Decision {
    Verdict verdict = Verdict::admitted;
    Reason reason = Reason::none;
    AccountId account = kDeviceAccount;  // which one decided
    double needed = 0, available = 0;    // of what the reason names: bytes, a share, tasks
    std::int64_t retry_after_ns = 0;     // 0: not by time
    double factor = 1;                   // of the bandwidth asked for, what was granted
};

struct AdmissionConfig {
    AccountLimits device;
    std::int64_t throttle_ns = 100'000'000;  // between two BestEffort starts when everything is promised
    std::int64_t retry_ns = 100'000'000;     // when to try again where no running task says its end
};

class AdmissionController {
   public:
    // Throws Error (value) for a device without memory, a share outside 0 to 1, a negative time.
    explicit AdmissionController(const AdmissionConfig& config);

    AccountId add_account(std::string name, const AccountLimits& limits, AccountId parent = kDeviceAccount);
    // What is reserved above a new limit stays until it is released.
    void set_limits(AccountId account, const AccountLimits& limits);

    // A place in the queue for a task that waits for `dependencies` others: queued, or rejected and unknown.
    Decision enqueue(TaskId task, const TaskRequest& request, std::size_t dependencies, std::int64_t now_ns);
    void dependency_done(TaskId task);
    // Reserves for a queued task, or says what is missing. `in_place`: it is to run in the place of a task
    // that waits for it, so neither the number of running tasks nor throttling holds it back.
    Decision admit(TaskId task, std::int64_t now_ns, bool in_place = false);
    // What admit() would say; changes nothing.
    Decision evaluate(TaskId task, std::int64_t now_ns, bool in_place = false) const;
    // What would be said of one more such task, as if it were queued first.
    Decision evaluate(const TaskRequest& request, std::int64_t now_ns) const;
    void withdraw(TaskId task);  // a queued task leaves
    void release(TaskId task);   // an admitted one gives all back. Once: Error (value) afterwards

    struct Held {
        TaskId task;
        std::size_t memory;
        Parts bandwidth, compute;
    };
    struct Account {
        std::string name;
        AccountLimits limits = {};
        AccountId parent = kDeviceAccount;
        Supply supply = {};
        Parts compute_total = kWhole, compute_reserved = 0;
        std::size_t queued = 0, running = 0;
    };

    std::size_t accounts() const noexcept { return accounts_.size(); }
    const Account& account(AccountId id) const;
    bool holds(TaskId task) const;
    // The admitted tasks below an account that hold something of what the reason names, largest first.
    std::vector<Held> holders(AccountId account, Reason reason) const;
    // Whether the account is the ancestor, or below it.
    bool is_below(AccountId account, AccountId ancestor) const;
    // Whether the task's request would fit if exactly `running` held their reservations.
    bool fits_beside(const TaskRequest& request, const std::vector<TaskId>& running) const;
    // Recounts every account from the tasks: empty, or what does not agree. For tests.
    std::string audit() const;

   private:
    struct Entry {
        TaskRequest request;
        std::size_t dependencies = 0;
        bool admitted = false;
        bool in_place = false;
        std::int64_t expected_end_ns = 0;
        Parts bandwidth = 0, compute = 0;  // reserved
    };

    Decision decide(const TaskRequest& request, std::int64_t now_ns, bool in_place, Parts* bandwidth) const;
    Decision rejection(const TaskRequest& request) const;
    Decision full_queue(AccountId account, std::int64_t now_ns) const;
    std::int64_t retry_after(std::int64_t now_ns) const;
    Entry& entry(const char* call, TaskId task, bool admitted);
    const Entry& entry(const char* call, TaskId task, bool admitted) const;
    void check_account(const char* call, AccountId account) const;
    template <class Do>
    void up_from(AccountId account, Do&& each);  // the account and all above it

    AdmissionConfig config_;
    std::vector<Account> accounts_;
    std::map<TaskId, Entry> entries_;
    std::int64_t last_best_effort_ns_;
};

}  // namespace gpk
