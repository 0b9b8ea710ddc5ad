// MemoryPool: size classes, reuse in stream order, limit, statistics, threads.
#include "memory/pool.hpp"

#include <random>
#include <thread>
#include <vector>

#include "runtime/graph.hpp"
#include "sim_support.hpp"
#include "support.hpp"

using namespace gpk;
using namespace sim;

namespace {

// A pool of the test's own on the suite's device.
struct OnDevice {
    Device& device = test_device();
    MemoryPool pool{device};
    std::shared_ptr<Stream> one = Stream::create(device), two = Stream::create(device);
};

void expect_consistent(const PoolStats& stats) {
    EXPECT_LE(stats.cached_bytes, stats.reserved_bytes);
    EXPECT_LE(stats.live_bytes, stats.reserved_bytes - stats.cached_bytes);
    EXPECT_GE(stats.peak_live_bytes, stats.live_bytes);
}

}  // namespace

TEST(Pool, SizeClassesWasteLittle) {
    EXPECT_EQ(MemoryPool::class_bytes(1), 256u);
    EXPECT_EQ(MemoryPool::class_bytes(256), 256u);
    EXPECT_EQ(MemoryPool::class_bytes(257), 512u);
    std::size_t previous = 0;
    for (std::size_t bytes = 1; bytes < (std::size_t{1} << 34); bytes += 1 + bytes / 97) {
        const std::size_t size = MemoryPool::class_bytes(bytes);
        ASSERT_GE(size, bytes);
        ASSERT_EQ(size % 256, 0u);
        ASSERT_GE(size, previous) << bytes;
        ASSERT_EQ(MemoryPool::class_bytes(size), size) << bytes;
        ASSERT_LE(size - bytes, std::max<std::size_t>(255, bytes / 8)) << bytes;
        previous = size;
    }
}

TEST(Pool, NothingIsANullBlock) {
    OnDevice on;
    const Block block = on.pool.allocate(0, on.one);
    EXPECT_EQ(block.pointer, 0u);
    on.pool.release(block);
    EXPECT_EQ(on.pool.stats().allocations, 0u);
}

TEST(Pool, TheSameStreamTakesTheSameBlockAtOnce) {
    OnDevice on;
    Block first = on.pool.allocate(1000, on.one);
    EXPECT_EQ(first.pointer % 256, 0u);
    const DevicePtr pointer = first.pointer;
    on.device.launcher().fill(*on.one, pointer, 1, 1000);
    on.pool.release(std::move(first));
    Block second = on.pool.allocate(900, on.one);
    EXPECT_EQ(second.pointer, pointer);
    EXPECT_EQ(on.pool.stats().driver_allocations, 1u);
    on.pool.release(std::move(second));
}

TEST(Pool, AnotherStreamTakesAnIdleBlockWithoutWaiting) {
    TestDevice target({.interleaved = true});
    MemoryPool& pool = MemoryPool::of(target.device);
    const auto one = Stream::create(target.device), two = Stream::create(target.device);
    Block block = pool.allocate(100, one);
    const DevicePtr pointer = block.pointer;
    pool.release(std::move(block));
    target.driver.set_faults({});
    block = pool.allocate(100, two);
    EXPECT_EQ(block.pointer, pointer);
    EXPECT_EQ(target.driver.call_counts().at("stream_wait_event"), 0);
    EXPECT_EQ(target.driver.call_counts().at("allocate"), 0);
    pool.release(std::move(block));
}

TEST(Pool, ABusyBlockIsLeftWhereThereIsRoomAndWaitedForWhereNot) {
    TestDevice target({.interleaved = true, .seed = 1});
    MemoryPool& pool = MemoryPool::of(target.device);
    const auto one = Stream::create(target.device), two = Stream::create(target.device);
    Block block = pool.allocate(256, one);
    const DevicePtr pointer = block.pointer;
    for (int i = 0; i < 100; ++i) target.device.launcher().fill(*one, pointer, 1, 256);
    pool.release(std::move(block));
    Block fresh = pool.allocate(256, two);
    EXPECT_NE(fresh.pointer, pointer);
    pool.set_limit(512);
    target.driver.set_faults({});
    Block waiting = pool.allocate(256, two);
    EXPECT_EQ(waiting.pointer, pointer);
    EXPECT_EQ(target.driver.call_counts().at("stream_wait_event"), 1);
    EXPECT_EQ(target.driver.call_counts().at("stream_synchronize"), 0);  // the host never waits
    pool.release(std::move(fresh));
    pool.release(std::move(waiting));
}

TEST(Pool, ABlockFreedDuringACaptureOfOneOfItsStreamsCanBeHadAgain) {
    OnDevice on;
    Block block = on.pool.allocate(256, on.one);
    on.device.launcher().fill(*on.two, block.pointer, 1, 256);
    {
        const auto graph = Graph::capture(on.two, [&] {
            on.pool.release(std::move(block), {on.two});
            Block other = on.pool.allocate(256, on.one);  // may not ask the captured stream
            on.pool.release(std::move(other));
        });
    }
    on.one->synchronize();
    on.two->synchronize();
    Block a = on.pool.allocate(256, on.one), b = on.pool.allocate(256, on.one);
    EXPECT_EQ(on.pool.stats().driver_allocations, 2u);
    on.pool.release(std::move(a));
    on.pool.release(std::move(b));
}

TEST(Pool, TheLimitHoldsAndTheErrorSaysWhatIsHeld) {
    OnDevice on;
    on.pool.set_limit(4096);
    EXPECT_EQ(on.pool.limit(), 4096u);
    Block a = on.pool.allocate(4096 - 256, on.one);
    try {
        on.pool.allocate(512, on.one);
        FAIL() << "the limit was passed";
    } catch (const Error& failure) {
        EXPECT_EQ(failure.kind(), ErrorKind::memory);
        EXPECT_NE(std::string(failure.what()).find("3840 in 1 live blocks"), std::string::npos)
            << failure.what();
    }
    expect_consistent(on.pool.stats());
    on.pool.release(std::move(a));
    // The cache of another class makes room.
    Block b = on.pool.allocate(1024, on.one);
    EXPECT_LE(on.pool.stats().reserved_bytes, 4096u);
    on.pool.set_limit(0);
    Block c = on.pool.allocate(100000, on.one);
    on.pool.release(std::move(b));
    on.pool.release(std::move(c));
}

TEST(Pool, AFullDeviceIsAMemoryErrorAndTheCacheMakesRoom) {
    TestDevice target({.memory_bytes = 1 << 20});
    MemoryPool& pool = MemoryPool::of(target.device);
    const auto& stream = target.device.default_stream();
    Block half = pool.allocate(1 << 19, stream);
    expect_kind(ErrorKind::memory, [&] { pool.allocate(1 << 20, stream); });
    pool.release(std::move(half));
    Block all = pool.allocate(1 << 20, stream);
    EXPECT_EQ(target.driver.live_allocations(), 1u);
    pool.release(std::move(all));
}

TEST(Pool, LargeRequestsTakeALittleMoreRatherThanFreshMemory) {
    OnDevice on;
    const std::size_t size = std::size_t{80} << 20;
    Block block = on.pool.allocate(size, on.one);
    const DevicePtr pointer = block.pointer;
    on.pool.release(std::move(block));
    block = on.pool.allocate(size - (std::size_t{10} << 20), on.one);
    EXPECT_EQ(block.pointer, pointer);
    EXPECT_EQ(block.class_bytes, size);
    Block small = on.pool.allocate(std::size_t{64} << 20, on.one);
    on.pool.release(std::move(small));
    on.pool.release(std::move(block));
    EXPECT_EQ(on.pool.stats().cached_bytes, on.pool.stats().reserved_bytes);
}

TEST(Pool, StatisticsAddUp) {
    OnDevice on;
    Block a = on.pool.allocate(1000, on.one), b = on.pool.allocate(10, on.one);
    PoolStats stats = on.pool.stats();
    EXPECT_EQ(stats.live_bytes, 1010u);
    EXPECT_EQ(stats.live_blocks, 2u);
    EXPECT_EQ(stats.allocations, 2u);
    EXPECT_EQ(stats.reserved_bytes, 1024u + 256u);
    EXPECT_EQ(stats.cached_bytes, 0u);
    on.pool.release(std::move(a));
    stats = on.pool.stats();
    EXPECT_EQ(stats.live_bytes, 10u);
    EXPECT_EQ(stats.peak_live_bytes, 1010u);
    EXPECT_EQ(stats.cached_bytes, 1024u);
    on.pool.reset_peak();
    EXPECT_EQ(on.pool.stats().peak_live_bytes, 10u);
    EXPECT_EQ(on.pool.trim(), 1024u);
    EXPECT_EQ(on.pool.trim(), 0u);
    EXPECT_EQ(on.pool.stats().reserved_bytes, 256u);
    on.pool.release(std::move(b));
    EXPECT_EQ(on.pool.trim(), 256u);
    EXPECT_EQ(on.pool.stats().reserved_bytes, 0u);
}

TEST(Pool, ThreadsHammerIt) {
    OnDevice on;
    constexpr int kThreads = 4;
    std::vector<std::thread> threads;
    std::vector<int> wrong(kThreads);
    for (int t = 0; t < kThreads; ++t) {
        threads.emplace_back([&, t] {
            std::mt19937 random(static_cast<unsigned>(t));
            const auto stream = Stream::create(on.device);
            struct Held {
                Block block;
                std::uint8_t mark;
            };
            std::vector<Held> held;
            const auto drop = [&](std::size_t i) {
                std::vector<std::uint8_t> got(held[i].block.bytes);
                on.device.launcher().copy_to_host(*stream, got.data(), held[i].block.pointer, got.size());
                stream->synchronize();
                for (const std::uint8_t byte : got)
                    wrong[static_cast<std::size_t>(t)] += byte != held[i].mark;
                on.pool.release(std::move(held[i].block), {i % 2 == 0 ? on.two : stream});
                held.erase(held.begin() + static_cast<std::ptrdiff_t>(i));
            };
            for (int i = 0; i < 300; ++i) {
                if (held.size() < 8) {
                    const auto mark = static_cast<std::uint8_t>(random());
                    Block block = on.pool.allocate(1 + random() % 3000, stream);
                    on.device.launcher().fill(*stream, block.pointer, mark, block.bytes);
                    held.push_back({std::move(block), mark});
                } else {
                    drop(random() % held.size());
                }
                if (i % 100 == 99) on.pool.trim();
            }
            while (!held.empty()) drop(0);
        });
    }
    for (auto& thread : threads) thread.join();
    EXPECT_EQ(wrong, std::vector<int>(kThreads, 0));
    const PoolStats stats = on.pool.stats();
    expect_consistent(stats);
    EXPECT_EQ(stats.live_blocks, 0u);
    EXPECT_EQ(stats.live_bytes, 0u);
    EXPECT_EQ(stats.cached_bytes, stats.reserved_bytes);
    EXPECT_EQ(on.pool.trim(), stats.reserved_bytes);
}
