// Pacing: the policy on a clock of the test's, and the engine on simulated devices.
#include "scheduler/pacing.hpp"

#include <cmath>
#include <random>
#include <thread>
#include <vector>

#include "runtime/meter.hpp"
#include "runtime/observe.hpp"
#include "runtime/stream.hpp"
#include "scheduler/partition.hpp"
#include "sim_support.hpp"
#include "support.hpp"

using namespace gpk;
using namespace sim;

namespace {

constexpr std::int64_t kUs = 1'000, kMs = 1'000'000, kSecond = 1'000'000'000;

struct Memory {
    explicit Memory(Device& device, std::size_t bytes = 1 << 20)
        : device(device), pointer(device.driver().allocate(bytes)) {}
    ~Memory() { device.driver().free(pointer); }
    Device& device;
    DevicePtr pointer;
};

}  // namespace

TEST(PacingConfig, IsChecked) {
    for (const double bad : {-0.1, 1.1, std::nan("")}) {
        expect_kind(ErrorKind::value, [&] { check({.time_share = bad}); });
        expect_kind(ErrorKind::value, [&] { check({.bandwidth_share = bad, .device_bandwidth = 1}); });
    }
    expect_kind(ErrorKind::value, [] { check({.bandwidth_share = 0.5}); });
    expect_kind(ErrorKind::value, [] { check({.device_bandwidth = INFINITY}); });
    for (const std::int64_t bad : {std::int64_t{0}, std::int64_t{-1}, INT64_MAX, INT64_MIN}) {
        expect_kind(ErrorKind::value, [&] { check({.queue_ahead_ns = bad}); });
        expect_kind(ErrorKind::value, [&] { check({.max_hold_ns = bad}); });
        expect_kind(ErrorKind::value, [&] { check({.burst_ns = bad}); });
    }
    check(PacingConfig{});
}

// Tenants that always have work get their shares, in each second, whatever their kernels' lengths.
TEST(Pacer, SharesAreKeptWithinTwoPercentOfASecond) {
    for (unsigned seed = 0; seed < 20; ++seed) {
        std::mt19937 random(seed);
        const double shares[] = {0.1, 0.2, 0.3, 0.4};
        for (const double share : shares) {
            Pacer pacer({.time_share = share});
            std::uniform_int_distribution<std::int64_t> length(3 * kUs, 2 * kMs);
            std::vector<double> windows(10, 0.0);
            std::int64_t now = 0;
            while (now < 10 * kSecond) {
                const std::int64_t ns = length(random);
                while (const std::int64_t again = pacer.admit(now, ns, 0, {})) {
                    ASSERT_GT(again, now);
                    now = again;
                }
                if (now < 10 * kSecond)
                    windows[static_cast<std::size_t>(now / kSecond)] += static_cast<double>(ns);
                now += kUs;
            }
            for (const double window : windows) EXPECT_NEAR(window / kSecond, share, 0.02 * share + 0.002);
        }
    }
}

TEST(Pacer, BytesAreKeptToTheirShare) {
    Pacer pacer({.bandwidth_share = 0.25, .device_bandwidth = 1e12});
    std::int64_t now = 0;
    double bytes = 0;
    while (now < kSecond) {
        while (const std::int64_t again = pacer.admit(now, 10 * kUs, 1e7, {})) now = again;
        bytes += 1e7;
    }
    EXPECT_NEAR(bytes / 0.25e12, 1, 0.02);
    // A pause gives back no more than the burst.
    now += kSecond;
    double at_once = 0;
    while (pacer.admit(now, 10 * kUs, 1e7, {}) == 0) at_once += 1e7;
    EXPECT_LE(at_once, 0.25e12 * 0.005 + 2e7);
    EXPECT_GE(at_once, 0.25e12 * 0.005);
}

// A victim of 200 us in each millisecond, a neighbour that always has work of 20 us; estimates are off by up
// to a third, and markers every 25 us put them right.
TEST(Pacer, AVictimIsProtectedAndTheNeighbourCatchesUp) {
    std::mt19937 random(7);
    Pacer pacer({});
    std::int64_t busy_until = 0, most_ahead = 0, done = 0, launched_while_held = 0;
    std::vector<std::pair<std::int64_t, std::int64_t>> markers;  // place, reached at
    std::int64_t last_mark = 0;
    for (std::int64_t now = 0; now < kSecond; now += kUs) {
        const std::int64_t phase = now % kMs;
        const bool held = phase < 200 * kUs;
        if (phase == 0) most_ahead = std::max(most_ahead, busy_until - now);
        while (!markers.empty()) {
            const bool reached = markers.front().second <= now;
            pacer.seen(now, markers.front().first, reached);
            if (!reached) break;
            markers.erase(markers.begin());
        }
        if (pacer.admit(now, 20 * kUs, 0, {.guarded = true, .held = held}) == 0) {
            const std::int64_t real = 20 * kUs * (67 + static_cast<std::int64_t>(random() % 67)) / 100;
            busy_until = std::max(busy_until, now) + real;
            done += real;
            launched_while_held += held;
            if (pacer.issued_ns() - last_mark >= 25 * kUs) {
                last_mark = pacer.issued_ns();
                markers.emplace_back(pacer.mark(), busy_until);
            }
        }
    }
    EXPECT_LE(most_ahead, 75 * kUs);
    EXPECT_EQ(launched_while_held, 0);
    EXPECT_GE(done, kSecond * 75 / 100);
}

TEST(Pacer, NobodyStarves) {
    const PacingConfig config{.queue_ahead_ns = 50 * kUs, .max_hold_ns = kMs};
    Pacer pacer(config);
    std::int64_t last = 0, longest = 0, given = 0;
    for (std::int64_t now = 0; now < kSecond; now += kUs) {
        if (pacer.admit(now, 10 * kUs, 0, {.guarded = true, .held = true}) == 0) {
            longest = std::max(longest, now - last);
            last = now;
            given += 10 * kUs;
        }
    }
    EXPECT_LE(longest, kMs + 20 * kUs);
    // 50 us in each 1.05 ms, at least.
    EXPECT_GE(given, kSecond / 1050 * 50 * 9 / 10);
    EXPECT_LE(given, kSecond / 10);
}

TEST(Pacer, AProtectedTenantIsNeverHeld) {
    Pacer pacer({.is_protected = true});
    for (int i = 0; i < 1000; ++i) EXPECT_EQ(pacer.admit(i, kMs, 1e9, {.guarded = true, .held = true}), 0);
}

TEST(Pacer, LongWorkGoesOneByOne) {
    Pacer pacer({});
    EXPECT_EQ(pacer.admit(0, kMs, 0, {.guarded = true}), 0);
    const std::int64_t again = pacer.admit(0, kMs, 0, {.guarded = true});
    EXPECT_GT(again, 900 * kUs);
    EXPECT_LT(again, kMs);
    EXPECT_EQ(pacer.admit(again, kMs, 0, {.guarded = true}), 0);
    pacer.undo(again, kMs, 0);
    EXPECT_LE(pacer.outstanding_ns(again), 100 * kUs);
}

TEST(KernelTimes, GuessesThenLearns) {
    KernelTimes times(1e12);
    const WorkRecord work{WorkKind::kernel,           "k",  nullptr, {.grid = {7, 1, 1}},
                          {.flops = 0, .bytes = 1e9}, false};
    WorkRecord other = work;
    other.config.grid.x = 8;
    auto& known = times.of(work);
    EXPECT_NEAR(static_cast<double>(known.ns), 1e6, 1e4);
    const std::uint64_t key = known.key;
    times.learn(key, 500'000);
    EXPECT_EQ(times.of(work).ns, 500'000);
    for (int i = 0; i < 50; ++i) times.learn(key, 100'000);
    EXPECT_NEAR(static_cast<double>(times.of(work).ns), 100'000, 100);
    EXPECT_NE(times.of(other).key, key);
    for (std::uint32_t i = 0; i < 5000; ++i) {
        other.config.grid.x = i;
        EXPECT_GT(times.of(other).ns, 0);
    }
    times.learn(12345, 1);
}

TEST(KernelPacingEngine, HoldsBytesToTheirShareOnItsClock) {
    Device& device = test_device();
    VirtualClock clock;
    const auto engine = std::make_shared<KernelPacingEngine>(
        device, PacingConfig{.bandwidth_share = 0.5, .device_bandwidth = 1e9}, clock,
        [&](std::int64_t, std::int64_t until) { clock.advance_to(until); });
    const auto stream = Stream::create_for(Tenant::create({.name = "t", .governor = engine}), device);
    const Memory memory(device);
    for (int i = 0; i < 101; ++i) device.launcher().fill(*stream, memory.pointer, 1, 1'000'000);
    stream->synchronize();
    EXPECT_NEAR(static_cast<double>(clock.now_ns()), 100 * 2e6, 1e6);
    const PacingStats stats = engine->stats();
    EXPECT_EQ(stats.launches, 101u);
    EXPECT_EQ(stats.waits, 100u);
    EXPECT_EQ(stats.bytes, 101e6);
    EXPECT_GE(stats.measured, 2u);
    EXPECT_EQ(stats.waited_ns, clock.now_ns());
}

// What listens hears of a wait as a span of the tenant's; metrics have its time and what was measured.
TEST(KernelPacingEngine, WaitsAndMeasuredTimeAreCountedAndTold) {
    struct Waits : observe::Listener {
        void happened(const observe::Happening& happening) noexcept override {
            if (happening.topic != observe::Topic::pacing) return;
            names.emplace_back(happening.name);
            tenant = happening.who.tenant;
        }
        std::vector<std::string> names;
        const Tenant* tenant = nullptr;
    };
    const auto clock = std::make_shared<VirtualClock>();
    TestDevice target({.clock = clock, .rates = {.bytes = 1e9}});
    Device& device = target.device;
    const auto engine = std::make_shared<KernelPacingEngine>(
        device, PacingConfig{.bandwidth_share = 0.5, .device_bandwidth = 1e9}, *clock,
        [&](std::int64_t, std::int64_t until) { clock->advance_to(until); });
    const auto tenant = Tenant::create({.name = "counted waits", .governor = engine});
    const auto stream = Stream::create_for(tenant, device);
    const Memory memory(device);
    const auto waits = std::make_shared<Waits>();
    observe::add_listener(waits);
    for (int i = 0; i < 5; ++i) device.launcher().fill(*stream, memory.pointer, 1, 100'000);
    observe::remove_listener(waits.get());
    stream->synchronize();
    const PacingStats stats = engine->stats();
    const Meter& meter = stream->meter();
    EXPECT_EQ(meter[Count::pacing_waits], 4u);
    EXPECT_EQ(meter[Count::pacing_wait_ns], 4u * 200 * kUs);
    EXPECT_EQ(static_cast<std::int64_t>(meter[Count::pacing_wait_ns]), stats.waited_ns);
    EXPECT_EQ(waits->names, std::vector<std::string>(4, "fill"));
    EXPECT_EQ(waits->tenant, tenant.get());
    // 100 us each on the device.
    EXPECT_GE(stats.measured, 2u);
    EXPECT_NEAR(static_cast<double>(meter[Count::busy_ns]), 1e5 * static_cast<double>(stats.measured), 1e3);
}

TEST(KernelPacingEngine, AWaitThatFailsIsCountedToo) {
    TestDevice target;
    VirtualClock clock;
    const auto engine = std::make_shared<KernelPacingEngine>(
        target.device, PacingConfig{.bandwidth_share = 0.5, .device_bandwidth = 1e9}, clock,
        [&](std::int64_t now, std::int64_t until) {
            clock.advance_to(now + kMs);
            if (until < now + kMs) return;
            target.driver.set_faults({{.call = "fill",
                                       .nth = 1,
                                       .code = 719,
                                       .code_name = "CUDA_ERROR_LAUNCH_FAILED",
                                       .sticky = true}});
            EXPECT_THROW(target.device.launcher().fill(*target.device.default_stream(), 256, 1, 16),
                         DriverError);
        });
    const auto tenant = Tenant::create({.name = "failed wait", .governor = engine});
    const auto stream = Stream::create_for(tenant, target.device);
    const Memory memory(target.device);
    target.device.launcher().fill(*stream, memory.pointer, 1, 1'000'000);
    EXPECT_THROW(target.device.launcher().fill(*stream, memory.pointer, 1, 1'000'000), DeviceLostError);
    EXPECT_EQ(stream->meter()[Count::pacing_waits], 1u);
    EXPECT_EQ(stream->meter()[Count::pacing_wait_ns], static_cast<std::uint64_t>(kMs));
    target.driver.set_faults({});
}

TEST(KernelPacingEngine, WhatIsRefusedCountsForNothing) {
    TestDevice target;
    VirtualClock clock;
    const auto engine = std::make_shared<KernelPacingEngine>(
        target.device, PacingConfig{.bandwidth_share = 0.5, .device_bandwidth = 1e9}, clock,
        [&](std::int64_t, std::int64_t until) { clock.advance_to(until); });
    const auto stream = Stream::create_for(Tenant::create({.name = "t", .governor = engine}), target.device);
    for (int i = 0; i < 10; ++i) {
        EXPECT_THROW(target.device.launcher().fill(*stream, 256, 1, 1'000'000), DriverError);
    }
    EXPECT_EQ(engine->stats().launches, 0u);
    EXPECT_EQ(engine->stats().bytes, 0);
    EXPECT_LE(clock.now_ns(), 10);
}

TEST(KernelPacingEngine, MeasuringMayFail) {
    for (const char* call : {"event_create", "event_record", "event_query", "event_elapsed_ms"}) {
        for (int nth = 1; nth <= 6; ++nth) {
            TestDevice target;
            {
                const auto engine =
                    std::make_shared<KernelPacingEngine>(target.device, PacingConfig{.time_share = 1});
                const auto stream =
                    Stream::create_for(Tenant::create({.name = "t", .governor = engine}), target.device);
                const Memory memory(target.device);
                target.driver.set_faults(
                    {{.call = call, .nth = nth, .code = 1, .code_name = "CUDA_ERROR_INVALID_VALUE"}});
                for (int i = 0; i < 8; ++i) target.device.launcher().fill(*stream, memory.pointer, 1, 64);
                EXPECT_EQ(engine->stats().launches, 8u);
                target.driver.set_faults({});
            }
            EXPECT_EQ(target.driver.live_events(), 0u) << call << nth;
            EXPECT_EQ(target.driver.invalid_frees(), 0u);
        }
    }
}

// On a device whose work takes time on the same clock: 1 us for 1,000 bytes.
TEST(KernelPacingEngine, OthersAreHeldWhileAProtectedTenantHasWorkInFlight) {
    const auto clock = std::make_shared<VirtualClock>();
    TestDevice target({.clock = clock, .rates = {.bytes = 1e9}});
    Device& device = target.device;
    const auto guard =
        std::make_shared<KernelPacingEngine>(device, PacingConfig{.is_protected = true}, *clock);
    const auto victim = Tenant::create({.name = "victim", .governor = guard});
    guard->protect(victim);
    const auto precious = Stream::create_for(victim, device);
    const auto engine = std::make_shared<KernelPacingEngine>(
        device, PacingConfig{}, *clock, [&](std::int64_t, std::int64_t until) { clock->advance_to(until); });
    const auto stream = Stream::create_for(Tenant::create({.name = "neighbour", .governor = engine}), device);
    const Memory memory(device), other(device);
    device.launcher().fill(*stream, memory.pointer, 1, 1000);
    stream->synchronize();
    clock->advance(kMs);
    for (int round = 0; round < 20; ++round) {
        const std::int64_t began = clock->now_ns();
        device.launcher().fill(*precious, other.pointer, 1, 200'000);
        device.launcher().fill(*stream, memory.pointer, 2, 1000);
        EXPECT_TRUE(precious->query());
        EXPECT_GE(clock->now_ns() - began, 200 * kUs);
        EXPECT_LE(clock->now_ns() - began, 210 * kUs);
        stream->synchronize();
    }
    EXPECT_EQ(engine->stats().waits, 20u);
    // And by work that is longer than any hold, no longer than was said.
    const std::int64_t began = clock->now_ns();
    for (int i = 0; i < 10; ++i) device.launcher().fill(*precious, other.pointer, 1, 1'000'000);
    device.launcher().fill(*stream, memory.pointer, 3, 1000);
    EXPECT_NEAR(static_cast<double>(clock->now_ns() - began), 2 * kMs, 10 * kUs);
    device.synchronize();
}

TEST(KernelPacingEngine, AReleaseEndsAWait) {
    TestDevice target;
    const auto engine = std::make_shared<KernelPacingEngine>(
        target.device, PacingConfig{.bandwidth_share = 1e-9, .device_bandwidth = 1e9});
    const auto stream = Stream::create_for(Tenant::create({.name = "t", .governor = engine}), target.device);
    const Memory memory(target.device);
    target.device.launcher().fill(*stream, memory.pointer, 1, 1000);
    std::thread other([&] { target.device.launcher().fill(*stream, memory.pointer, 1, 1000); });
    engine->release();
    other.join();
    EXPECT_GE(engine->stats().launches, 1u);
}

TEST(KernelPacingEngine, APartitionThatWaitsCanBeResizedAndEnded) {
    TestDevice target;
    PartitionManager manager({.device = &target.device});
    const auto p = manager.create("slow", "", PartitionLimits().bandwidth(1e-9));
    const Memory memory(target.device);
    auto stream = Stream::create_for(p->tenant(), target.device);
    target.device.launcher().fill(*stream, memory.pointer, 1, 1 << 20);
    std::atomic<bool> sent{false};
    std::thread other([&] {
        target.device.launcher().fill(*stream, memory.pointer, 1, 1 << 20);
        sent = true;
    });
    manager.resize(*p, PartitionLimits());
    other.join();
    EXPECT_TRUE(sent);
    manager.resize(*p, PartitionLimits().bandwidth(1e-9));
    target.device.launcher().fill(*stream, memory.pointer, 1, 1 << 20);
    std::thread last([&] {
        try {
            target.device.launcher().fill(*stream, memory.pointer, 1, 1 << 20);
        } catch (const Error&) {
            // It came after the end.
        }
    });
    manager.destroy("slow");
    last.join();
}
