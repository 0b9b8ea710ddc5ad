// KernelDispatcher: limits, the states of a launch, the watchdog, and what failures do.
#include "scheduler/dispatch.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <random>
#include <thread>
#include <vector>

#include "base/log.hpp"
#include "sim_support.hpp"
#include "support.hpp"

using namespace gpk;
using namespace sim;

namespace {

struct Fixture {
    explicit Fixture(SimOptions options = {.interleaved = true, .seed = 2})
        : target(options), memory(target.device.driver().allocate(1 << 16)) {}
    ~Fixture() { target.device.driver().free(memory); }
    std::function<void()> fill() {
        return [this] { target.device.launcher().fill(*current_stream(target.device), memory, 1, 1 << 16); };
    }
    TestDevice target;
    DevicePtr memory;
};

}  // namespace

TEST(KernelDispatcher, ConfigIsChecked) {
    expect_kind(ErrorKind::value, [] { check(DispatchConfig{.max_outstanding = 0}); });
    expect_kind(ErrorKind::value, [] { check(DispatchConfig{.max_outstanding = 1 << 20}); });
    expect_kind(ErrorKind::value, [] { check(DispatchConfig{.max_outstanding_ns = -1}); });
    expect_kind(ErrorKind::value, [] { check(DispatchConfig{.watchdog_ns = -1}); });
}

TEST(KernelDispatcher, AtMostSoManyAreOutstanding) {
    Fixture f;
    KernelDispatcher dispatcher(f.target.device, {.max_outstanding = 2});
    std::vector<int> order;
    std::vector<KernelDispatcher::Launch> launches;
    for (int i = 0; i < 6; ++i) {
        launches.push_back(dispatcher.submit(str("k", i), [&, i] {
            order.push_back(i);
            f.fill()();
        }));
    }
    // Nothing ran yet on the device: two are there, four wait.
    EXPECT_LE(f.target.driver.call_counts().at("fill"), 6);
    EXPECT_TRUE(dispatcher.wait(launches[5]));
    EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3, 4, 5}));
    for (const auto& each : launches) {
        EXPECT_EQ(dispatcher.state(each), LaunchState::completed);
        EXPECT_GE(dispatcher.took_ns(each), 0);
    }
    dispatcher.synchronize();
    const DispatchStats stats = dispatcher.stats();
    EXPECT_EQ(stats.completed, 6u);
    EXPECT_EQ(stats.outstanding, 0u);
}

TEST(KernelDispatcher, AFailureIsTheLaunchesOwn) {
    Fixture f;
    KernelDispatcher dispatcher(f.target.device, {});
    const auto bad =
        dispatcher.submit("bad", [] { throw error(ErrorKind::value, {.call = "work", .got = "x"}); });
    const auto good = dispatcher.submit("good", f.fill());
    EXPECT_EQ(dispatcher.state(bad), LaunchState::failed);
    expect_kind(ErrorKind::value, [&] { dispatcher.wait(bad); });
    EXPECT_TRUE(dispatcher.wait(good));
    EXPECT_EQ(dispatcher.stats().failed, 1u);
}

TEST(KernelDispatcher, ALostDeviceFailsAll) {
    Fixture f(SimOptions{});
    KernelDispatcher dispatcher(f.target.device, {});
    const auto first = dispatcher.submit("first", f.fill());
    EXPECT_TRUE(dispatcher.wait(first));
    f.target.driver.set_faults(
        {{.call = "fill", .nth = 1, .code = 719, .code_name = "CUDA_ERROR_LAUNCH_FAILED", .sticky = true}});
    const auto bad = dispatcher.submit("bad", f.fill());
    EXPECT_THROW(dispatcher.wait(bad), DriverError);
    EXPECT_THROW(dispatcher.submit("later", f.fill()), DeviceLostError);
    EXPECT_EQ(dispatcher.state(first), LaunchState::completed);
    EXPECT_EQ(dispatcher.stats().queued, 0u);
    dispatcher.synchronize();
}

// A launch whose work runs while another's does: from within `work` the dispatcher may be used.
TEST(KernelDispatcher, WhatIsQueuedCanBeCancelled) {
    Fixture f;
    KernelDispatcher dispatcher(f.target.device, {.max_outstanding = 1});
    bool ran = false;
    KernelDispatcher::Launch second;
    const auto first = dispatcher.submit("first", [&] {
        second = dispatcher.submit("second", [&] { ran = true; });
        EXPECT_TRUE(dispatcher.cancel(second));
        EXPECT_FALSE(dispatcher.cancel(second));
        f.fill()();
    });
    EXPECT_TRUE(dispatcher.wait(first));
    EXPECT_TRUE(dispatcher.wait(second));
    EXPECT_EQ(dispatcher.state(second), LaunchState::cancelled);
    EXPECT_FALSE(dispatcher.cancel(first));
    EXPECT_FALSE(ran);
    EXPECT_EQ(dispatcher.stats().cancelled, 1u);
}

TEST(KernelDispatcher, ThreadsMaySubmit) {
    Fixture f(SimOptions{});
    KernelDispatcher dispatcher(f.target.device, {.max_outstanding = 3});
    std::atomic<int> ran{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
        threads.emplace_back([&] {
            for (int i = 0; i < 100; ++i) {
                const auto launch = dispatcher.submit("k", [&] {
                    ++ran;
                    f.fill()();
                });
                if (i % 3 == 0) {
                    EXPECT_TRUE(dispatcher.wait(launch));
                }
            }
        });
    }
    for (auto& thread : threads) thread.join();
    dispatcher.synchronize();
    EXPECT_EQ(ran, 400);
    EXPECT_EQ(dispatcher.stats().completed, 400u);
}

// On a device whose work takes time on the same clock.
TEST(KernelDispatcher, TheWatchdogTellsOfWorkThatDoesNotEnd) {
    const auto clock = std::make_shared<VirtualClock>();
    Fixture f({.clock = clock, .rates = {.bytes = 1e9}});
    KernelDispatcher dispatcher(f.target.device, {.watchdog_ns = 50'000}, *clock);
    const auto slow = dispatcher.submit("slow", f.fill());  // 65 us
    const auto next = dispatcher.submit("next", f.fill());
    clock->advance(40'000);
    EXPECT_FALSE(dispatcher.wait(slow, 0));
    EXPECT_EQ(dispatcher.state(slow), LaunchState::launched);
    clock->advance(20'000);
    expect_kind(ErrorKind::driver, [&] { dispatcher.wait(slow); });
    expect_kind(ErrorKind::driver, [&] { dispatcher.wait(next); });
    EXPECT_EQ(dispatcher.stats().overdue, 1u);
    // It ends after all.
    clock->advance(10'000);
    EXPECT_EQ(dispatcher.state(slow), LaunchState::completed);
    EXPECT_NEAR(static_cast<double>(dispatcher.took_ns(slow)), 65'536, 5'000);
    dispatcher.stream()->synchronize();
    EXPECT_TRUE(dispatcher.wait(next));
}

TEST(KernelDispatcher, OutstandingTimeIsBounded) {
    const auto clock = std::make_shared<VirtualClock>();
    Fixture f({.clock = clock, .rates = {.bytes = 1e9}});
    KernelDispatcher dispatcher(f.target.device, {.max_outstanding_ns = 200'000}, *clock);
    const auto first = dispatcher.submit("k", f.fill());  // 65 us: known from here on
    dispatcher.stream()->synchronize();
    EXPECT_TRUE(dispatcher.wait(first));
    for (int i = 0; i < 6; ++i) dispatcher.submit("k", f.fill());
    EXPECT_EQ(dispatcher.stats().outstanding, 3u);
    EXPECT_EQ(dispatcher.stats().queued, 3u);
    clock->advance(150'000);
    EXPECT_EQ(dispatcher.stats().outstanding, 3u);
    EXPECT_EQ(dispatcher.stats().completed, 3u);
    dispatcher.stream()->synchronize();
    dispatcher.poll();
    dispatcher.stream()->synchronize();
    dispatcher.synchronize();
    EXPECT_EQ(dispatcher.stats().completed, 7u);
}

// -- Short launches, which share events -----------------------------------------------------------

TEST(KernelDispatcher, ShortLaunchesOfAKnownLengthShareEvents) {
    const auto clock = std::make_shared<VirtualClock>();
    Fixture f({.clock = clock, .rates = {.bytes = 1e11}});  // 0.7 us each
    KernelDispatcher dispatcher(f.target.device, {.max_outstanding = 1 << 16}, *clock);
    for (int i = 0; i < 4; ++i) dispatcher.submit("k", f.fill());
    dispatcher.stream()->synchronize();
    dispatcher.poll();
    f.target.driver.set_faults({});
    std::vector<KernelDispatcher::Launch> launches;
    for (int i = 0; i < 640; ++i) launches.push_back(dispatcher.submit("k", f.fill()));
    // One in 16 has an event, one in 64 a second one.
    EXPECT_LE(f.target.driver.call_counts()["event_record"], 60);
    EXPECT_LE(f.target.driver.call_counts()["event_create"], 60);
    EXPECT_EQ(dispatcher.stats().outstanding, 640u);
    dispatcher.stream()->synchronize();
    for (const auto& each : launches) {
        EXPECT_EQ(dispatcher.state(each), LaunchState::completed);
        EXPECT_NEAR(static_cast<double>(dispatcher.took_ns(each)), 655, 400);
    }
    EXPECT_EQ(dispatcher.stats().outstanding_ns, 0);
}

// Of kernels that are long each is seen to end by itself.
TEST(KernelDispatcher, LongLaunchesAreSeenOneByOne) {
    const auto clock = std::make_shared<VirtualClock>();
    Fixture f({.clock = clock, .rates = {.bytes = 1e9}});  // 65.5 us each
    KernelDispatcher dispatcher(f.target.device, {}, *clock);
    std::vector<KernelDispatcher::Launch> launches;
    for (int i = 0; i < 2; ++i) {
        dispatcher.submit("k", f.fill());
        dispatcher.stream()->synchronize();
        dispatcher.poll();
    }
    for (int i = 0; i < 10; ++i) launches.push_back(dispatcher.submit("k", f.fill()));
    for (std::size_t i = 0; i < launches.size(); ++i) {
        EXPECT_EQ(dispatcher.state(launches[i]), LaunchState::launched);
        clock->advance(65'600);
        EXPECT_EQ(dispatcher.state(launches[i]), LaunchState::completed) << i;
    }
}

// -- The thread -----------------------------------------------------------------------------------

namespace {

// Device time stands still until somebody moves the clock, so what is queued stays so.
struct Slow : Fixture {
    explicit Slow(std::shared_ptr<VirtualClock> moved = std::make_shared<VirtualClock>())
        : Fixture({.clock = moved, .rates = {.bytes = 1e9}}), clock(std::move(moved)) {}
    std::shared_ptr<VirtualClock> clock;
};

template <class Condition>
bool comes_true(Condition&& condition) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!condition()) {
        if (std::chrono::steady_clock::now() > until) return false;
        std::this_thread::yield();
    }
    return true;
}

}  // namespace

TEST(DispatchThread, WhatIsQueuedGoesByItself) {
    Slow f;
    std::atomic<int> ran{0}, here{0};
    const auto self = std::this_thread::get_id();
    KernelDispatcher dispatcher(f.target.device, {.max_outstanding = 1});
    std::vector<KernelDispatcher::Launch> launches;
    for (int i = 0; i < 5; ++i) {
        launches.push_back(dispatcher.submit("k", [&] {
            EXPECT_EQ(current_stream(f.target.device), dispatcher.stream());
            f.fill()();
            here += std::this_thread::get_id() == self;
            ++ran;
        }));
    }
    EXPECT_EQ(ran, 1);
    for (int i = 2; i <= 5; ++i) {
        f.clock->advance(66'000);
        EXPECT_TRUE(comes_true([&] { return ran == i; }));
    }
    EXPECT_EQ(here, 1);
    f.clock->advance(66'000);
    for (const auto& each : launches) {
        EXPECT_TRUE(comes_true([&] { return dispatcher.state(each) == LaunchState::completed; }));
    }
}

TEST(DispatchThread, TheWatchdogTellsWithoutBeingAsked) {
    Slow f;
    std::atomic<bool> told{false};
    set_log_sink([&](LogLevel, const std::string& text) {
        if (text.find("has not ended in 1 ms") != std::string::npos) told = true;
    });
    {
        KernelDispatcher dispatcher(f.target.device, {.watchdog_ns = 1'000'000});
        dispatcher.submit("stuck", f.fill());
        EXPECT_TRUE(comes_true([&] { return told.load(); }));
        f.clock->advance(66'000);
    }
    set_log_sink({});
}

TEST(DispatchThread, TheEndWaitsForWhatItCalls) {
    Slow f;
    std::atomic<bool> entered{false}, go{false}, finished{false}, third{false};
    auto kept = std::make_shared<int>(0);
    const std::weak_ptr<int> cancelled = kept;  // gone with the third launch's function
    std::thread opener;
    {
        KernelDispatcher dispatcher(f.target.device, {.max_outstanding = 1});
        dispatcher.submit("first", f.fill());
        dispatcher.submit("second", [&] {
            entered = true;
            while (!go) std::this_thread::yield();
            finished = true;
        });
        dispatcher.submit("third", [&, kept = std::move(kept)] { third = true; });
        f.clock->advance(66'000);
        ASSERT_TRUE(comes_true([&] { return entered.load(); }));
        opener = std::thread([&] {
            EXPECT_TRUE(comes_true([&] { return cancelled.expired(); }));
            EXPECT_FALSE(finished);
            go = true;
        });
    }
    EXPECT_TRUE(finished);
    EXPECT_FALSE(third);
    opener.join();
}

// A launch's function may be the last to let go of the dispatcher.
TEST(DispatchThread, MayEndItsOwnDispatcher) {
    for (int round = 0; round < 20; ++round) {
        Slow f;
        auto kept = std::make_shared<int>(1);
        const std::weak_ptr<int> dropped = kept;
        auto dispatcher =
            std::make_unique<KernelDispatcher>(f.target.device, DispatchConfig{.max_outstanding = 1});
        std::atomic<bool> ended{false};
        dispatcher->submit("first", f.fill());
        dispatcher->submit("second", [&] {
            dispatcher.reset();
            ended = true;
        });
        dispatcher->submit("third", [kept = std::move(kept)] { ADD_FAILURE() << *kept; });
        f.clock->advance(66'000);
        ASSERT_TRUE(comes_true([&] { return ended.load() && dropped.expired(); }));
        ASSERT_TRUE(comes_true([&] { return f.target.driver.live_streams() == 1; }));  // the device's own
    }
}

// Everything that may be done with launches, in any order, on a device that runs work in any order: all keep
// their order, the limits, and come to an end.
TEST(DispatchThread, AnyInterleavingKeepsOrderAndLimits) {
    for (unsigned seed = 0; seed < 40; ++seed) {
        Fixture f({.interleaved = true, .seed = seed});
        std::mt19937 random(seed);
        const int most = 1 + static_cast<int>(random() % 5);
        std::vector<int> order;
        std::vector<KernelDispatcher::Launch> launches;
        std::size_t cancelled = 0, failing = 0;
        KernelDispatcher dispatcher(f.target.device, {.max_outstanding = most});
        for (int i = 0; i < 60; ++i) {
            const bool fails = random() % 8 == 0;
            launches.push_back(dispatcher.submit(str("k", random() % 3), [&, i, fails] {
                order.push_back(i);
                if (dispatcher.stats().outstanding >= static_cast<std::size_t>(most)) ADD_FAILURE() << seed;
                if (fails) throw error(ErrorKind::value, {.call = "work", .got = "x"});
                f.fill()();
            }));
            failing += fails;
            const auto& any = launches[random() % launches.size()];
            switch (random() % 6) {
                case 0: cancelled += dispatcher.cancel(launches.back()); break;
                case 1: dispatcher.state(any); break;
                case 2: dispatcher.poll(); break;
                case 3: try { dispatcher.wait(any, random() % 2 == 0 ? 0 : -1);
                    } catch (const Error& failure) {
                        EXPECT_EQ(failure.kind(), ErrorKind::value);
                    }
                    break;
                default: break;
            }
        }
        for (const auto& each : launches) {
            try {
                EXPECT_TRUE(dispatcher.wait(each));
            } catch (const Error&) {
                EXPECT_EQ(dispatcher.state(each), LaunchState::failed);
            }
        }
        dispatcher.synchronize();
        const DispatchStats stats = dispatcher.stats();
        EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
        EXPECT_EQ(order.size() + cancelled, 60u);
        EXPECT_EQ(stats.cancelled, cancelled);
        EXPECT_LE(stats.failed, failing);
        EXPECT_EQ(stats.completed + stats.failed + stats.cancelled, 60u);
        EXPECT_EQ(stats.queued + stats.outstanding, 0u);
        EXPECT_EQ(stats.outstanding_ns, 0);
    }
}

TEST(DispatchThread, EveryCallMayFail) {
    for (const char* call :
         {"event_create", "event_record", "event_query", "event_elapsed_ms", "stream_query", "fill"}) {
        for (int nth = 1; nth <= 8; ++nth) {
            TestDevice target;
            const DevicePtr memory = target.driver.allocate(64);
            {
                KernelDispatcher dispatcher(target.device, {.max_outstanding = 2});
                target.driver.set_faults(
                    {{.call = call, .nth = nth, .code = 1, .code_name = "CUDA_ERROR_INVALID_VALUE"}});
                for (int i = 0; i < 8; ++i) {
                    dispatcher.submit("k", [&] {
                        target.device.launcher().fill(*current_stream(target.device), memory, 1, 64);
                    });
                }
                for (int i = 0; i < 10; ++i) {
                    try {
                        dispatcher.synchronize();
                    } catch (const DriverError&) {
                    }
                }
                target.driver.set_faults({});
                dispatcher.synchronize();
                const DispatchStats stats = dispatcher.stats();
                EXPECT_EQ(stats.completed + stats.failed, 8u) << call << nth;
                EXPECT_LE(stats.failed, 2u) << call << nth;
            }
            target.driver.free(memory);
            EXPECT_EQ(target.driver.live_events(), 0u) << call << nth;
            EXPECT_EQ(target.driver.invalid_frees(), 0u);
        }
    }
}

// In a child, since it is for the end of a program.
TEST(DispatchThread, TheEndOfAProgramEndsThem) {
    KernelDispatcher parents(test_device(), {});
    const pid_t child = fork();
    if (child == 0) {
        int result = 0;
        {
            Slow f;
            KernelDispatcher dispatcher(f.target.device, {.max_outstanding = 1});
            dispatcher.submit("first", f.fill());
            const auto second = dispatcher.submit("second", f.fill());
            if (!end_dispatch_threads(std::chrono::seconds(30))) result |= 1;
            if (dispatcher.state(second) != LaunchState::cancelled) result |= 2;
            // What comes later goes when it is asked.
            const auto third = dispatcher.submit("third", f.fill());
            f.clock->advance(66'000);
            if (dispatcher.state(third) != LaunchState::launched) result |= 4;
            try {
                parents.poll();
                result |= 8;
            } catch (const Error& failure) {
                if (failure.kind() != ErrorKind::unsupported) result |= 16;
            }
        }
        _exit(result);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 0);
    parents.poll();
}
