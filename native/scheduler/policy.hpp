// Policies: in which order tasks that are ready get to ask for admission. A policy is a row of a table: a
// key that is computed once, when a task becomes ready, and whether accounts take turns by their weight.
//
// What keeps a task from starving:
//   fifo      nothing submitted later goes before it.
//   priority  waiting makes a task more urgent: one level each `ageing_ns`. A task of priority p, ready at
//             time t, is never passed by one of priority q that became ready later than
//             t + (p - q) * ageing_ns; with q0 the most urgent in use, by none after t + (p - q0) *
//             ageing_ns.
//   fair      an account with work gets its weight's part of the running time, whatever others submit; inside
//             an account as `priority`.
//   shortest_job_first, deadline   no bound: short or urgent tasks that keep coming pass a long one for ever.
// "Passed" is about the order. A task that the order puts first may still lack memory; smaller ones may then
// start before it, but only until it has waited `patience_ns`: from then on what is released is kept for it.
#pragma once

#include <compare>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>

namespace gpk {

inline constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

enum class PolicyKind : std::uint8_t { fifo, shortest_job_first, priority, deadline, fair };

struct PolicyOptions {
    PolicyKind kind = PolicyKind::fifo;
    std::int64_t ageing_ns = 1'000'000'000;
    std::int64_t patience_ns = 1'000'000'000;
    int backfill = 64;  // tasks of an account that are asked past one that does not fit
};

// What a policy may know of a task.
struct TaskFacts {
    std::int64_t ready_ns = 0;
    int priority = 0;
    std::int64_t expected_ns = 0;  // 0 where unknown: taken for the longest
    std::int64_t deadline_ns = kNever;
};

// Smaller goes first; among equals the one submitted first.
struct ReadyKey {
    std::int64_t rank = 0;
    std::uint64_t task = 0;
    auto operator<=>(const ReadyKey&) const = default;
};

struct Policy {
    std::string_view name;
    std::int64_t (*rank)(const TaskFacts& task, const PolicyOptions& options) noexcept;
    bool by_account;
};

const Policy& policy(PolicyKind kind) noexcept;
std::span<const Policy> policies() noexcept;  // indexed by PolicyKind
// Throws Error (value) with the names there are.
PolicyKind policy_named(std::string_view name);
// Throws Error (value) for negative times or a backfill below 0.
void check_policy(const PolicyOptions& options);

}  // namespace gpk
