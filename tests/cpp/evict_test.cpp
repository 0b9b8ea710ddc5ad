// Eviction: what leaves the device comes back as it was, at the same address, and only what may leave does.
#include <map>
#include <random>
#include <thread>

#include "array/array_transfer.hpp"
#include "evict_support.hpp"
#include "runtime/graph.hpp"

using namespace gpk;
using namespace sim;

namespace {

struct Evicting : TestDevice {
    MemoryPool& pool = MemoryPool::of(device);

    explicit Evicting(std::size_t limit_pages, SimOptions options = paged()) : TestDevice(options) {
        pool.set_limit(limit_pages * kPage);
        pool.set_eviction(true);
    }
};

std::shared_ptr<Stream> stream_of(Device& device, const char* name, QosClass qos, std::size_t limit = 0) {
    return Stream::create_for(Tenant::create({.name = name, .qos = qos, .memory_limit = limit}), device);
}

std::vector<Array> fill_with(Device& device, const std::shared_ptr<Stream>& stream, int count,
                             std::int64_t first = 0) {
    const StreamScope scope(stream);
    std::vector<Array> all;
    for (int i = 0; i < count; ++i) all.push_back(counted(device, first + 1000 * i));
    return all;
}

int away(const std::vector<Array>& all) {
    int count = 0;
    for (const Array& each : all) count += !each.storage()->on_device();
    return count;
}

}  // namespace

TEST(Evict, AnArrayComesBackAtItsNextUseWhereItWas) {
    Evicting on(0);
    const Array x = counted(on.device, 5, 40);
    const DevicePtr address = x.data();
    const std::size_t resident = on.driver.bytes_in_use();
    ASSERT_TRUE(x.storage()->evict());
    EXPECT_FALSE(x.storage()->on_device());
    EXPECT_EQ(on.pool.stats().evicted_bytes, 40 * kPage);
    EXPECT_EQ(on.pool.stats().live_bytes, 40 * kPage);
    on.pool.trim();
    EXPECT_EQ(on.driver.bytes_in_use(), resident - 40 * kPage);
    EXPECT_TRUE(holds_counted(x, 5));
    EXPECT_TRUE(x.storage()->on_device());
    EXPECT_EQ(x.data(), address);
    EXPECT_EQ(on.pool.stats().evicted_bytes, 0u);
    EXPECT_EQ(on.pool.stats().reloads, 1u);
}

TEST(Evict, IsOffUnlessAskedFor) {
    Evicting on(8);
    on.pool.set_eviction(false);
    const auto all = fill_with(on.device, on.device.default_stream(), 8);
    EXPECT_FALSE(all[0].storage()->evict());
    expect_kind(ErrorKind::memory, [&] { counted(on.device, 0); });
    EXPECT_EQ(away(all), 0);
}

TEST(Evict, TheLeastRecentlyUsedLeavesFirst) {
    Evicting on(8);
    auto all = fill_with(on.device, on.device.default_stream(), 8);
    affine(all[0], 1, 0);
    on.device.synchronize();
    const Array more = counted(on.device, 7);
    EXPECT_TRUE(all[0].storage()->on_device());
    EXPECT_FALSE(all[1].storage()->on_device());
    for (int i = 0; i < 8; ++i) EXPECT_TRUE(holds_counted(all[static_cast<std::size_t>(i)], 1000 * i)) << i;
    EXPECT_TRUE(holds_counted(more, 7));
}

TEST(Evict, BlocksOfAllSizesFitIntoWhatOthersLeft) {
    Evicting on(64);
    std::mt19937 random(3);
    std::vector<Array> all;
    for (int i = 0; i < 40; ++i) all.push_back(counted(on.device, i, 1 + random() % 30));
    EXPECT_LE(on.driver.bytes_in_use(), 64 * kPage);
    for (int i = 0; i < 40; ++i) EXPECT_TRUE(holds_counted(all[static_cast<std::size_t>(i)], i)) << i;
    EXPECT_GT(on.pool.stats().evictions, 40u);
    all.clear();
    on.pool.trim();
    EXPECT_EQ(on.driver.bytes_in_use(), 0u);
    EXPECT_EQ(on.driver.live_physical(), 0u);
    EXPECT_EQ(on.driver.live_reservations(), 0u);
    EXPECT_EQ(on.driver.live_host_allocations(), 0u);
    EXPECT_EQ(on.driver.invalid_frees(), 0u);
}

TEST(Evict, WhatAnOpUsesStaysUntilItIsQueued) {
    Evicting on(3);
    const Array a = counted(on.device, 1), b = counted(on.device, 2), c = counted(on.device, 3);
    ASSERT_TRUE(a.storage()->evict() && b.storage()->evict() && c.storage()->evict());
    const auto& stream = on.device.default_stream();
    {
        const UseScope scope;
        for (const Array* each : {&a, &b, &c}) each->storage()->before_read(stream);
        EXPECT_FALSE(a.storage()->evict());
        expect_kind(ErrorKind::memory, [&] { counted(on.device, 4); });
        for (const Array* each : {&a, &b, &c}) EXPECT_TRUE(each->storage()->on_device());
    }
    EXPECT_TRUE(a.storage()->evict());
    const Array d = counted(on.device, 4);
    for (const Array* each : {&a, &b, &c})
        EXPECT_TRUE(holds_counted(*each, each == &a ? 1 : each == &b ? 2 : 3));
}

TEST(Evict, WhatAGraphUsesAndWhatIsExposedNeverMoves) {
    Evicting on(6);
    const auto stream = Stream::create(on.device);
    const StreamScope scope(stream);
    const Array graphed = counted(on.device, 10), exposed = counted(on.device, 20);
    ASSERT_TRUE(graphed.storage()->evict());
    auto graph = Graph::capture(stream, [&] { affine(graphed, 1, 1); });
    exposed.storage()->expose(stream);
    EXPECT_FALSE(graphed.storage()->evict());
    EXPECT_FALSE(exposed.storage()->evict());
    for (int i = 0; i < 20; ++i) {
        const auto others = fill_with(on.device, stream, 6);
        EXPECT_TRUE(graphed.storage()->on_device() && exposed.storage()->on_device());
        graph->launch(stream);
    }
    EXPECT_TRUE(holds_counted(graphed, 30));
    graph = nullptr;
    EXPECT_TRUE(graphed.storage()->evict());
    EXPECT_TRUE(holds_counted(graphed, 30));
}

TEST(Evict, TheLessProtectedLeaveFirstAndTheGuaranteedForNobodyElse) {
    Evicting on(12);
    const auto guaranteed = stream_of(on.device, "g", QosClass::guaranteed);
    const auto burstable = stream_of(on.device, "b", QosClass::burstable);
    const auto best_effort = stream_of(on.device, "e", QosClass::best_effort);
    const auto e = fill_with(on.device, best_effort, 4);
    const auto b = fill_with(on.device, burstable, 4, 5);
    const auto g = fill_with(on.device, guaranteed, 4, 9);
    for (const Array& each : e) affine(each, 1, 0);  // most recently used, and gone first even so
    const auto more = fill_with(on.device, burstable, 2);
    EXPECT_GE(away(e), 2);
    EXPECT_EQ(away(b) + away(more), 0);
    const auto most = fill_with(on.device, burstable, 5);
    EXPECT_EQ(away(e), 4);
    EXPECT_EQ(away(g), 0);
    // Eight pages are the most that others can have at once beside the guaranteed four.
    expect_kind(ErrorKind::memory, [&] {
        const StreamScope scope(burstable);
        counted(on.device, 0, 9);
    });
    EXPECT_EQ(away(g), 0);
    auto own = fill_with(on.device, guaranteed, 12);  // it may move its own
    EXPECT_EQ(away(own) + away(g), 4);
    expect_kind(ErrorKind::memory, [&] { words(b[0]); });  // the guaranteed has all of it now
    own.clear();
    for (int i = 0; i < 4; ++i) EXPECT_TRUE(holds_counted(g[static_cast<std::size_t>(i)], 9 + 1000 * i));
    for (int i = 0; i < 4; ++i) EXPECT_TRUE(holds_counted(b[static_cast<std::size_t>(i)], 5 + 1000 * i));
}

TEST(Evict, AtItsOwnLimitATenantMovesItsOwn) {
    Evicting on(0);
    const auto small = stream_of(on.device, "small", QosClass::guaranteed, 4 * kPage);
    const auto other = stream_of(on.device, "other", QosClass::best_effort);
    const auto theirs = fill_with(on.device, other, 4);
    const auto mine = fill_with(on.device, small, 16);
    EXPECT_EQ(away(theirs), 0);
    EXPECT_GE(away(mine), 12);
    EXPECT_LE(small->tenant()->memory_used(), 4 * kPage);
    for (int i = 0; i < 16; ++i) EXPECT_TRUE(holds_counted(mine[static_cast<std::size_t>(i)], 1000 * i)) << i;
    EXPECT_LE(small->tenant()->memory_peak(), 4 * kPage);
    EXPECT_EQ(other->tenant()->memory_used(), 4 * kPage);
}

// What one tenant's block leaves in a page is not seen behind another's data.
TEST(Evict, PagesThatChangeTenantsAreCleanBehindTheData) {
    Evicting on(2);
    const auto one = stream_of(on.device, "one", QosClass::burstable);
    const auto two = stream_of(on.device, "two", QosClass::burstable);
    Array first, second;
    {
        const StreamScope scope(one);
        first = Array::empty(on.device, {100 * 8}, DType::int64);  // two pages, the second partly used
        const std::vector<std::int64_t> host(800, -1);
        first.copy_from_host(host.data());
    }
    {
        const StreamScope scope(two);
        second = counted(on.device, 1, 2);  // where the first was
    }
    on.device.synchronize();
    EXPECT_FALSE(first.storage()->on_device());
    EXPECT_EQ(words(first)[799], -1);
    EXPECT_FALSE(second.storage()->on_device());
    const auto* at = reinterpret_cast<const std::int64_t*>(first.data());
    for (int i = 800; i < 1024; ++i) EXPECT_EQ(at[i], 0) << i;
}

// Random programs of three streams over four times the memory there is, each seed in another order of the
// device. A missing wait is a wrong word.
TEST(Evict, RandomProgramsGiveWhatASerialRunGives) {
    for (std::uint64_t seed = 0; seed < 60; ++seed) {
        Evicting on(12, paged(seed, true));
        std::mt19937_64 random(seed);
        std::vector<std::shared_ptr<Stream>> streams;
        for (int i = 0; i < 3; ++i) streams.push_back(Stream::create(on.device));
        struct Known {
            Array array;
            std::int64_t first;  // of a page that counts up by `step`
            std::int64_t step;
        };
        std::vector<Known> all;
        for (int step = 0; step < 250; ++step) {
            const StreamScope scope(streams[random() % 3]);
            const auto any = [&]() -> Known& { return all[random() % all.size()]; };
            const std::uint64_t what = random() % 16;
            if (all.size() < 24 || (what == 0 && all.size() < 48)) {
                const auto value = static_cast<std::int64_t>(random() % 1000);
                all.push_back({counted(on.device, value, 1 + random() % 2), value, 1});
            } else if (what == 1) {
                std::swap(any(), all.back());
                all.pop_back();
            } else if (what == 2) {
                any().array.storage()->evict();
            } else if (what < 9) {
                Known& x = any();
                affine(x.array, 3, static_cast<std::int64_t>(what));
                x.first = x.first * 3 + static_cast<std::int64_t>(what);
                x.step *= 3;
            } else {
                Known &to = any(), &from = any();
                if (&to == &from || to.array.size() > from.array.size()) continue;
                mix(to.array, from.array);
                to.first = times_plus(to.first, 3, from.first);
                to.step = times_plus(to.step, 3, from.step);
            }
        }
        for (const Known& each : all) {
            const auto host = words(each.array);
            int wrong = 0;
            for (std::size_t i = 0; i < host.size(); ++i) {
                wrong += host[i] != times_plus(each.step, static_cast<std::int64_t>(i), each.first);
            }
            ASSERT_EQ(wrong, 0) << "seed " << seed;
        }
        EXPECT_GT(on.pool.stats().evictions, 20u);
        EXPECT_LE(on.pool.stats().reserved_bytes, 12 * kPage);
        all.clear();
        on.pool.trim();
        EXPECT_EQ(on.driver.bytes_in_use(), 0u) << "seed " << seed;
    }
}

TEST(Evict, TenThousandCyclesLeaveNothingBehind) {
    Evicting on(4);
    const auto all = fill_with(on.device, on.device.default_stream(), 8);
    on.device.synchronize();
    std::size_t bytes = 0, host_bytes = 0;
    for (int i = 0; i < 10'000; ++i) {
        affine(all[static_cast<std::size_t>(i % 8)], 1, 1);
        if (i == 100) {
            bytes = on.driver.bytes_in_use();
            host_bytes = on.driver.host_bytes();
        }
    }
    on.device.synchronize();
    EXPECT_GT(on.pool.stats().reloads, 9'000u);
    EXPECT_EQ(on.driver.bytes_in_use(), bytes);
    EXPECT_EQ(on.driver.host_bytes(), host_bytes);
    for (int i = 0; i < 8; ++i) EXPECT_TRUE(holds_counted(all[static_cast<std::size_t>(i)], 1000 * i + 1250));
}

// Copies of this size go through the transfer engine, whose work is queued later and by other threads.
TEST(Evict, TransfersKeepWhatTheyCopy) {
    constexpr std::int64_t kPages = 2 * kTransferBytes / kPage;
    for (const bool interleaved : {false, true}) {
        Evicting on(4 * kPages, paged(5, interleaved));
        const auto all = [&] {
            std::vector<Array> made;
            for (int i = 0; i < 10; ++i) made.push_back(counted(on.device, 1000 * i, kPages));
            return made;
        }();
        for (int round = 0; round < 2; ++round) {
            for (int i = 0; i < 10; ++i) {
                EXPECT_TRUE(holds_counted(all[static_cast<std::size_t>(i)], 1000 * i)) << i;
            }
        }
        EXPECT_GT(on.pool.stats().reloads, 10u);
        std::vector<std::int64_t> host(static_cast<std::size_t>(all[0].size()), 3);
        std::vector<std::shared_ptr<Transfer>> under_way;
        for (int i = 0; i < 3; ++i) {
            under_way.push_back(transfer_to_device(all[static_cast<std::size_t>(i)], host.data(), {}));
        }
        for (int i = 4; i < 8; ++i) affine(all[static_cast<std::size_t>(i)], 1, 1);
        for (const auto& each : under_way) each->get();
        for (int i = 0; i < 3; ++i) EXPECT_EQ(words(all[static_cast<std::size_t>(i)]), host);
        for (int i = 4; i < 8; ++i) {
            EXPECT_TRUE(holds_counted(all[static_cast<std::size_t>(i)], 1000 * i + 1)) << i;
        }
    }
}

TEST(Evict, ThreadsShareAPoolThatIsTooSmall) {
    Evicting on(24);
    std::vector<std::thread> threads;
    std::atomic<int> wrong{0};
    for (int t = 0; t < 4; ++t) {
        threads.emplace_back([&, t] {
            std::mt19937 random(static_cast<unsigned>(t));
            const auto stream = Stream::create(on.device);
            auto mine = fill_with(on.device, stream, 12, t);
            const StreamScope scope(stream);
            std::vector<std::int64_t> terms(12);
            for (int i = 0; i < 300; ++i) {
                const std::size_t k = random() % 12;
                if (i % 50 == 49) mine[k].storage()->evict();
                if (i % 40 == 39) {
                    mine[k] = counted(on.device, t + 1000 * static_cast<std::int64_t>(k));
                    terms[k] = 0;
                }
                affine(mine[k], 1, 1);
                ++terms[k];
            }
            for (std::size_t k = 0; k < 12; ++k) {
                wrong += !holds_counted(mine[k], t + 1000 * static_cast<std::int64_t>(k) + terms[k]);
            }
        });
    }
    for (auto& thread : threads) thread.join();
    EXPECT_EQ(wrong, 0);
}
