// Partitions: what they are given, what happens to their work, and that nothing of them stays.
#include <cmath>
#include <thread>

#include "memory/pool.hpp"
#include "partition_support.hpp"
#include "runtime/graph.hpp"
#include "sim_support.hpp"
#include "support.hpp"

using namespace gpk;
using namespace partitions;
using namespace sim;

namespace {

const SimOptions kH100{.memory_bytes = 64 * kMiB, .multiprocessors = 132, .sm_group_size = 8};

std::int64_t bits_of(const std::vector<int>& groups) {
    std::int64_t bits = 0;
    for (const int group : groups) bits |= std::int64_t{1} << group;
    return bits;
}

void expect_nothing_of_partitions(TestDevice& target, const std::string& where) {
    MemoryPool::of(target.device).trim();
    EXPECT_EQ(target.driver.live_sm_partitions(), 0u) << where;
    EXPECT_EQ(target.driver.live_graphs(), 0u) << where;
    EXPECT_EQ(target.driver.invalid_frees(), 0u) << where;
    EXPECT_LE(target.driver.live_streams(), 2u) << where;  // the default one, and the one that stands in
    EXPECT_TRUE(target.device.attached<DeviceLedger>().ledger->entries().empty()) << where;
}

}  // namespace

TEST(PartitionLimits, AreChecked) {
    PartitionLimits limits;
    const double inf = std::numeric_limits<double>::infinity();
    for (const double bad : {0.0, -0.5, 1.0001, std::nan(""), inf, -inf}) {
        expect_kind(ErrorKind::value, [&] { limits.compute(bad); });
        expect_kind(ErrorKind::value, [&] { limits.bandwidth(bad); });
    }
    for (const std::size_t bad : {std::size_t{0}, std::size_t{1} << 63, ~std::size_t{0}}) {
        expect_kind(ErrorKind::value, [&] { limits.memory(bad); });
    }
    for (const std::int64_t bad : {std::int64_t{0}, std::int64_t{-1}, std::int64_t{1} << 40}) {
        expect_kind(ErrorKind::value, [&] { limits.streams(bad); });
    }
    EXPECT_TRUE(limits == PartitionLimits());
    limits.memory(1).compute(1).bandwidth(1e-9).streams(4096).qos(QosClass::burstable);
    EXPECT_EQ(limits.memory(), 1u);
    EXPECT_EQ(limits.streams(), 4096);
}

TEST(PartitionLimits, AShareComesToWholeGroups) {
    EXPECT_EQ(groups_for(0.5, 16), 8);
    EXPECT_EQ(groups_for(0.1, 10), 1);
    EXPECT_EQ(groups_for(0.3, 10), 3);
    EXPECT_EQ(groups_for(0.49, 16), 7);
    EXPECT_EQ(groups_for(1e-6, 16), 1);
    EXPECT_EQ(groups_for(1, 17), 17);
    EXPECT_EQ(groups_for(0.5, 0), 0);
    EXPECT_EQ(groups_for(0, 16), 0);
}

TEST(Partition, TwoRunOnDisjointSms) {
    for (const bool interleaved : {false, true}) {
        SimOptions options = kH100;
        options.interleaved = interleaved;
        TestDevice target(options);
        PartitionManager manager({.device = &target.device});
        const auto a = manager.create("a", "", PartitionLimits().compute(0.5));
        const auto b = manager.create("b", "", PartitionLimits().compute(0.5));
        EXPECT_EQ(a->multiprocessors(), 64);
        EXPECT_DOUBLE_EQ(a->compute(), 64.0 / 132);
        const Scope in_a(a), in_b(b);
        EXPECT_EQ(ran_on(in_a.stream), 0x00ff);
        EXPECT_EQ(ran_on(in_b.stream), 0xff00);
        EXPECT_EQ(in_a.stream->multiprocessors(), 64);
        // Also what is made inside, and what is captured there.
        const StreamScope scope(in_b.stream);
        const auto inner = Stream::create(target.device);
        EXPECT_EQ(ran_on(inner), 0xff00);
        expect_kind(ErrorKind::unsupported,
                    [&] { manager.create("c", "", PartitionLimits().compute(0.01)); });
    }
}

TEST(Partition, MemoryAndStreamsAreLimited) {
    Device& device = test_device();
    PartitionManager manager({.device = &device});
    const auto partition = manager.create("limited", "", PartitionLimits().memory(8 * kMiB).streams(2));
    EXPECT_EQ(partition->tenant()->memory_limit(), 8 * kMiB);
    const Scope one(partition), two(partition), three(partition);
    EXPECT_NE(one.stream, two.stream);
    EXPECT_TRUE(three.stream == one.stream || three.stream == two.stream);
    EXPECT_EQ(partition->usage().streams, 2);
    EXPECT_EQ(partition->usage().entered, 3);
    expect_kind(ErrorKind::unsupported, [&] { Stream::create_for(partition->tenant(), device); });
    expect_kind(ErrorKind::unsupported, [&] { manager.destroy("limited"); });
    EXPECT_TRUE(partition->alive());
}

TEST(Partition, NothingIsPromisedTwice) {
    TestDevice target(kH100);
    PartitionManager manager({.device = &target.device, .total_memory = 32 * kMiB});
    PartitionManager other({.device = &target.device});
    expect_kind(ErrorKind::value,
                [&] { PartitionManager({.device = &target.device, .total_memory = 65 * kMiB}); });
    const auto a = manager.create("a", "", PartitionLimits().memory(20 * kMiB).bandwidth(0.6));
    expect_kind(ErrorKind::memory, [&] { manager.create("b", "", PartitionLimits().memory(13 * kMiB)); });
    expect_kind(ErrorKind::value, [&] { manager.create("a", "", {}); });
    expect_kind(ErrorKind::value, [&] { manager.create("", "", {}); });
    expect_kind(ErrorKind::value, [&] { manager.get("b"); });
    expect_kind(ErrorKind::unsupported, [&] { other.create("a", "", PartitionLimits().bandwidth(0.5)); });
    expect_kind(ErrorKind::memory, [&] { other.create("a", "", PartitionLimits().memory(45 * kMiB)); });
    const auto c = other.create("a", "", PartitionLimits().memory(44 * kMiB).bandwidth(0.4));
    expect_kind(ErrorKind::memory, [&] { manager.resize(*a, PartitionLimits().memory(21 * kMiB)); });
    EXPECT_EQ(a->limits().memory(), 20 * kMiB);
    manager.create("best", "", PartitionLimits().memory(32 * kMiB).bandwidth(1).qos(QosClass::best_effort));
    EXPECT_EQ(manager.list().size(), 2u);
}

TEST(Partition, ResizeMovesItsStreams) {
    for (const bool interleaved : {false, true}) {
        SimOptions options = kH100;
        options.interleaved = interleaved;
        TestDevice target(options);
        PartitionManager manager({.device = &target.device});
        const auto a = manager.create("a", "", PartitionLimits().compute(0.5));
        const Scope scope(a);
        const StreamScope current(scope.stream);
        const Array x = Array::empty(target.device, {1}, DType::int64);
        target.device.launcher().launch(*scope.stream, kWhere, {}, WhereParams{x.as<std::int64_t>()}, {});
        manager.resize(*a, PartitionLimits().compute(0.25).memory(kMiB).streams(3));
        // What was queued ran before, where it was queued.
        EXPECT_TRUE(scope.stream->query());
        std::int64_t bits = 0;
        x.copy_to_host(&bits);
        EXPECT_EQ(bits, 0xff);
        EXPECT_EQ(ran_on(scope.stream), 0x0f);
        EXPECT_EQ(scope.stream->multiprocessors(), 32);
        EXPECT_EQ(a->tenant()->memory_limit(), kMiB);
        // What it gave back is another's.
        const auto b = manager.create("b", "", PartitionLimits().compute(0.75));
        EXPECT_EQ(ran_on(Scope(b).stream), 0xfff0);
        expect_kind(ErrorKind::unsupported, [&] { manager.resize(*a, PartitionLimits().compute(0.5)); });
        EXPECT_EQ(ran_on(scope.stream), 0x0f);
        manager.resize(*b, PartitionLimits());
        EXPECT_EQ(ran_on(Scope(b).stream), 0);
        manager.resize(*a, PartitionLimits().compute(1));
        EXPECT_EQ(ran_on(scope.stream), 0xffff);
        EXPECT_EQ(target.driver.live_sm_partitions(), 1u);
    }
}

TEST(Partition, AGraphRunsOnlyWhereItWasCaptured) {
    TestDevice target(kH100);
    PartitionManager manager({.device = &target.device});
    const auto a = manager.create("a", "", PartitionLimits().compute(0.25));
    const auto b = manager.create("b", "", PartitionLimits().compute(0.25));
    const Array x = Array::empty(target.device, {1}, DType::int64);
    const Scope in_a(a), in_b(b);
    const auto capture = [&](const std::shared_ptr<Stream>& stream) {
        return Graph::capture(stream, [&] {
            x.storage()->before_write(stream);
            target.device.launcher().launch(*stream, kWhere, {}, WhereParams{x.as<std::int64_t>()}, {});
        });
    };
    auto graph = capture(in_a.stream);
    graph->launch(in_a.stream);
    expect_kind(ErrorKind::unsupported, [&] { graph->launch(in_b.stream); });
    expect_kind(ErrorKind::unsupported, [&] { graph->launch(target.device.default_stream()); });
    const auto outside = capture(Stream::create_for(nullptr, target.device));
    expect_kind(ErrorKind::unsupported, [&] { outside->launch(in_a.stream); });
    outside->launch(target.device.default_stream());
    // After a resize the old place is another's.
    manager.resize(*a, PartitionLimits().compute(0.5));
    expect_kind(ErrorKind::unsupported, [&] { graph->launch(in_a.stream); });
    graph = capture(in_a.stream);
    graph->launch(in_a.stream);
    std::int64_t bits = 0;
    x.copy_to_host(&bits);
    EXPECT_EQ(bits, bits_of(a->sm_groups()));
}

TEST(Partition, ACaptureIsInTheWayOfAChange) {
    Device& device = test_device();
    PartitionManager manager({.device = &device});
    const auto a = manager.create("captured", "", PartitionLimits().memory(kMiB));
    const auto stream = Stream::create_for(a->tenant(), device);
    const auto graph = Graph::begin(stream);
    expect_kind(ErrorKind::unsupported, [&] { manager.resize(*a, PartitionLimits().memory(2 * kMiB)); });
    expect_kind(ErrorKind::unsupported, [&] { manager.destroy("captured"); });
    EXPECT_TRUE(a->alive());
    EXPECT_EQ(a->limits().memory(), kMiB);
    graph->abandon();
    manager.resize(*a, PartitionLimits().memory(2 * kMiB));
    manager.destroy("captured");
    EXPECT_FALSE(a->alive());
}

TEST(Partition, UseAfterItsEndIsRefusedAndArraysLiveOn) {
    for (const bool interleaved : {false, true}) {
        SimOptions options = kH100;
        options.interleaved = interleaved;
        TestDevice target(options);
        PartitionManager manager({.device = &target.device});
        const auto a = manager.create("a", "", PartitionLimits().compute(0.5).memory(8 * kMiB));
        const auto kept = Stream::create_for(a->tenant(), target.device);
        Array x;
        {
            const StreamScope scope(kept);
            x = Array::empty(target.device, {1000}, DType::int64);
            x.storage()->before_write(kept);
            target.device.launcher().fill(*kept, x.data(), 1, x.nbytes());
        }
        manager.destroy("a");
        manager.create("a", "", PartitionLimits().compute(1));
        EXPECT_EQ(target.driver.live_sm_partitions(), 1u);
        expect_kind(ErrorKind::value, [&] { manager.destroy("b"); });
        expect_kind(ErrorKind::unsupported, [&] { a->enter(); });
        expect_kind(ErrorKind::unsupported, [&] { a->tenant(); });
        expect_kind(ErrorKind::unsupported, [&] { manager.resize(*a, {}); });
        expect_kind(ErrorKind::unsupported, [&] { target.device.launcher().fill(*kept, x.data(), 1, 8); });
        kept->synchronize();
        EXPECT_TRUE(kept->query());
        Event event(target.device);
        event.record(*kept);
        target.device.default_stream()->wait(*kept);
        // Used and freed outside.
        std::vector<std::int64_t> host(1000);
        x.copy_to_host(host.data());
        EXPECT_EQ(host[999], 0x0101010101010101);
        x = Array();
        const Array again = Array::empty(target.device, {1000}, DType::int64);
        target.device.synchronize();
    }
}

TEST(Partition, AThousandComeAndGo) {
    TestDevice target(kH100);
    const auto cycle = [&](int i) {
        PartitionManager& manager = PartitionManager::of(target.device);
        const auto a = manager.create_anonymous("", PartitionLimits().compute(0.5).memory(kMiB));
        const auto b = manager.create("b", "", PartitionLimits().compute(0.25));
        Array x;
        {
            const Scope scope(a);
            const StreamScope current(scope.stream);
            x = Array::empty(target.device, {64}, DType::int64);
            EXPECT_EQ(ran_on(scope.stream), 0x00ff);
        }
        if (i % 3 == 0) manager.resize(*b, PartitionLimits().compute(0.5));
        EXPECT_EQ(ran_on(Scope(b).stream), i % 3 == 0 ? 0xff00 : 0x0f00);
        manager.destroy("b");
    };
    for (int i = 0; i < 1000; ++i) cycle(i);
    expect_nothing_of_partitions(target, "after 1,000 cycles");
    EXPECT_EQ(target.driver.bytes_in_use(), 0u);
    EXPECT_LE(target.driver.live_events(), 1u);
}

namespace {

// Counts, on each group that it runs on, where the other partition runs at the same time.
std::atomic<int> running[2][16];
std::atomic<int> meetings{0};
struct AuditParams {
    int who;
};
void audit_host(const void* params, const LaunchConfig&) {
    const int who = static_cast<const AuditParams*>(params)->who;
    for (const int group : sim_running_groups()) {
        ++running[who][group];
        meetings += running[1 - who][group];
    }
    std::this_thread::yield();
    for (const int group : sim_running_groups()) --running[who][group];
}
constexpr KernelDef kAuditDef{.name = "audit", .twin = audit_host};
const Kernel kAudit{kAuditDef};

}  // namespace

TEST(Partition, NewWorkWaitsForAResize) {
    TestDevice target(kH100);
    PartitionManager manager({.device = &target.device});
    const auto a = manager.create("a", "", PartitionLimits().compute(0.5));
    const auto b = manager.create("b", "", PartitionLimits().compute(0.25));
    std::atomic<bool> stop{false};
    std::atomic<int> launches{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) {
        threads.emplace_back([&, t] {
            const auto& partition = t == 2 ? b : a;
            while (!stop) {
                const Scope scope(partition);
                target.device.launcher().launch(*scope.stream, kAudit, {}, AuditParams{t == 2}, {});
                ++launches;
            }
        });
    }
    while (launches < 50) std::this_thread::yield();
    for (int i = 0; i < 60; ++i) {
        manager.resize(*a, PartitionLimits().compute(i % 2 ? 0.5 : 0.25));
        manager.resize(*b, PartitionLimits().compute(i % 2 ? 0.25 : 0.5));
        if (i % 2 == 0) manager.resize(*b, PartitionLimits().compute(0.25));
    }
    stop = true;
    for (auto& thread : threads) thread.join();
    EXPECT_EQ(meetings, 0);
    manager.destroy("a");
    manager.destroy("b");
}

TEST(Partition, ManyThreadsMakeAndDestroyThem) {
    TestDevice target(kH100);
    std::atomic<int> made{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
        threads.emplace_back([&, t] {
            PartitionManager& manager = PartitionManager::of(target.device);
            for (int i = 0; i < 60; ++i) {
                try {
                    const auto p =
                        manager.create(str(t, ".", i), "", PartitionLimits().compute(0.2 + 0.1 * t));
                    const std::int64_t own = bits_of(p->sm_groups());
                    EXPECT_EQ(ran_on(Scope(p).stream), own);
                    ++made;
                    manager.destroy(p->id());
                } catch (const Error& failure) {
                    EXPECT_EQ(static_cast<int>(failure.kind()), static_cast<int>(ErrorKind::unsupported));
                }
            }
        });
    }
    for (auto& thread : threads) thread.join();
    EXPECT_GT(made, 20);
    expect_nothing_of_partitions(target, "threads");
}
