// Ops whose room ops of other threads hold wait for it. No op fails that would fit alone, and none waits for
// ever.
#include <barrier>
#include <random>
#include <thread>

#include "memory/room_turn.hpp"
#include "spill_support.hpp"

using namespace gpk;
using namespace sim;

namespace {

constexpr int kThreads = 8;

template <class Work>
void in_threads(int count, Work&& work) {
    std::vector<std::thread> threads;
    for (int t = 0; t < count; ++t) threads.emplace_back(work, t);
    for (auto& each : threads) each.join();
}

// to += each of `from`, all held at once.
void add_all(const Array& to, const std::vector<const Array*>& from) {
    const auto& stream = current_stream(to.device());
    const UseScope scope;
    for (const Array* each : from) {
        each->storage()->before_read(stream);
        std::this_thread::yield();  // let others hold something, too
    }
    to.storage()->before_write(stream);
    std::this_thread::yield();
    for (const Array* each : from) {
        to.device().launcher().launch(*stream, mix_kernel, {},
                                      MixParams{to.as<std::int64_t>(), each->as<std::int64_t>(), to.size()},
                                      {});
    }
}

struct Known {
    Array array;
    std::int64_t first = 0, step = 1;
};

// Random ops of up to four blocks each, by threads whose blocks together are four times the device.
void stress(Device& device, int ops, int blocks, std::atomic<int>& wrong, std::atomic<int>& failed) {
    std::barrier together(kThreads);
    in_threads(kThreads, [&](int t) {
        std::mt19937 random(static_cast<unsigned>(t));
        const auto stream = Stream::create(device);
        const StreamScope scope(stream);
        std::vector<Known> mine(static_cast<std::size_t>(blocks));
        for (std::size_t k = 0; k < mine.size(); ++k) {
            const auto value = static_cast<std::int64_t>(1000 * k) + t;
            mine[k] = {counted(device, value), value};
        }
        together.arrive_and_wait();
        try {
            for (int i = 0; i < ops; ++i) {
                Known& to = mine[random() % mine.size()];
                if (i % 16 == 15) {
                    to = {counted(device, i), i};
                    continue;
                }
                std::vector<const Array*> from;
                std::vector<const Known*> known;
                for (unsigned n = random() % 4; from.size() < n;) {
                    const Known& each = mine[random() % mine.size()];
                    if (&each == &to) continue;
                    from.push_back(&each.array);
                    known.push_back(&each);
                }
                add_all(to.array, from);
                for (const Known* each : known) {
                    to.first = times_plus(to.first, 3, each->first);
                    to.step = times_plus(to.step, 3, each->step);
                }
            }
        } catch (const Error& failure) {
            ++failed;
            ADD_FAILURE() << failure.what();
        }
        together.arrive_and_wait();  // all of them want theirs until then
        for (const Known& each : mine) {
            if (each.array.storage() == nullptr) continue;
            const auto host = words(each.array);
            for (std::size_t i = 0; i < host.size(); ++i) {
                wrong += host[i] != times_plus(each.step, static_cast<std::int64_t>(i), each.first);
            }
        }
    });
}

}  // namespace

// Eight threads of ops that hold up to four blocks each want 32 at once; there are 16, for 64 that live.
TEST(Room, EightThreadsOverFourTimesTheDeviceNeverRunOutOfMemory) {
    for (const bool interleaved : {false, true}) {
        TestDevice on(paged(1, interleaved));
        MemoryPool& pool = MemoryPool::of(on.device);
        pool.set_limit(16 * kPage);
        pool.set_eviction(true);
        std::atomic<int> wrong{0}, failed{0};
        stress(on.device, interleaved ? 150 : 600, 8, wrong, failed);
        EXPECT_EQ(wrong, 0);
        EXPECT_EQ(failed, 0);
        EXPECT_GE(pool.stats().evictions, 48u);
        pool.trim();
        EXPECT_EQ(pool.stats().live_blocks, 0u);
        EXPECT_EQ(on.driver.bytes_in_use(), 0u);
    }
}

TEST(Room, SoDoThreadsWithADisk) {
    Spilling on(16, 6, 256);
    std::atomic<int> wrong{0}, failed{0};
    stress(on.device, 150, 8, wrong, failed);
    EXPECT_EQ(wrong, 0);
    EXPECT_EQ(failed, 0);
    EXPECT_GT(on.file->writes, 50);
}

// Each has half of what both need, and neither gives way by itself.
TEST(Room, TwoOpsThatHoldWhatTheOtherNeedsBothEnd) {
    TestDevice on(paged());
    MemoryPool& pool = MemoryPool::of(on.device);
    pool.set_limit(4 * kPage);
    pool.set_eviction(true);
    std::vector<Array> all;
    for (int i = 0; i < 8; ++i) all.push_back(counted(on.device, 1000 * i));
    for (int round = 0; round < 50; ++round) {
        std::barrier half(2);
        in_threads(2, [&](int t) {
            const auto stream = Stream::create(on.device);
            const StreamScope scope(stream);
            const auto first = static_cast<std::size_t>(4 * t);
            const UseScope uses;
            for (std::size_t i = first; i < first + 2; ++i) all[i].storage()->before_write(stream);
            half.arrive_and_wait();  // all four pages are held now
            for (std::size_t i = first + 2; i < first + 4; ++i) all[i].storage()->before_write(stream);
            for (std::size_t i = first; i < first + 4; ++i) {
                on.device.launcher().launch(*stream, affine_kernel, {},
                                            AffineParams{all[i].as<std::int64_t>(), 1, 1, all[i].size()}, {});
            }
        });
    }
    for (int i = 0; i < 8; ++i) EXPECT_TRUE(holds_counted(all[static_cast<std::size_t>(i)], 1000 * i + 50));
}

TEST(Room, WhatNeverFitsFailsWhileOthersHoldBlocks) {
    TestDevice on(paged());
    MemoryPool& pool = MemoryPool::of(on.device);
    pool.set_limit(4 * kPage);
    pool.set_eviction(true);
    const Array other = counted(on.device, 1);
    std::atomic<bool> held{false}, end{false};
    std::thread holder([&] {
        const UseScope uses;
        other.storage()->before_read(on.device.default_stream());
        held = true;
        while (!end) std::this_thread::yield();
    });
    while (!held) std::this_thread::yield();
    expect_kind(ErrorKind::memory, [&] { counted(on.device, 0, 5); });
    expect_kind(ErrorKind::memory,
                [&] { MemoryPool::of(on.device).allocate(~std::size_t{0}, on.device.default_stream()); });
    std::vector<Array> mine;
    for (int i = 0; i < 3; ++i) mine.push_back(counted(on.device, i));
    {
        const UseScope uses;
        for (int i = 0; i < 3; ++i) {
            mine[static_cast<std::size_t>(i)].storage()->before_read(on.device.default_stream());
        }
        expect_kind(ErrorKind::memory, [&] { counted(on.device, 0, 2); });
    }
    end = true;
    holder.join();
}

// One who waits gets its room when the other lets go.
TEST(Room, AnAllocationWaitsForAnOpOfAnotherThread) {
    TestDevice on(paged());
    MemoryPool& pool = MemoryPool::of(on.device);
    pool.set_limit(2 * kPage);
    pool.set_eviction(true);
    const Array one = counted(on.device, 1), two = counted(on.device, 2);
    std::atomic<bool> held{false};
    std::thread holder([&] {
        const auto stream = Stream::create(on.device);
        const UseScope uses;
        one.storage()->before_read(stream);
        two.storage()->before_read(stream);
        held = true;
        while (!RoomTurn::is_anothers()) std::this_thread::yield();
    });
    while (!held) std::this_thread::yield();
    const Array three = counted(on.device, 3);
    holder.join();
    EXPECT_FALSE(RoomTurn::is_anothers());
    for (const Array* each : {&one, &two, &three}) {
        EXPECT_TRUE(holds_counted(*each, each == &one ? 1 : each == &two ? 2 : 3));
    }
}

// A tenant at its own limit waits for its own threads alone.
TEST(Room, ATenantAtItsLimitWaitsForItsOtherThreads) {
    TestDevice on(paged());
    MemoryPool& pool = MemoryPool::of(on.device);
    pool.set_eviction(true);
    const auto tenant = Tenant::create({.name = "small", .memory_limit = 6 * kPage});
    std::atomic<int> failed{0}, wrong{0};
    in_threads(4, [&](int t) {
        const auto stream = Stream::create_for(tenant, on.device);
        const StreamScope scope(stream);
        try {
            std::vector<Array> mine;
            for (int i = 0; i < 6; ++i) mine.push_back(counted(on.device, 100 * t + i));
            for (int i = 0; i < 100; ++i)
                mix(mine[static_cast<std::size_t>(i % 6)], mine[static_cast<std::size_t>((i + 1) % 6)]);
            std::vector<std::int64_t> first;
            for (int i = 0; i < 6; ++i) first.push_back(100 * t + i);
            for (std::size_t i = 0; i < 100; ++i)
                first[i % 6] = times_plus(first[i % 6], 3, first[(i + 1) % 6]);
            for (std::size_t i = 0; i < 6; ++i) wrong += words(mine[i])[0] != first[i];
        } catch (const Error& failure) {
            ++failed;
            ADD_FAILURE() << failure.what();
        }
    });
    EXPECT_EQ(failed, 0);
    EXPECT_EQ(wrong, 0);
    EXPECT_LE(tenant->memory_peak(), 6 * kPage);
}

// What a tenant had is gone, and with it all that could be evicted, between its being full and the search for
// what may leave.
TEST(Room, AnAllocationHasTheRoomThatIsFreedWhileItAsks) {
    TestDevice on(paged());
    MemoryPool& pool = MemoryPool::of(on.device);
    pool.set_eviction(true);
    const auto tenant = Tenant::create({.name = "small", .memory_limit = 2 * kPage});
    std::barrier together(2);
    std::atomic<int> failed{0};
    in_threads(2, [&](int t) {
        const auto stream = Stream::create_for(tenant, on.device);
        const StreamScope scope(stream);
        for (int round = 0; round < 3000; ++round) {
            std::vector<Array> mine;
            if (t == 0) mine = {counted(on.device, 1), counted(on.device, 2)};
            stream->synchronize();
            together.arrive_and_wait();
            if (t == 0) {
                mine.clear();
            } else {
                try {
                    const Array one = counted(on.device, round);
                } catch (const NoRoomError& failure) {
                    ++failed;
                }
            }
            together.arrive_and_wait();
        }
    });
    EXPECT_EQ(failed, 0);
    EXPECT_EQ(tenant->memory_used(), 0u);
}
