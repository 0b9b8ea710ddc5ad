#include "scheduler/policy.hpp"

#include <array>

#include "base/error.hpp"

namespace gpk {

namespace {

// kMaxPriority levels of it fit 63 bits, beside the time.
constexpr std::int64_t kMaxAgeing = 3'600'000'000'000;

std::int64_t by_arrival(const TaskFacts&, const PolicyOptions&) noexcept { return 0; }

std::int64_t by_length(const TaskFacts& task, const PolicyOptions&) noexcept {
    return task.expected_ns > 0 ? task.expected_ns : kNever;
}

// Both tasks age alike, so their order never changes: the moment at which a task would have the priority 0.
std::int64_t by_aged_priority(const TaskFacts& task, const PolicyOptions& options) noexcept {
    return task.ready_ns + task.priority * options.ageing_ns;
}

std::int64_t by_deadline(const TaskFacts& task, const PolicyOptions&) noexcept { return task.deadline_ns; }

constexpr std::array kPolicies{
    Policy{"fifo", by_arrival, false},           Policy{"shortest_job_first", by_length, false},
    Policy{"priority", by_aged_priority, false}, Policy{"deadline", by_deadline, false},
    Policy{"fair", by_aged_priority, true},
};

}  // namespace

const Policy& policy(PolicyKind kind) noexcept { return kPolicies[static_cast<std::size_t>(kind)]; }
std::span<const Policy> policies() noexcept { return kPolicies; }

PolicyKind policy_named(std::string_view name) {
    std::string names;
    for (std::size_t i = 0; i < kPolicies.size(); ++i) {
        if (kPolicies[i].name == name) return static_cast<PolicyKind>(i);
        names += str(i == 0 ? "" : ", ", "'", kPolicies[i].name, "'");
    }
    throw error(ErrorKind::value, {.call = "Scheduler",
                                   .argument = "policy",
                                   .expected = str("one of ", names),
                                   .got = str("'", name, "'")});
}

void check_policy(const PolicyOptions& options) {
    if (options.ageing_ns < 1 || options.ageing_ns > kMaxAgeing) {
        throw error(ErrorKind::value, {.call = "Scheduler",
                                       .argument = "ageing",
                                       .expected = str("1 to ", kMaxAgeing, " ns"),
                                       .got = str(options.ageing_ns)});
    }
    if (options.patience_ns < 0 || options.backfill < 0) {
        throw error(ErrorKind::value,
                    {.call = "Scheduler",
                     .argument = options.patience_ns < 0 ? "patience" : "backfill",
                     .expected = "0 or more",
                     .got = str(options.patience_ns < 0 ? options.patience_ns : options.backfill)});
    }
}

}  // namespace gpk
