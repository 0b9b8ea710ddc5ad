// What the scheduler's tests share: short ways to say a task.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "scheduler/core.hpp"

namespace sched {

inline constexpr std::int64_t kMs = 1'000'000;
inline constexpr std::int64_t kSecond = 1'000'000'000;
inline constexpr std::size_t kMiB = std::size_t{1} << 20;

inline gpk::CoreConfig config(std::size_t memory, gpk::PolicyKind kind = gpk::PolicyKind::fifo,
                              std::size_t max_running = gpk::kUnlimited) {
    gpk::CoreConfig out;
    out.admission.device.memory = memory;
    out.admission.device.max_running = max_running;
    out.policy.kind = kind;
    return out;
}

inline gpk::TaskSpec task(const gpk::QosTaskMeta& qos, gpk::AccountId account = gpk::kDeviceAccount,
                          std::vector<gpk::TaskId> after = {}) {
    gpk::TaskSpec out;
    out.request.qos = qos;
    out.request.account = account;
    out.after = std::move(after);
    return out;
}

inline gpk::TaskSpec memory_task(std::size_t bytes, gpk::AccountId account = gpk::kDeviceAccount,
                                 std::vector<gpk::TaskId> after = {}) {
    return task(gpk::QosTaskMeta::guaranteed(bytes), account, std::move(after));
}

// Starts whatever may start, in order.
inline std::vector<gpk::TaskId> start_all(gpk::SchedulerCore& core) {
    std::vector<gpk::TaskId> out;
    while (const auto next = core.start_next()) out.push_back(*next);
    return out;
}

template <class Call>
std::string message_of(gpk::ErrorKind kind, Call&& call) {
    try {
        call();
    } catch (const gpk::Error& failure) {
        EXPECT_EQ(static_cast<int>(failure.kind()), static_cast<int>(kind)) << failure.what();
        return failure.what();
    }
    ADD_FAILURE() << "nothing was thrown";
    return {};
}

// A small generator whose numbers are the same everywhere.
class Random {
   public:
    explicit Random(std::uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15u + 1) {}
    std::uint64_t next() {
        state_ += 0x9E3779B97F4A7C15u;
        std::uint64_t z = state_;
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
        return z ^ (z >> 31);
    }
    std::uint64_t below(std::uint64_t limit) { return next() % limit; }
    double unit() { return static_cast<double>(next() >> 11) * 0x1p-53; }

   private:
    std::uint64_t state_;
};

}  // namespace sched
