// What the sweeps of faults share: every error code, a watchdog, and the sweep itself. A scenario is run once
// without a fault, to count its driver calls; then once for each call, each code, and a fault that passes as
// well as one that stays.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "driver/sim_error.hpp"
#include "memory/pinned.hpp"
#include "memory/pool.hpp"
#include "sim_support.hpp"

namespace faults {

struct Code {
    int code;
    const char* name;
    bool breaks = false;  // the device, for the process: as runtime/device_lost.cpp has it
};

inline constexpr Code of(gpk::SimCode code) { return {code.code, code.name}; }

// Every code that the drivers and the runtime know: those of driver/sim_error.hpp, of driver/cuda_types.hpp
// and of runtime/device_lost.cpp. The first three are one of each
// kind that the code treats alike: it breaks the device, it asks for room, it is just a failure.
inline constexpr Code kCodes[] = {
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS", true},
    of(gpk::sim_code::kOutOfMemory),
    of(gpk::sim_code::kInvalidValue),
    {4, "CUDA_ERROR_DEINITIALIZED"},
    {34, "CUDA_ERROR_STUB_LIBRARY"},
    {100, "CUDA_ERROR_NO_DEVICE"},
    {209, "CUDA_ERROR_NO_BINARY_FOR_GPU"},
    {214, "CUDA_ERROR_ECC_UNCORRECTABLE", true},
    {220, "CUDA_ERROR_NVLINK_UNCORRECTABLE", true},
    {222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"},
    of(gpk::sim_code::kInvalidHandle),
    of(gpk::sim_code::kIllegalState),
    {500, "CUDA_ERROR_NOT_FOUND"},
    of(gpk::sim_code::kNotReady),
    {702, "CUDA_ERROR_LAUNCH_TIMEOUT", true},
    of(gpk::sim_code::kContextIsDestroyed),
    {710, "CUDA_ERROR_ASSERT", true},
    {714, "CUDA_ERROR_HARDWARE_STACK_ERROR", true},
    {715, "CUDA_ERROR_ILLEGAL_INSTRUCTION", true},
    {716, "CUDA_ERROR_MISALIGNED_ADDRESS", true},
    {717, "CUDA_ERROR_INVALID_ADDRESS_SPACE", true},
    {718, "CUDA_ERROR_INVALID_PC", true},
    {719, "CUDA_ERROR_LAUNCH_FAILED", true},
    of(gpk::sim_code::kNotSupported),
    of(gpk::sim_code::kCaptureUnsupported),
    of(gpk::sim_code::kCaptureInvalidated),
    of(gpk::sim_code::kCaptureMerge),
    of(gpk::sim_code::kCaptureUnmatched),
    of(gpk::sim_code::kCaptureUnjoined),
    of(gpk::sim_code::kCaptureIsolation),
    of(gpk::sim_code::kCapturedEvent),
    of(gpk::sim_code::kInvalidClusterSize),
    {999, "CUDA_ERROR_UNKNOWN", true},
};
inline constexpr std::size_t kCodeCount = std::size(kCodes), kKinds = 3;

// Ends the process, naming what hangs: a deadlock must fail and not wait for the end of a CI job.
class Watchdog {
   public:
    explicit Watchdog(std::chrono::seconds limit = std::chrono::seconds(60)) : limit_(limit) {}
    ~Watchdog() {
        {
            const std::lock_guard lock(mutex_);
            over_ = true;
        }
        changed_.notify_all();
        thread_.join();
    }
    Watchdog(const Watchdog&) = delete;
    Watchdog& operator=(const Watchdog&) = delete;

    void next(std::string what) {
        const std::lock_guard lock(mutex_);
        what_ = std::move(what);
        ++turn_;
    }

   private:
    void watch() {
        std::unique_lock lock(mutex_);
        while (!over_) {
            const std::uint64_t turn = turn_;
            if (changed_.wait_for(lock, limit_, [this] { return over_; }) || turn != turn_) continue;
            std::fprintf(stderr, "hangs: %s\n", what_.c_str());
            std::abort();
        }
    }

    const std::chrono::seconds limit_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::string what_ = "before the first";
    std::uint64_t turn_ = 0;
    bool over_ = false;
    std::thread thread_{[this] { watch(); }};
};

// A device, and the plan of faults for one run of a program.
class Run {
   public:
    explicit Run(sim::TestDevice& target, bool sticky = false)
        : target(target), device(target.device), sticky_(sticky) {}

    sim::TestDevice& target;
    gpk::Device& device;

    // Ends the plan, so that a program can look at what a failed operation left.
    void mend() {
        if (!counts_) counts_ = target.driver.call_counts();
        target.driver.set_faults({});
    }
    bool mended() const { return counts_.has_value(); }
    // The calls up to the end of the plan.
    std::map<std::string, int> counts() const { return counts_ ? *counts_ : target.driver.call_counts(); }

    // An operation that is done or not done: where it throws, `as_before` looks at what it left, unless a
    // sticky fault took what was queued with it.
    template <class Operation, class Check>
    void whole(Operation&& operation, Check&& as_before) {
        try {
            operation();
        } catch (const gpk::Error&) {
            mend();
            if (!sticky_) as_before();
            throw;
        }
    }

   private:
    const bool sticky_;
    std::optional<std::map<std::string, int>> counts_;
};

struct Scenario {
    const char* name;
    std::function<void(Run&)> program;  // throws what failed; else all its values were right
    gpk::SimOptions options = {};
    std::function<void(sim::TestDevice&)> prepare = nullptr;  // once a device, without faults
    // Beside what every scenario is asked for: see expect_nothing_left.
    std::function<void(sim::TestDevice&, const std::string& where)> settle = nullptr;
    std::size_t most_streams = 1, most_events = 1;  // that stay: the default one's, unless more are said
    // Calls that threads repeat until something happens: so many of them are made to fail.
    int most_polls = 1 << 20;
    bool threads = false;  // the program has some: its calls are not the same ones in each run
};

struct Swept {
    int planned = 0, reached = 0, thrown = 0;
    std::set<int> codes;  // of faults that were met
};

inline void expect_nothing_left(const Scenario& scenario, sim::TestDevice& target, const std::string& where) {
    if (scenario.settle) scenario.settle(target, where);
    gpk::MemoryPool& pool = gpk::MemoryPool::of(target.device);
    EXPECT_EQ(pool.stats().live_bytes, 0u) << where;
    pool.trim();
    gpk::PinnedPool::of(target.device).trim();
    const gpk::PoolStats stats = pool.stats();
    EXPECT_EQ(stats.live_blocks, 0u) << where;
    EXPECT_EQ(stats.reserved_bytes, 0u) << where;
    EXPECT_EQ(stats.cached_bytes, 0u) << where;
    EXPECT_EQ(stats.evicted_bytes, 0u) << where;
    EXPECT_EQ(gpk::PinnedPool::of(target.device).stats().live_blocks, 0u) << where;
    const gpk::SimDriver& driver = target.driver;
    EXPECT_EQ(driver.bytes_in_use(), 0u) << where;
    EXPECT_EQ(driver.live_allocations(), 0u) << where;
    EXPECT_EQ(driver.live_physical(), 0u) << where;
    EXPECT_EQ(driver.live_reservations(), 0u) << where;
    EXPECT_EQ(driver.host_bytes(), 0u) << where;
    EXPECT_EQ(driver.live_graphs(), 0u) << where;
    EXPECT_EQ(driver.live_sm_partitions(), 0u) << where;
    EXPECT_EQ(driver.invalid_frees(), 0u) << where;
    EXPECT_LE(driver.live_streams(), scenario.most_streams) << where;
    EXPECT_LE(driver.live_events(), scenario.most_events) << where;
}

inline bool is_poll(const std::string& call) { return call.ends_with("_query"); }

// Whether the program threw; what it throws is typed, and names the planned failure.
inline bool throws(const Scenario& scenario, Run& run, const gpk::Fault& fault, const std::string& where) {
    try {
        scenario.program(run);
        return false;
    } catch (const gpk::DriverError& failure) {
        EXPECT_EQ(failure.code_name(), fault.code_name) << where << ": " << failure.what();
        EXPECT_EQ(failure.code(), fault.code) << where;
    } catch (const gpk::Error& failure) {
        // Out of memory is told by whoever asked for it.
        EXPECT_EQ(static_cast<int>(failure.kind()), static_cast<int>(gpk::ErrorKind::memory))
            << where << ": " << failure.what();
        EXPECT_EQ(fault.code, 2) << where << ": " << failure.what();
    } catch (const std::exception& failure) {
        ADD_FAILURE() << where << ": " << failure.what();
    }
    return true;
}

inline void expect_refusal(gpk::Device& device, const std::string& where) {
    std::uint8_t host = 0;
    EXPECT_THROW(
        device.launcher().fill(*device.default_stream(), reinterpret_cast<gpk::DevicePtr>(&host), 1, 1),
        gpk::DeviceLostError)
        << where;
}

inline std::unique_ptr<sim::TestDevice> make_device(const Scenario& scenario, bool interleaved) {
    gpk::SimOptions options = scenario.options;
    options.interleaved = interleaved;
    auto made = std::make_unique<sim::TestDevice>(options);
    if (scenario.prepare) scenario.prepare(*made);
    return made;
}

// One fault: typed, nothing leaked; afterwards the program runs, unless the device is lost for good.
inline void fail_once(const Scenario& scenario, sim::TestDevice& target, const gpk::Fault& fault, bool breaks,
                      const std::string& where, Swept& swept) {
    Run run(target, fault.sticky);
    target.driver.set_faults({fault});
    SCOPED_TRACE(where);
    const bool thrown = throws(scenario, run, fault, where);
    const bool reached = run.counts().at(fault.call) >= fault.nth;
    ++swept.planned;
    swept.reached += reached;
    if (reached) swept.codes.insert(fault.code);
    swept.thrown += thrown;
    EXPECT_TRUE(reached || scenario.threads) << where;
    if (fault.sticky && thrown && !run.mended()) {
        EXPECT_TRUE(throws(scenario, run, fault, where + ", broken")) << where;
    }
    run.mend();
    expect_nothing_left(scenario, target, where);
    if (target.device.lost()) {
        EXPECT_TRUE(fault.sticky && breaks) << where;
        expect_refusal(target.device, where);
        return;
    }
    Run again(target);
    try {
        scenario.program(again);
    } catch (const std::exception& failure) {
        ADD_FAILURE() << where << ", second attempt: " << failure.what();
    }
    expect_nothing_left(scenario, target, where + ", second attempt");
}

// Sanitizers look at how memory and threads are used, which is the same for all codes of a kind.
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define PYGPUKIT_TEST_FEW_CODES 1
#endif
#endif
#ifdef PYGPUKIT_TEST_FEW_CODES
inline constexpr std::size_t kCodesMet = kKinds;
#else
inline constexpr std::size_t kCodesMet = kCodeCount;
#endif

// Those of the next call: all; or, for programs with threads, one of a kind and the others in rotation. In
// interleaved mode, where the same calls meet in another order, one of a kind.
inline std::vector<const Code*> codes_at(const Scenario& scenario, bool interleaved, std::size_t& turn) {
    std::vector<const Code*> out;
    for (std::size_t i = 0; i < (interleaved || scenario.threads ? kKinds : kCodesMet); ++i) {
        out.push_back(&kCodes[i]);
    }
    if (scenario.threads && !interleaved && kCodesMet == kCodeCount) {
        for (int i = 0; i < 6; ++i) out.push_back(&kCodes[kKinds + turn++ % (kCodeCount - kKinds)]);
    }
    return out;
}

// Each call that the program makes, passing and staying.
inline Swept sweep(const Scenario& scenario, Watchdog& watchdog) {
    Swept swept;
    for (const bool interleaved : {false, true}) {
        std::map<std::string, int> counts;
        {
            const auto target = make_device(scenario, interleaved);
            target->driver.set_faults({});
            Run run(*target);
            watchdog.next(std::string(scenario.name) + " without a fault");
            scenario.program(run);
            counts = run.counts();
            expect_nothing_left(scenario, *target, scenario.name);
        }
        const auto fail = [&](const std::string& call, int nth, const Code& code, bool sticky) {
            const std::string where = gpk::str(scenario.name, interleaved ? ", interleaved, " : ", ", call,
                                               " number ", nth, ", ", code.name, sticky ? ", sticky" : "");
            watchdog.next(where);
            const auto target = make_device(scenario, interleaved);
            fail_once(scenario, *target,
                      {.call = call, .nth = nth, .code = code.code, .code_name = code.name, .sticky = sticky},
                      code.breaks, where, swept);
        };
        for (std::size_t turn = 0; const auto& [call, count] : counts) {
            if (!gpk::can_fail(call)) continue;
            for (int nth = 1; nth <= (is_poll(call) ? std::min(count, scenario.most_polls) : count); ++nth) {
                for (const Code* each : codes_at(scenario, interleaved, turn)) {
                    for (const bool sticky : {false, true}) {
                        fail(call, nth, *each, sticky);
                        if (::testing::Test::HasFailure()) return swept;
                    }
                }
            }
        }
        // Polls are fewer in some runs than in the one that was counted: codes that only they were to meet.
        for (const Code* code = kCodes; code != kCodes + kCodesMet; ++code) {
            for (const auto& [call, count] : counts) {
                if (swept.codes.contains(code->code) || !gpk::can_fail(call)) continue;
                fail(call, 1, *code, false);
            }
        }
    }
    return swept;
}

}  // namespace faults
