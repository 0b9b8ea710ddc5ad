// The pool of pinned host memory.
#include <thread>

#include "support.hpp"
#include "transfer_support.hpp"

using namespace gpk;
using namespace sim;

TEST(Pinned, ClassesWasteAQuarterAtMost) {
    EXPECT_EQ(PinnedPool::class_bytes(1), 4096u);
    EXPECT_EQ(PinnedPool::class_bytes(4096), 4096u);
    EXPECT_EQ(PinnedPool::class_bytes(4097), 8192u);
    std::size_t last = 0;
    for (std::size_t bytes = 1; bytes < (std::size_t{1} << 40); bytes += 1 + bytes / 7) {
        const std::size_t size = PinnedPool::class_bytes(bytes);
        EXPECT_GE(size, bytes);
        EXPECT_GE(size, last);
        EXPECT_EQ(size % 4096, 0u);
        if (bytes > 16384) {
            EXPECT_LE(size, bytes + bytes / 4 + 1) << bytes;
        }
        EXPECT_EQ(PinnedPool::class_bytes(size), size);
        last = size;
    }
}

TEST(Pinned, ReusesWhatWasFreed) {
    TestDevice target;
    PinnedPool& pool = PinnedPool::of(target.device);
    EXPECT_EQ(pool.allocate(0).data, nullptr);
    const PinnedBlock a = pool.allocate(5000);
    ASSERT_NE(a.data, nullptr);
    std::memset(a.data, 1, 5000);
    EXPECT_TRUE(pool.contains(a.data, 5000));
    EXPECT_TRUE(pool.contains(a.data + 4999, 1));
    EXPECT_FALSE(pool.contains(a.data + 4999, 2));
    EXPECT_FALSE(pool.contains(a.data - 1, 1));
    EXPECT_FALSE(pool.contains(&target, 1));
    PinnedStats stats = pool.stats();
    EXPECT_EQ(stats.live_bytes, 5000u);
    EXPECT_EQ(stats.reserved_bytes, 8192u);
    pool.release(a);
    EXPECT_FALSE(pool.contains(a.data, 1));
    const PinnedBlock b = pool.allocate(8000);
    EXPECT_EQ(b.data, a.data);
    pool.release(b);
    stats = pool.stats();
    EXPECT_EQ(stats.live_bytes, 0u);
    EXPECT_EQ(stats.cached_bytes, 8192u);
    EXPECT_EQ(stats.driver_allocations, 1u);
    EXPECT_EQ(pool.trim(), 8192u);
    EXPECT_EQ(pool.stats().reserved_bytes, 0u);
    EXPECT_EQ(target.driver.live_host_allocations(), 0u);
    pool.release({});  // nothing
}

TEST(Pinned, GivesNoBlockOutWhileACopyUsesIt) {
    TestDevice target({.interleaved = true, .seed = 1});
    PinnedPool& pool = PinnedPool::of(target.device);
    const auto stream = Stream::create(target.device), gate = Stream::create(target.device);
    const Array array = Array::empty(target.device, {4096}, DType::uint8);
    const PinnedBlock block = pool.allocate(4096);
    std::memset(block.data, 5, 4096);
    array.storage()->before_write(stream);
    target.device.launcher().copy_to_device(*stream, array.data(), block.data, 4096);
    const auto after = std::make_shared<Event>(target.device);
    after->record(*stream);
    pool.release(block, {after});
    const PinnedBlock other = pool.allocate(4096);
    std::memset(other.data, 9, 4096);  // where it is the same memory, the copy is over
    std::vector<std::uint8_t> back(4096);
    array.copy_to_host(back.data());
    EXPECT_EQ(back, std::vector<std::uint8_t>(4096, 5));
    pool.release(other);
    stream->synchronize();
    EXPECT_GT(pool.trim(), 0u);
    EXPECT_EQ(target.driver.live_host_allocations(), 0u);
}

TEST(Pinned, KeepsToItsLimit) {
    TestDevice target;
    PinnedPool& pool = PinnedPool::of(target.device);
    pool.set_limit(16384);
    EXPECT_EQ(pool.limit(), 16384u);
    const PinnedBlock a = pool.allocate(8192);
    const PinnedBlock b = pool.allocate(8192);
    for (const std::size_t bytes : {std::size_t{1}, std::size_t{1} << 63, SIZE_MAX}) {
        expect_kind(ErrorKind::memory, [&] { pool.allocate(bytes); });
    }
    pool.release(a);
    const PinnedBlock c = pool.allocate(100);  // of another class: the cache makes room
    EXPECT_EQ(pool.stats().reserved_bytes, 8192u + 4096u);
    pool.release(b);
    pool.release(c);
    pool.set_limit(std::size_t{1} << 20);
    target.driver.set_faults(
        {{.call = "allocate_host", .nth = 1, .code = 2, .code_name = "CUDA_ERROR_OUT_OF_MEMORY"}});
    const PinnedBlock d = pool.allocate(16000);  // the driver has none until the cache is given back
    EXPECT_EQ(pool.stats().driver_allocations, 4u);
    pool.release(d);
    target.driver.set_faults(
        {{.call = "allocate_host", .nth = 1, .code = 700, .code_name = "CUDA_ERROR_ILLEGAL_ADDRESS"}});
    pool.trim();
    expect_code("CUDA_ERROR_ILLEGAL_ADDRESS", [&] { pool.allocate(1); });
    EXPECT_EQ(pool.stats().live_blocks, 0u);
}

TEST(Pinned, KeepsOnlySoMuch) {
    TestDevice target;
    PinnedPool& pool = PinnedPool::of(target.device);
    const std::size_t half = PinnedPool::kMostCachedBytes / 2;
    const PinnedBlock blocks[] = {pool.allocate(half), pool.allocate(half), pool.allocate(half)};
    for (const PinnedBlock& block : blocks) pool.release(block);
    EXPECT_LE(pool.stats().cached_bytes, PinnedPool::kMostCachedBytes);
    EXPECT_EQ(target.driver.host_bytes(), pool.stats().reserved_bytes);
}

// from_numpy returns when its source may be changed, though a pinned one is read late.
TEST(Pinned, ACopyFromItReturnsWhenItMayBeChanged) {
    for (const std::size_t bytes : {std::size_t{64}, kTransferBytes + 5}) {
        TestDevice target({.interleaved = true, .seed = 6});
        const transfers::Pinned source(target.device, bytes);
        const auto values = transfers::pattern(bytes);
        std::memcpy(source.data(), values.data(), bytes);
        const Array a = Array::empty(target.device, {static_cast<std::int64_t>(bytes)}, DType::uint8);
        a.copy_from_host(source.data());
        std::memset(source.data(), 0, bytes);
        std::vector<std::uint8_t> back(bytes);
        a.copy_to_host(back.data());
        EXPECT_EQ(back, values) << bytes;
    }
}

TEST(Pinned, ManyThreadsTakeAndGive) {
    TestDevice target;
    PinnedPool& pool = PinnedPool::of(target.device);
    std::vector<std::thread> threads;
    for (unsigned id = 0; id < 4; ++id) {
        threads.emplace_back([&pool, id] {
            for (unsigned i = 0; i < 500; ++i) {
                const PinnedBlock block = pool.allocate(1 + (i * 37 + id * 101) % 20000);
                const auto mark = static_cast<unsigned char>(id + 1);
                std::memset(block.data, mark, block.bytes);
                EXPECT_EQ(std::to_integer<unsigned>(block.data[block.bytes - 1]), mark);
                EXPECT_EQ(std::to_integer<unsigned>(block.data[0]), mark);
                pool.release(block);
            }
        });
    }
    for (auto& each : threads) each.join();
    EXPECT_EQ(pool.stats().live_blocks, 0u);
    pool.trim();
    EXPECT_EQ(target.driver.live_host_allocations(), 0u);
}
