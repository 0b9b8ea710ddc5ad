// Graph: capture, replay, memory of its own, and what a capture does when something in it fails.
#include "runtime/graph.hpp"

#include <functional>
#include <new>
#include <stdexcept>
#include <vector>

#include "array/array.hpp"
#include "memory/pool.hpp"
#include "sim_support.hpp"
#include "support.hpp"

using namespace gpk;
using namespace sim;

namespace {

constexpr std::int64_t kCount = 1000;

Array bytes_of(Device& device, std::uint8_t value) {
    const Array array = Array::empty(device, {kCount}, DType::uint8);
    const auto& stream = current_stream(device);
    array.storage()->before_write(stream);
    device.launcher().fill(*stream, array.data(), value, array.nbytes());
    return array;
}

void copy(const Array& to, const Array& from) {
    const auto& stream = current_stream(to.device());
    from.storage()->before_read(stream);
    to.storage()->before_write(stream);
    to.device().launcher().copy_on_device(*stream, to.data(), from.data(), from.nbytes());
}

void expect_all(const Array& array, std::uint8_t value) {
    std::vector<std::uint8_t> host(kCount);
    array.copy_to_host(host.data());
    EXPECT_EQ(host, std::vector<std::uint8_t>(kCount, value));
}

}  // namespace

TEST(Graph, ReplaysWhatWasCaptured) {
    Device& device = test_device();
    const auto stream = Stream::create(device);
    const StreamScope scope(stream);
    const Array a = bytes_of(device, 1), b = bytes_of(device, 2);
    EXPECT_EQ(stream->capture(), nullptr);
    const auto graph = Graph::capture(stream, [&] {
        EXPECT_NE(stream->capture(), nullptr);
        copy(b, a);
    });
    EXPECT_EQ(stream->capture(), nullptr);
    EXPECT_TRUE(graph->ready());
    EXPECT_EQ(graph->node_count(), 1u);
    expect_all(b, 2);  // captured is not run
    graph->launch(stream);
    expect_all(b, 1);
    for (const std::uint8_t value : {7, 8}) {
        device.launcher().fill(*stream, a.data(), value, a.nbytes());
        graph->launch(stream);
        expect_all(b, value);
    }
}

TEST(Graph, ALaunchOnAnotherStreamWaitsForTheArraysItUses) {
    for (std::uint64_t seed = 0; seed < 40; ++seed) {
        TestDevice target({.interleaved = true, .seed = seed});
        const auto one = Stream::create(target.device), two = Stream::create(target.device);
        const StreamScope scope(one);
        const Array a = bytes_of(target.device, 1), b = bytes_of(target.device, 2);
        const auto graph = Graph::capture(one, [&] { copy(b, a); });
        a.storage()->before_write(one);
        target.device.launcher().fill(*one, a.data(), 9, a.nbytes());
        graph->launch(two);
        expect_all(b, 9);
        target.device.launcher().fill(*one, a.data(), 4, a.nbytes());
        graph->launch(one);
        expect_all(b, 4);
    }
}

TEST(Graph, MemoryOfTheCaptureLivesAsLongAsTheGraph) {
    Device& device = test_device();
    MemoryPool& pool = MemoryPool::of(device);
    const auto stream = Stream::create(device);
    const StreamScope scope(stream);
    const Array source = bytes_of(device, 3), target = bytes_of(device, 0);
    const PoolStats before = pool.stats();
    auto graph = Graph::capture(stream, [&] {
        const Array temporary = Array::empty(device, {kCount}, DType::uint8);
        copy(temporary, source);
        copy(target, temporary);
    });
    EXPECT_EQ(pool.stats().live_blocks, before.live_blocks + 1);
    // Others get other memory, so a replay overwrites nobody.
    std::vector<Array> others;
    for (int i = 0; i < 20; ++i) others.push_back(bytes_of(device, 5));
    const std::uint64_t allocations = pool.stats().allocations;
    graph->launch(stream);
    graph->launch(stream);
    EXPECT_EQ(pool.stats().allocations, allocations);  // a replay touches no allocator
    expect_all(target, 3);
    for (const Array& other : others) expect_all(other, 5);
    others.clear();
    graph = nullptr;
    EXPECT_EQ(pool.stats().live_blocks, before.live_blocks);
}

TEST(Graph, MemoryFreedInACaptureIsUsedAgainInIt) {
    Device& device = test_device();
    const auto stream = Stream::create(device);
    const StreamScope scope(stream);
    const Array target = bytes_of(device, 0);
    const std::uint64_t before = MemoryPool::of(device).stats().live_blocks;
    const auto graph = Graph::capture(stream, [&] {
        for (std::uint8_t i = 1; i <= 10; ++i) copy(target, bytes_of(device, i));
    });
    EXPECT_EQ(MemoryPool::of(device).stats().live_blocks, before + 1);
    EXPECT_EQ(graph->node_count(), 20u);
    graph->launch(stream);
    expect_all(target, 10);
}

TEST(Graph, ArraysMadeInACaptureOutliveTheGraph) {
    Device& device = test_device();
    const auto stream = Stream::create(device);
    const StreamScope scope(stream);
    Array result;
    auto graph = Graph::capture(stream, [&] { result = bytes_of(device, 6); });
    graph->launch(stream);
    graph = nullptr;
    std::vector<Array> others;
    for (int i = 0; i < 20; ++i) others.push_back(bytes_of(device, 5));
    expect_all(result, 6);
}

TEST(Graph, ArraysThatTheCallerDropsStayWithTheGraph) {
    Device& device = test_device();
    const auto stream = Stream::create(device);
    const StreamScope scope(stream);
    const Array target = bytes_of(device, 0);
    Array source = bytes_of(device, 4);
    const auto graph = Graph::capture(stream, [&] { copy(target, source); });
    source = Array();
    std::vector<Array> others;
    for (int i = 0; i < 20; ++i) others.push_back(bytes_of(device, 5));
    graph->launch(stream);
    expect_all(target, 4);
}

TEST(Graph, AnExceptionEndsTheCaptureAndGoesOn) {
    Device& device = test_device();
    const auto stream = Stream::create(device);
    const StreamScope scope(stream);
    const Array a = bytes_of(device, 1);
    const std::uint64_t before = MemoryPool::of(device).stats().live_blocks;
    const auto broken = [&] {
        const Array temporary = bytes_of(device, 2);
        copy(a, temporary);
        throw std::runtime_error("the caller's own");
    };
    EXPECT_THROW(Graph::capture(stream, broken), std::runtime_error);
    EXPECT_EQ(stream->capture(), nullptr);
    EXPECT_EQ(MemoryPool::of(device).stats().live_blocks, before);
    expect_all(a, 1);
    const auto graph = Graph::capture(stream, [&] { bytes_of(device, 3); });
    EXPECT_EQ(graph->node_count(), 1u);
}

TEST(Graph, WhatCannotBeCapturedRaisesByName) {
    Device& device = test_device();
    const auto stream = Stream::create(device);
    const StreamScope scope(stream);
    const Array a = bytes_of(device, 1);
    std::vector<std::uint8_t> host(kCount, 9);
    try {
        Graph::capture(stream, [&] { a.copy_to_host(host.data()); });
        FAIL() << "a copy to the host was captured";
    } catch (const Error& failure) {
        EXPECT_EQ(failure.kind(), ErrorKind::unsupported);
        EXPECT_NE(std::string(failure.what()).find("to_numpy"), std::string::npos);
    }
    expect_kind(ErrorKind::unsupported,
                [&] { Graph::capture(stream, [&] { a.copy_from_host(host.data()); }); });
    expect_kind(ErrorKind::unsupported, [&] { Graph::capture(stream, [&] { stream->synchronize(); }); });
    expect_kind(ErrorKind::unsupported, [&] { Graph::capture(stream, [&] { stream->query(); }); });
    expect_all(a, 1);
}

TEST(Graph, ACapturedStreamIsOrderedWithNoOther) {
    Device& device = test_device();
    const auto stream = Stream::create(device), other = Stream::create(device);
    Event event(device);
    event.record(*other);
    int refused = 0;
    const auto refuses = [&](const std::function<void()>& call) {
        try {
            call();
        } catch (const Error& failure) {
            EXPECT_EQ(failure.kind(), ErrorKind::unsupported) << failure.what();
            ++refused;
        }
    };
    const auto graph = Graph::capture(stream, [&] {
        refuses([&] { stream->wait(*other); });
        refuses([&] { other->wait(*stream); });
        refuses([&] { stream->wait(event); });
        refuses([&] { event.record(*stream); });
        bytes_of(device, 3);
    });
    EXPECT_EQ(refused, 4);
    graph->launch(stream);
    stream->synchronize();
    EXPECT_EQ(graph->node_count(), 1u);
}

TEST(Graph, HalvesAreCheckedAndAnAbandonedCaptureIsGone) {
    Device& device = test_device();
    const auto stream = Stream::create(device), other = Stream::create(device);
    const auto graph = Graph::begin(stream);
    expect_kind(ErrorKind::value, [&] { Graph::begin(stream); });
    expect_kind(ErrorKind::value, [&] { graph->launch(other); });
    EXPECT_EQ(graph->node_count(), 0u);
    graph->abandon();
    EXPECT_FALSE(graph->ready());
    EXPECT_EQ(stream->capture(), nullptr);
    graph->abandon();
    expect_kind(ErrorKind::value, [&] { graph->end(); });
    stream->synchronize();
    {
        const auto dropped = Graph::begin(stream);
    }
    EXPECT_EQ(stream->capture(), nullptr);
    stream->synchronize();
}

TEST(Graph, LaunchesElsewhereAreRefused) {
    Device& device = test_device();
    const auto stream = Stream::create(device), second = Stream::create(device);
    const auto graph = Graph::capture(stream, [] {});
    TestDevice elsewhere;
    expect_kind(ErrorKind::value, [&] { graph->launch(elsewhere.device.default_stream()); });
    expect_kind(ErrorKind::unsupported, [&] { Graph::capture(second, [&] { graph->launch(second); }); });
    graph->launch(second);
    second->synchronize();
}

TEST(Graph, AFailedEndLeavesTheStreamAsItWas) {
    TestDevice target;
    const auto stream = Stream::create(target.device);
    target.driver.set_faults(
        {{.call = "capture_end", .nth = 1, .code = 2, .code_name = "CUDA_ERROR_OUT_OF_MEMORY"}});
    const StreamScope scope(stream);
    EXPECT_THROW(Graph::capture(stream, [&] { bytes_of(target.device, 1); }), DriverError);
    EXPECT_EQ(stream->capture(), nullptr);
    stream->synchronize();
    EXPECT_EQ(target.driver.live_graphs(), 0u);
    expect_all(bytes_of(target.device, 8), 8);
}

TEST(Graph, AStorageAtADeadOnesAddressStaysWithTheGraph) {
    TestDevice target;
    Device& device = target.device;
    const auto stream = Stream::create(device);
    const StreamScope scope(stream);
    const DevicePtr memory = device.driver().allocate(kCount);
    alignas(Storage) unsigned char place[sizeof(Storage)];
    const auto stand = [&](Block block, std::function<void()> release) {
        auto* storage = new (place) Storage(device, std::move(block), std::move(release));
        return std::shared_ptr<Storage>(storage, [](Storage* dead) { dead->~Storage(); });
    };
    int released = 0;
    auto graph = Graph::capture(stream, [&] {
        stand(MemoryPool::of(device).allocate(kCount, stream), nullptr)->before_write(stream);
        const auto borrowed = stand({.pointer = memory, .bytes = kCount}, [&] { ++released; });
        borrowed->before_write(stream);
        device.launcher().fill(*stream, memory, 3, kCount);
    });
    EXPECT_EQ(released, 0);
    graph->launch(stream);
    stream->synchronize();
    graph = nullptr;
    EXPECT_EQ(released, 1);
    device.driver().free(memory);
}
