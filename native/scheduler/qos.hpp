// Quality of service: what a task asks for, and what a supply that others share can promise it.
//
// Requests and limits are as in Kubernetes. A request is promised and reserved, a limit is the most that
// may be used. Guaranteed: both are the same. Burstable: the request is at most the limit. BestEffort has
// no request: nothing is reserved for it, and under pressure it is the first to be held back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string_view>

#include "runtime/tenant.hpp"

namespace gpk {

inline constexpr std::size_t kNoMemoryLimit = static_cast<std::size_t>(-1);
inline constexpr int kMaxPriority = 1'000'000;  // and the same below zero

struct QosTaskMeta {
    QosClass qos = QosClass::best_effort;
    std::size_t memory_request = 0;  // bytes
    std::size_t memory_limit = kNoMemoryLimit;
    // In the unit of the total that it is compared with: a share of 1, or bytes a second.
    double bandwidth = 0;
    int priority = 0;  // 0 is normal; smaller is more urgent, as of streams

    static QosTaskMeta guaranteed(std::size_t memory, double bandwidth = 0, int priority = 0);
    static QosTaskMeta burstable(std::size_t request, std::size_t limit = kNoMemoryLimit,
                                 double bandwidth = 0, int priority = 0);
    static QosTaskMeta best_effort(std::size_t limit = kNoMemoryLimit, double bandwidth = 0,
                                   int priority = 0);

    // Throws Error (value) where the fields contradict the class or one is no number.
    void check(const char* call) const;
};

// Shares are counted in billionths, so that what was taken comes back to the last one.
using Parts = std::int64_t;
inline constexpr Parts kWhole = 1'000'000'000;
Parts to_parts(double amount, double total) noexcept;  // at least 1 of what is not 0
inline double to_share(Parts parts) noexcept { return static_cast<double>(parts) / kWhole; }

// What there is of something shared, and how much of it is promised.
struct Supply {
    std::size_t memory_total = 0, memory_reserved = 0;
    Parts bandwidth_total = kWhole, bandwidth_reserved = 0;

    std::size_t memory_free() const noexcept { return memory_total - memory_reserved; }
    Parts bandwidth_free() const noexcept { return bandwidth_total - bandwidth_reserved; }
    double pressure() const noexcept;  // 0 to 1: the fuller of the two
};

enum class QosVerdict : std::uint8_t { admit, throttle, reject };
enum class QosReason : std::uint8_t {
    none,
    memory_total,     // more than there is at all: never
    memory_in_use,    // more than is free now
    bandwidth_total,  // more than there is at all: never
    bandwidth_in_use,
    pressure,  // others are promised nearly everything
};
std::string_view to_string(QosVerdict verdict) noexcept;
std::string_view to_string(QosReason reason) noexcept;

struct QosEvaluation {
    QosVerdict verdict = QosVerdict::admit;
    QosReason reason = QosReason::none;
    double factor = 1;                 // of the bandwidth asked for, what may be used
    double needed = 0, available = 0;  // of what the reason names, in bytes or as a share
    Parts bandwidth = 0;               // to be reserved with it
};

// Where throttling begins, and how far it goes.
inline constexpr double kPressure = 0.8;
inline constexpr double kLeastFactor = 0.05;

// The rule, for whoever keeps a supply. BestEffort is throttled from kPressure on, in proportion to what is
// left; Burstable where less bandwidth is free than it asks for; Guaranteed never: it gets all or nothing.
QosEvaluation judge(const QosTaskMeta& meta, Parts bandwidth, const Supply& supply) noexcept;

// A supply of one's own to ask. Not for several threads at once.
class QosPolicyEvaluator {
   public:
    using Ticket = std::uint64_t;

    // Throws Error (value) unless both are above 0.
    QosPolicyEvaluator(std::size_t total_memory, double total_bandwidth);

    QosEvaluation evaluate(const QosTaskMeta& meta) const;
    // Reserves what evaluate() promises and gives a ticket for it. Throws Error (value) where it rejects.
    Ticket reserve(const QosTaskMeta& meta);
    // Once a ticket; Error (value) for one that is not held.
    void release(Ticket ticket);

    const Supply& supply() const noexcept { return supply_; }
    double total_bandwidth() const noexcept { return total_bandwidth_; }
    std::size_t held() const noexcept { return held_.size(); }

   private:
    struct Held {
        std::size_t memory;
        Parts bandwidth;
    };

    double total_bandwidth_;
    Supply supply_;
    std::map<Ticket, Held> held_;
    Ticket next_ = 1;
};

}  // namespace gpk
