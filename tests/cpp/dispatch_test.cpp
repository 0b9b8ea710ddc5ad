// KernelDispatcher: limits, the states of a launch, the watchdog, and what failures do.
#include "scheduler/dispatch.hpp"

#include <thread>
#include <vector>

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
