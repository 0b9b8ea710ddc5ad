// Stream and Event: order, scopes, timing, and what they refuse.
#include "runtime/stream.hpp"

#include <thread>
#include <vector>

#include "runtime/device.hpp"
#include "sim_support.hpp"
#include "support.hpp"

using namespace gpk;
using namespace sim;

TEST(Stream, HasAnIdAndAPriority) {
    Device& device = test_device();
    const auto a = Stream::create(device), b = Stream::create(device, device.info().highest_priority);
    EXPECT_NE(a->id(), b->id());
    EXPECT_EQ(a->priority(), 0);
    EXPECT_EQ(b->priority(), device.info().highest_priority);
    EXPECT_EQ(&a->device(), &device);
    expect_kind(ErrorKind::value, [&] { Stream::create(device, device.info().lowest_priority + 1); });
    expect_kind(ErrorKind::value, [&] { Stream::create(device, device.info().highest_priority - 1); });
}

TEST(Stream, SynchronizeWaitsForItsWork) {
    Device& device = test_device();
    const auto stream = Stream::create(device);
    const DevicePtr memory = device.driver().allocate(1 << 20);
    std::vector<char> host(1 << 20);
    device.launcher().fill(*stream, memory, 5, host.size());
    device.launcher().copy_to_host(*stream, host.data(), memory, host.size());
    stream->synchronize();
    EXPECT_TRUE(stream->query());
    EXPECT_EQ(host, std::vector<char>(1 << 20, 5));
    device.driver().free(memory);
}

TEST(Stream, WaitsForAnotherStreamAndForEvents) {
    for (std::uint64_t seed = 0; seed < 60; ++seed) {
        TestDevice target({.interleaved = true, .seed = seed});
        const auto one = Stream::create(target.device), two = Stream::create(target.device);
        const DevicePtr a = target.driver.allocate(8), b = target.driver.allocate(8);
        Launcher& launcher = target.device.launcher();
        launcher.fill(*one, a, 1, 8);
        two->wait(*one);
        launcher.copy_on_device(*two, b, a, 8);
        Event event(target.device);
        event.record(*two);
        one->wait(event);
        launcher.fill(*one, a, 2, 8);
        event.record(*one);
        EXPECT_FALSE(event.query() && !one->query());
        event.synchronize();
        EXPECT_TRUE(event.query());
        EXPECT_EQ(*reinterpret_cast<const char*>(a), 2) << "seed " << seed;
        EXPECT_EQ(*reinterpret_cast<const char*>(b), 1) << "seed " << seed;
        one->wait(*one);
        target.driver.free(a);
        target.driver.free(b);
    }
}

TEST(Stream, WhatItWaitsForIsOnTheSameDevice) {
    TestDevice a, b;
    const auto one = Stream::create(a.device), two = Stream::create(b.device);
    Event event(b.device);
    expect_kind(ErrorKind::value, [&] { one->wait(*two); });
    expect_kind(ErrorKind::value, [&] { one->wait(event); });
    expect_kind(ErrorKind::value, [&] { event.record(*one); });
}

TEST(Stream, ScopesNestAThreadAndADevice) {
    Device& device = test_device();
    TestDevice other;
    EXPECT_EQ(current_stream(device), device.default_stream());
    const auto one = Stream::create(device), two = Stream::create(device),
               elsewhere = Stream::create(other.device);
    {
        const StreamScope outer(one);
        const StreamScope beside(elsewhere);
        EXPECT_EQ(current_stream(device), one);
        EXPECT_EQ(current_stream(other.device), elsewhere);
        {
            const StreamScope inner(two);
            EXPECT_EQ(current_stream(device), two);
            const StreamScope back(device.default_stream());
            EXPECT_EQ(current_stream(device), device.default_stream());
        }
        EXPECT_EQ(current_stream(device), one);
        std::thread([&] { EXPECT_EQ(current_stream(device), device.default_stream()); }).join();
    }
    EXPECT_EQ(current_stream(device), device.default_stream());
    EXPECT_EQ(current_stream(other.device), other.device.default_stream());
    EXPECT_EQ(elsewhere.use_count(), 1);  // the thread keeps nothing
}

TEST(Event, MeasuresTime) {
    Device& device = test_device();
    const auto stream = Stream::create(device);
    const DevicePtr memory = device.driver().allocate(8 << 20);
    Event start(device, true), end(device, true), untimed(device);
    start.record(*stream);
    for (int i = 0; i < 20; ++i) device.launcher().fill(*stream, memory, 1, 8 << 20);
    end.record(*stream);
    untimed.record(*stream);
    end.synchronize();
    EXPECT_GT(end.elapsed_ms(start), 0.0f);
    EXPECT_LT(end.elapsed_ms(start), 10000.0f);
    expect_kind(ErrorKind::value, [&] { untimed.elapsed_ms(start); });
    device.driver().free(memory);
}

TEST(Event, NeverRecordedIsReached) {
    Device& device = test_device();
    const Event event(device);
    EXPECT_TRUE(event.query());
    event.synchronize();
    const auto stream = Stream::create(device);
    stream->wait(event);
    stream->synchronize();
}

TEST(Stream, GoesWithItsHandles) {
    TestDevice target({.interleaved = true});
    const std::size_t streams = target.driver.live_streams(), events = target.driver.live_events();
    const DevicePtr memory = target.driver.allocate(8);
    {
        const auto one = Stream::create(target.device), two = Stream::create(target.device);
        target.device.launcher().fill(*one, memory, 3, 8);
        two->wait(*one);
        const Event event(target.device);
        EXPECT_EQ(target.driver.live_streams(), streams + 2);
    }
    EXPECT_EQ(target.driver.live_streams(), streams);
    EXPECT_EQ(target.driver.live_events(), events);
    target.device.synchronize();
    EXPECT_EQ(*reinterpret_cast<const char*>(memory), 3);
    target.driver.free(memory);
}
