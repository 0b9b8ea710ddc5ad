// MemoryPool and tenants: charges, limits, what one may see of another's data; and long random programs
// against a plain model.
#include <cstring>
#include <map>
#include <random>
#include <set>

#include "memory/pool.hpp"
#include "runtime/tenant.hpp"
#include "sim_support.hpp"
#include "support.hpp"

using namespace gpk;
using namespace sim;

namespace {

struct Party {
    std::shared_ptr<Tenant> tenant;
    std::shared_ptr<Stream> stream;

    Party(Device& device, const char* name, std::size_t limit = 0, std::shared_ptr<Tenant> parent = nullptr)
        : tenant(Tenant::create({.name = name, .memory_limit = limit}, std::move(parent))),
          stream(Stream::create_for(tenant, device)) {}
};

int bytes_not(std::uint8_t value, DevicePtr pointer, std::size_t bytes) {
    const auto* at = reinterpret_cast<const std::uint8_t*>(pointer);
    int wrong = 0;
    for (std::size_t i = 0; i < bytes; ++i) wrong += at[i] != value;
    return wrong;
}

}  // namespace

TEST(PoolTenant, IsChargedForWhatItHolds) {
    Device& device = test_device();
    MemoryPool pool(device);
    const Party outer(device, "outer"), inner(device, "inner", 0, outer.tenant);
    Block a = pool.allocate(1000, inner.stream), b = pool.allocate(10, outer.stream);
    EXPECT_EQ(inner.tenant->memory_used(), 1024u);
    EXPECT_EQ(outer.tenant->memory_used(), 1280u);
    pool.release(std::move(a), {outer.stream});
    EXPECT_EQ(inner.tenant->memory_used(), 0u);
    EXPECT_EQ(outer.tenant->memory_used(), 256u);
    pool.release(std::move(b));
    EXPECT_EQ(outer.tenant->memory_used(), 0u);
    EXPECT_EQ(outer.tenant->memory_peak(), 1280u);
}

TEST(PoolTenant, OverItsLimitTheErrorNamesItAndWhatItHolds) {
    Device& device = test_device();
    MemoryPool pool(device);
    const Party outer(device, "outer", 4096), inner(device, "inner", 0, outer.tenant), other(device, "other");
    Block elsewhere = pool.allocate(7000, other.stream);
    Block a = pool.allocate(2000, inner.stream), b = pool.allocate(700, outer.stream);
    try {
        pool.allocate(2048, inner.stream);
        FAIL() << "the limit was passed";
    } catch (const Error& failure) {
        EXPECT_EQ(failure.kind(), ErrorKind::memory);
        const std::string message = failure.what();
        EXPECT_NE(message.find("'outer' with 2816 of its 4096 bytes"), std::string::npos) << message;
        EXPECT_NE(message.find("2000 ('inner'), 700 ('outer')"), std::string::npos) << message;
        EXPECT_EQ(message.find("'other'"), std::string::npos) << message;
    }
    EXPECT_EQ(inner.tenant->memory_used(), 2048u);
    EXPECT_EQ(outer.tenant->memory_used(), 2816u);
    pool.release(std::move(b));
    Block c = pool.allocate(2048, inner.stream);
    pool.release(std::move(a));
    pool.release(std::move(c));
    pool.release(std::move(elsewhere));
    EXPECT_EQ(outer.tenant->memory_used(), 0u);
}

TEST(PoolTenant, HostileSizesAreMemoryErrorsAndChargeNothing) {
    Device& device = test_device();
    MemoryPool pool(device);
    const Party party(device, "party");
    for (const std::size_t bytes :
         {~std::size_t{0}, std::size_t{1} << 63, (std::size_t{1} << 60) + 1, std::size_t{1} << 59}) {
        expect_kind(ErrorKind::memory, [&] { pool.allocate(bytes, party.stream); });
        expect_kind(ErrorKind::memory, [&] { pool.allocate(bytes, device.default_stream()); });
    }
    EXPECT_EQ(party.tenant->memory_used(), 0u);
    EXPECT_EQ(pool.stats().reserved_bytes, 0u);
}

// Each way in which a tenant can come to another's memory.
TEST(PoolTenant, SeesNothingOfAnothersData) {
    for (const bool through_driver : {false, true}) {
        for (const bool to_nobody : {false, true}) {
            TestDevice target;
            MemoryPool& pool = MemoryPool::of(target.device);
            const Party one(target.device, "one"), two(target.device, "two");
            const auto& next = to_nobody ? target.device.default_stream() : two.stream;
            Block block = pool.allocate(5000, one.stream);
            target.device.launcher().fill(*one.stream, block.pointer, 7, block.class_bytes);
            pool.release(std::move(block));
            if (through_driver) pool.trim();
            block = pool.allocate(4900, next);
            target.device.synchronize();
            EXPECT_EQ(bytes_not(0, block.pointer, block.class_bytes), 0);
            pool.release(std::move(block));
        }
    }
}

TEST(PoolTenant, OneTenantsOwnMemoryIsNotFilled) {
    TestDevice target;
    MemoryPool& pool = MemoryPool::of(target.device);
    const Party one(target.device, "one");
    const auto second = Stream::create_for(one.tenant, target.device);
    target.driver.set_faults({});
    for (const auto& stream : {one.stream, second, one.stream}) pool.release(pool.allocate(5000, stream));
    pool.trim();
    pool.release(pool.allocate(5000, second));
    EXPECT_EQ(target.driver.call_counts().at("fill"), 0);
    pool.release(pool.allocate(5000, target.device.default_stream()));
    EXPECT_EQ(target.driver.call_counts().at("fill"), 1);
}

TEST(PoolTenant, ACaptureGetsNothingOfAnothersDataAndNoFillInItsGraph) {
    TestDevice target;
    MemoryPool& pool = MemoryPool::of(target.device);
    const Party one(target.device, "one");
    Block block = pool.allocate(5000, one.stream);
    target.device.launcher().fill(*one.stream, block.pointer, 7, block.class_bytes);
    pool.release(std::move(block));
    pool.trim();
    const auto& stream = target.device.default_stream();
    const auto graph = Graph::capture(stream, [&] { block = pool.allocate(5000, stream); });
    EXPECT_EQ(graph->node_count(), 0u);
    EXPECT_EQ(bytes_not(0, block.pointer, block.class_bytes), 0);
    pool.release(std::move(block));
}

TEST(PoolTenant, AFailedFillLeavesTheBlockInThePool) {
    TestDevice target;
    MemoryPool& pool = MemoryPool::of(target.device);
    const Party one(target.device, "one"), two(target.device, "two");
    Block block = pool.allocate(5000, one.stream);
    target.device.launcher().fill(*one.stream, block.pointer, 7, block.class_bytes);
    pool.release(std::move(block));
    target.driver.set_faults({{.call = "fill", .code = 700, .code_name = "CUDA_ERROR_ILLEGAL_ADDRESS"}});
    EXPECT_THROW(pool.allocate(5000, two.stream), DriverError);
    EXPECT_EQ(two.tenant->memory_used(), 0u);
    EXPECT_EQ(pool.stats().cached_bytes, 5120u);
    block = pool.allocate(5000, two.stream);  // the same block, on its new stream and still not filled
    target.device.synchronize();
    EXPECT_EQ(bytes_not(0, block.pointer, block.class_bytes), 0);
    pool.release(std::move(block));
}

// A million operations of four streams of three owners. No two live blocks overlap, the counts are those of
// the model, and the memory goes back.
TEST(PoolTenant, AMillionOperationsAgreeWithAModel) {
    TestDevice target({.memory_bytes = std::size_t{24} << 20});
    MemoryPool& pool = MemoryPool::of(target.device);
    const Party one(target.device, "one", std::size_t{4} << 20), two(target.device, "two");
    const std::shared_ptr<Stream> streams[] = {target.device.default_stream(), one.stream, two.stream,
                                               Stream::create_for(two.tenant, target.device)};
    std::mt19937_64 random(7);
    std::vector<Block> held;
    std::map<DevicePtr, std::size_t> live;
    std::size_t live_bytes = 0, charged[2] = {};
    std::uint64_t allocations = 0, refused = 0;
    for (int step = 0; step < 1'000'000; ++step) {
        if (held.empty() || (held.size() < 400 && random() % 2 == 0)) {
            const auto& stream = streams[random() % 4];
            const std::size_t bytes = 1 + random() % (std::size_t{1} << (4 + random() % 17));
            try {
                Block block = pool.allocate(bytes, stream);
                const auto next = live.lower_bound(block.pointer);
                ASSERT_TRUE(next == live.end() || block.pointer + block.class_bytes <= next->first) << step;
                ASSERT_TRUE(next == live.begin() ||
                            std::prev(next)->first + std::prev(next)->second <= block.pointer)
                    << step;
                live.emplace(block.pointer, block.class_bytes);
                live_bytes += bytes;
                if (stream == streams[1]) charged[0] += block.class_bytes;
                if (stream == streams[2] || stream == streams[3]) charged[1] += block.class_bytes;
                held.push_back(std::move(block));
                ++allocations;
            } catch (const Error& failure) {
                ASSERT_EQ(failure.kind(), ErrorKind::memory);
                ++refused;
            }
        } else {
            std::swap(held[random() % held.size()], held.back());
            Block block = std::move(held.back());
            held.pop_back();
            live.erase(block.pointer);
            live_bytes -= block.bytes;
            const Tenant* of = block.stream()->tenant().get();
            if (of == one.tenant.get()) charged[0] -= block.class_bytes;
            if (of == two.tenant.get()) charged[1] -= block.class_bytes;
            pool.release(std::move(block), {streams[random() % 4]});
        }
        if (step % 1000 == 999) {
            const PoolStats stats = pool.stats();
            ASSERT_EQ(stats.live_bytes, live_bytes) << step;
            ASSERT_EQ(stats.live_blocks, held.size()) << step;
            ASSERT_EQ(stats.allocations, allocations) << step;
            ASSERT_EQ(one.tenant->memory_used(), charged[0]) << step;
            ASSERT_EQ(two.tenant->memory_used(), charged[1]) << step;
            ASSERT_LE(charged[0], one.tenant->memory_limit()) << step;
            ASSERT_EQ(stats.reserved_bytes, target.driver.bytes_in_use()) << step;
            if (step % 50'000 == 49'999) pool.trim();
        }
    }
    EXPECT_GT(refused, 100u);
    while (!held.empty()) {
        pool.release(std::move(held.back()));
        held.pop_back();
    }
    EXPECT_EQ(pool.stats().cached_bytes, pool.stats().reserved_bytes);
    pool.trim();
    EXPECT_EQ(target.driver.bytes_in_use(), 0u);
    EXPECT_EQ(one.tenant->memory_used() + two.tenant->memory_used(), 0u);
}
