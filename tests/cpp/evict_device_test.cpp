// Eviction on the suite's device, simulated or not: a tenant whose quota is half of what it holds.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "array/array.hpp"
#include "memory/pool.hpp"
#include "runtime/stream.hpp"
#include "runtime/tenant.hpp"
#include "support.hpp"

using namespace gpk;

TEST(EvictOnDevice, AWorkingSetOfTwiceTheQuotaKeepsItsBytesAndAddresses) {
    constexpr std::size_t kFits = 4, kArrays = 8;
    Device& device = test_device();
    MemoryPool& pool = MemoryPool::of(device);
    const std::size_t granule = device.info().physical_granularity;
    if (granule == 0) GTEST_SKIP() << "the driver has no virtual memory calls";
    const auto tenant = Tenant::create({.name = "quota", .memory_limit = kFits * granule});
    pool.set_eviction(*tenant, true);
    const PoolStats before = pool.stats();
    {
        const std::shared_ptr<Stream> streams[] = {Stream::create_for(tenant, device),
                                                   Stream::create_for(tenant, device)};
        Array all[kArrays];
        std::uint8_t holds[kArrays] = {};
        DevicePtr addresses[kArrays] = {};
        const auto set = [&](std::size_t i, std::uint8_t value) {
            const auto& stream = current_stream(device);
            const UseScope scope;
            all[i].storage()->before_write(stream);
            device.launcher().fill(*stream, all[i].data(), value, all[i].nbytes());
            holds[i] = value;
        };
        const auto check = [&](std::size_t i) {
            std::vector<std::uint8_t> host(granule);
            all[i].copy_to_host(host.data());
            EXPECT_EQ(std::count(host.begin(), host.end(), holds[i]), static_cast<std::ptrdiff_t>(granule))
                << i;
            EXPECT_EQ(all[i].data(), addresses[i]);
            EXPECT_TRUE(all[i].storage()->on_device());
        };
        for (std::size_t i = 0; i < kArrays; ++i) {
            const StreamScope scope(streams[i % 2]);
            all[i] = Array::empty(device, {static_cast<std::int64_t>(granule)}, DType::uint8);
            addresses[i] = all[i].data();
            set(i, static_cast<std::uint8_t>(i + 1));
            EXPECT_LE(tenant->memory_used(), kFits * granule);
        }
        std::mt19937 random(5);
        for (int step = 0; step < 120; ++step) {
            const StreamScope scope(streams[random() % 2]);
            // Cyclic, then at random.
            const std::size_t i = step < 40 ? static_cast<std::size_t>(step) % kArrays : random() % kArrays;
            switch (random() % 4) {
                case 0: check(i); break;
                case 1: all[i].storage()->evict(); break;
                default: set(i, static_cast<std::uint8_t>(random())); break;
            }
            ASSERT_LE(tenant->memory_used(), kFits * granule) << step;
        }
        const StreamScope scope(streams[0]);
        for (std::size_t i = 0; i < kArrays; ++i) check(i);
        EXPECT_LE(tenant->memory_peak(), kFits * granule);
    }
    const PoolStats after = pool.stats();
    EXPECT_GT(after.evictions, before.evictions + 20);
    EXPECT_GT(after.reloads, before.reloads + 20);
    EXPECT_EQ(tenant->memory_used(), 0u);
    EXPECT_EQ(after.evicted_bytes, before.evicted_bytes);
    EXPECT_EQ(after.live_blocks, before.live_blocks);
    pool.set_eviction(*tenant, false);
}
