// Transfers: their values, order, states and callbacks.
#include <algorithm>
#include <chrono>
#include <random>
#include <thread>
#include <tuple>

#include "runtime/graph.hpp"
#include "runtime/kernel.hpp"
#include "runtime/meter.hpp"
#include "runtime/observe.hpp"
#include "runtime/tenant.hpp"
#include "support.hpp"
#include "transfer_support.hpp"

using namespace gpk;
using namespace sim;
using namespace transfers;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t kSizes[] = {0,          1,          3,          kChunk - 1,     kChunk,
                                  kChunk + 1, 3 * kChunk, 4 * kChunk, 4 * kChunk + 7, 11 * kChunk + 5,
                                  64 * kChunk};

// A device whose transfers go in small chunks.
struct SmallChunks : TestDevice {
    explicit SmallChunks(SimOptions options = {}, TransferOptions transfers = kSmall) : TestDevice(options) {
        TransferEngine::of(device).configure(transfers);
    }
};

void round_trip(Device& device, std::size_t bytes, bool pinned_source, bool pinned_target) {
    const auto source = pattern(bytes);
    const Pinned from(device, bytes), to(device, bytes);
    std::vector<std::uint8_t> pageable(bytes, 0);
    if (bytes > 0) {
        std::memcpy(from.data(), source.data(), bytes);
        std::memset(to.data(), 0, bytes);
    }
    const Array a = bytes_on(device, bytes), b = bytes_on(device, bytes);
    const void* const source_data = pinned_source ? static_cast<const void*>(from.data()) : source.data();
    const auto up = transfer_to_device(a, bytes > 0 ? source_data : "");
    const auto across = transfer_on_device(a, b);
    void* const target = pinned_target ? static_cast<void*>(to.data()) : pageable.data();
    char nothing = 0;
    const auto down = transfer_to_host(b, bytes > 0 ? target : &nothing);
    for (const auto& each : {up, across, down}) {
        each->get();
        EXPECT_EQ(each->state(), TransferState::completed) << bytes;
        EXPECT_EQ(each->bytes_done(), bytes);
    }
    if (bytes > 0) {
        EXPECT_EQ(std::memcmp(target, source.data(), bytes), 0) << bytes;
    }
}

}  // namespace

TEST(Transfer, KeepsEveryByteOfEverySize) {
    for (const bool interleaved : {false, true}) {
        SmallChunks target({.interleaved = interleaved, .seed = 3});
        for (const std::size_t bytes : kSizes) {
            for (const int pinned : {0, 1, 2, 3}) round_trip(target.device, bytes, pinned & 1, pinned & 2);
        }
        const TransferStats stats = TransferEngine::of(target.device).stats();
        EXPECT_EQ(stats.directions[0].completed, 4 * std::size(kSizes));
        EXPECT_EQ(stats.directions[1].completed, 4 * std::size(kSizes));
        EXPECT_EQ(stats.directions[2].completed, 4 * std::size(kSizes));
        EXPECT_EQ(stats.directions[0].staged_bytes * 2, stats.directions[0].bytes);
        EXPECT_EQ(stats.queued + stats.in_progress, 0u);
    }
}

TEST(Transfer, WorksWithTheChunksOfEveryDay) {
    for (const std::size_t bytes : {std::size_t{100}, (std::size_t{40} << 20) + 13}) {
        round_trip(test_device(), bytes, false, false);
        round_trip(test_device(), bytes, true, true);
    }
}

TEST(Transfer, LargeArraysAreCopiedThroughIt) {
    TestDevice target;
    const std::size_t bytes = kTransferBytes + 1;
    const auto source = pattern(bytes);
    std::vector<std::uint8_t> back(bytes);
    const Array a = Array::empty(target.device, {static_cast<std::int64_t>(bytes)}, DType::uint8);
    a.copy_from_host(source.data());
    a.copy_to_host(back.data());
    EXPECT_EQ(back, source);
    const Array small = Array::empty(target.device, {4}, DType::uint8);
    small.copy_from_host(source.data());
    const TransferStats stats = TransferEngine::of(target.device).stats();
    EXPECT_EQ(stats.directions[0].bytes, bytes);
    EXPECT_EQ(stats.directions[1].bytes, bytes);
}

// -- Order ---------------------------------------------------------------------------------------------

TEST(Transfer, FollowsEarlierWorkAndPrecedesLater) {
    static const Kernel affine{kAffine};
    constexpr std::int64_t kCount = 3000;
    for (std::uint64_t seed = 1; seed <= 40; ++seed) {
        SmallChunks target({.interleaved = true, .seed = seed});
        const auto one = Stream::create(target.device), two = Stream::create(target.device);
        const auto scale = [&](const Array& a, const std::shared_ptr<Stream>& stream, std::int64_t factor,
                               std::int64_t term) {
            a.storage()->before_write(stream);
            target.device.launcher().launch(*stream, affine, {},
                                            AffineParams{a.as<std::int64_t>(), factor, term, kCount}, {});
        };
        const std::vector<std::int64_t> threes(kCount, 3), tens(kCount, 10);
        std::vector<std::int64_t> first(kCount), second(kCount);
        const Array a = Array::empty(target.device, {kCount}, DType::int64);
        transfer_to_device(a, threes.data(), {.keep = {}});
        scale(a, one, 2, 1);  // 7
        const auto read = transfer_to_host(a, first.data(), {.priority = seed % 2 == 0 ? -1 : 0});
        scale(a, two, 3, 0);  // 21, not before it was read
        const auto write = transfer_to_device(a, tens.data(), {.priority = seed % 3 == 0 ? -1 : 1});
        scale(a, one, 5, 2);  // 52
        const auto last = transfer_to_host(a, second.data());
        for (const auto& each : {read, write, last}) each->get();
        EXPECT_EQ(first, std::vector<std::int64_t>(kCount, 7)) << seed;
        EXPECT_EQ(second, std::vector<std::int64_t>(kCount, 52)) << seed;
    }
}

TEST(Transfer, WhatFollowsACancelledOneStillWaitsForWhatThatFollowed) {
    static const Kernel affine{kAffine};
    constexpr std::int64_t kCount = 600;
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
        SmallChunks target({.interleaved = true, .seed = seed});
        const auto one = Stream::create(target.device), two = Stream::create(target.device);
        const Array a = Array::empty(target.device, {kCount}, DType::int64);
        const std::vector<std::int64_t> threes(kCount, 3);
        transfer_to_device(a, threes.data())->get();
        // Stopped in the hook, so that what comes behind it stays queued.
        const Array other = bytes_on(target.device, 10);
        const auto hook =
            watch(target.device, [](const Watch::Copy& copy, std::size_t) { return copy.bytes == 10; });
        const auto block = transfer_to_device(other, "0123456789");
        hook->wait_stopped(1);
        for (int i = 0; i < 5; ++i) {
            a.storage()->before_write(one);
            target.device.launcher().launch(*one, affine, {},
                                            AffineParams{a.as<std::int64_t>(), 2, 1, kCount}, {});
        }
        const auto lost = transfer_to_device(a, threes.data());
        EXPECT_EQ(lost->state(), TransferState::queued);
        EXPECT_TRUE(lost->cancel());
        EXPECT_EQ(lost->state(), TransferState::cancelled);
        a.storage()->before_write(two);
        target.device.launcher().launch(*two, affine, {}, AffineParams{a.as<std::int64_t>(), 10, 0, kCount},
                                        {});
        hook->let_go(1);
        std::vector<std::int64_t> result(kCount);
        transfer_to_host(a, result.data())->get();
        EXPECT_EQ(result, std::vector<std::int64_t>(kCount, 1270)) << seed;  // ((3*2+1)*2+1 ...) * 10
        block->get();
        target.device.launcher().remove_hook(hook.get());
    }
}

TEST(Transfer, TheMostUrgentChunkGoesNext) {
    for (const bool pinned : {true, false}) {
        SmallChunks target;
        const std::size_t bulk_bytes = 9 * kChunk;
        const auto source = pattern(bulk_bytes);
        const Pinned held(target.device, bulk_bytes);
        std::memcpy(held.data(), source.data(), bulk_bytes);
        const void* const from = pinned ? static_cast<const void*>(held.data()) : source.data();
        const Array bulk_array = bytes_on(target.device, bulk_bytes);
        const Array normal_array = bytes_on(target.device, 1000);
        const auto hook =
            watch(target.device, [](const Watch::Copy&, std::size_t index) { return index == 1; });
        const auto bulk = transfer_to_device(bulk_array, from, {.priority = 5});
        hook->wait_stopped(1);
        const auto later = transfer_to_device(bytes_on(target.device, 900), from, {.priority = 9});
        const auto normal = transfer_to_device(normal_array, from, {.priority = 0});
        EXPECT_EQ(bulk->state(), TransferState::in_progress);
        EXPECT_EQ(normal->state(), TransferState::queued);
        hook->let_go(1);
        for (const auto& each : {bulk, normal, later}) each->get();
        const auto copies = hook->copies();
        ASSERT_EQ(copies.size(), 11u);
        EXPECT_EQ(copies[2].bytes, 1000u) << pinned;
        if (pinned) {
            EXPECT_EQ(copies[10].bytes, 900u);  // else it may be filled while a more urgent chunk is not
        }
        target.device.launcher().remove_hook(hook.get());
    }
}

// In the interleaved mode, where a bulk copy's chunks really queue.
TEST(Transfer, AnUrgentOnePassesABulkOneOnAStreamOfItsOwn) {
    for (std::uint64_t seed = 1; seed <= 10; ++seed) {
        SmallChunks target({.interleaved = true, .seed = seed});
        const auto source = pattern(32 * kChunk);
        const auto hook = watch(target.device, [](const Watch::Copy& copy, std::size_t index) {
            return index == 2 || index == 9 || (copy.priority < 0 && copy.bytes == 100);
        });
        const Array bulk_array = bytes_on(target.device, source.size());
        const Array urgent_array = bytes_on(target.device, kChunk + 100, -1);
        const auto bulk = transfer_to_device(bulk_array, source.data());
        hook->wait_stopped(1);
        const auto urgent = transfer_to_device(urgent_array, source.data(), {.priority = -1});
        hook->wait_stopped(2);  // at its last chunk
        hook->let_go(1);        // the bulk goes on, if it may
        std::this_thread::yield();
        hook->let_go(2);
        urgent->get();
        hook->wait_stopped(3);
        EXPECT_FALSE(bulk->over());
        hook->let_go(3);
        bulk->get();
        const auto copies = hook->copies();
        ASSERT_EQ(copies.size(), 34u);
        // While the urgent one was under way, the bulk one queued nothing more.
        const std::size_t first_urgent = 3;
        for (std::size_t i = 0; i < copies.size(); ++i) {
            EXPECT_EQ(copies[i].priority < 0, i == first_urgent || i == first_urgent + 1) << i;
        }
        target.device.launcher().remove_hook(hook.get());
    }
}

// Beside a bulk one, whose copies a GPU's engine would serve first.
TEST(Transfer, ASmallUrgentOneIsCopiedByTheMultiprocessorsBesideABulkOne) {
    for (const bool interleaved : {false, true}) {
        for (const bool up : {false, true}) {
            SmallChunks target({.interleaved = interleaved, .seed = 6});
            const auto source = pattern(16 * kChunk);
            const Array array = bytes_on(target.device, source.size());
            const Array other = bytes_on(target.device, source.size());
            transfer_to_device(array, source.data())->get();
            const Pinned all(target.device, source.size()), some(target.device, 1024);
            std::memcpy(all.data(), source.data(), source.size());
            const auto hook = watch(target.device, [](const Watch::Copy& copy, std::size_t index) {
                return index == 1 && copy.priority == 0;
            });
            const auto bulk =
                up ? transfer_to_device(other, all.data()) : transfer_to_host(array, all.data());
            hook->wait_stopped(1);
            // Offsets and lengths that leave 1, 2, 4, 8 and 16 bytes as the widest element.
            const std::pair<std::int64_t, std::int64_t> ranges[] = {
                {1, 3}, {2, 6}, {4, 12}, {8, 24}, {16, 1008}};
            std::vector<std::uint8_t> pageable(1024);
            for (const auto& [from, count] : ranges) {
                for (const bool pinned : {true, false}) {
                    const auto bytes = static_cast<std::size_t>(count);
                    auto* const host =
                        pinned ? reinterpret_cast<std::uint8_t*>(some.data()) : pageable.data();
                    const Array part = array.slice(0, from, 1, count);
                    std::memset(host, static_cast<int>(from), 1024);
                    std::vector<std::uint8_t> back(bytes, 0);
                    if (up) {
                        transfer_to_device(part, host, {.priority = -1})->get();
                        part.copy_to_host(back.data());
                        EXPECT_EQ(back, std::vector<std::uint8_t>(bytes, static_cast<std::uint8_t>(from)));
                    } else {
                        transfer_to_host(part, host, {.priority = -1})->get();
                        EXPECT_EQ(std::memcmp(host, source.data() + from, bytes), 0) << from << pinned;
                        EXPECT_EQ(host[bytes], from);
                    }
                }
            }
            EXPECT_FALSE(bulk->over());
            hook->let_go(1);
            bulk->get();
            if (up) {
                std::memset(all.data(), 0, source.size());
                transfer_to_host(other, all.data())->get();
            }
            EXPECT_EQ(std::memcmp(all.data(), source.data(), source.size()), 0);
            int by_kernel = 0;
            for (const Watch::Copy& copy : hook->copies()) {
                EXPECT_TRUE(copy.by_kernel || copy.priority == 0);
                by_kernel += copy.by_kernel;
            }
            EXPECT_EQ(by_kernel, 10);
            // Without one beside it, the copy engine takes it.
            transfer_to_host(array.slice(0, 0, 1, 100), some.data(), {.priority = -1})->get();
            EXPECT_FALSE(hook->copies().back().by_kernel);
            target.device.launcher().remove_hook(hook.get());
        }
    }
}

TEST(Transfer, ASmallUrgentOneIsQueuedByTheThreadThatAsks) {
    SmallChunks target;
    const auto source = pattern(1024);
    const Pinned held(target.device, 1024), back(target.device, 1024);
    std::memcpy(held.data(), source.data(), 1024);
    const Array array = bytes_on(target.device, 1024);
    const auto hook = watch(target.device, [](const Watch::Copy&, std::size_t) { return false; });
    transfer_to_device(array, held.data(), {.priority = -1})->get();
    transfer_to_host(array, back.data(), {.priority = -1})->get();
    EXPECT_EQ(std::memcmp(back.data(), source.data(), 1024), 0);
    transfer_to_device(array, held.data())->get();
    const auto copies = hook->copies();
    ASSERT_EQ(copies.size(), 3u);
    const auto self = std::this_thread::get_id();
    EXPECT_EQ(copies[0].thread, self);
    EXPECT_EQ(copies[1].thread, self);
    EXPECT_NE(copies[2].thread, self);
    target.device.launcher().remove_hook(hook.get());
}

// -- States --------------------------------------------------------------------------------------------

TEST(Transfer, IsCancelledInEachState) {
    SmallChunks target;
    const auto source = pattern(20 * kChunk);
    const Array a = bytes_on(target.device, source.size()), b = bytes_on(target.device, 10);
    const auto hook = watch(target.device, [](const Watch::Copy&, std::size_t index) { return index == 3; });
    const auto running = transfer_to_device(a, source.data());
    hook->wait_stopped(1);
    const auto queued = transfer_to_device(b, source.data(), {.priority = 1});
    EXPECT_EQ(running->state(), TransferState::in_progress);
    EXPECT_EQ(queued->state(), TransferState::queued);
    EXPECT_TRUE(queued->cancel());
    EXPECT_EQ(queued->state(), TransferState::cancelled);
    EXPECT_FALSE(queued->cancel());
    EXPECT_TRUE(running->cancel());
    EXPECT_FALSE(running->cancel());  // asked already
    EXPECT_EQ(running->state(), TransferState::in_progress);
    EXPECT_FALSE(running->wait(1ms));
    hook->let_go(1);
    EXPECT_TRUE(running->wait());
    EXPECT_EQ(running->state(), TransferState::cancelled);
    EXPECT_EQ(running->bytes_done(), 4 * kChunk);  // the chunk under way was the fourth
    expect_kind(ErrorKind::value, [&] { running->get(); });
    EXPECT_EQ(hook->copies().size(), 4u);
    target.device.launcher().remove_hook(hook.get());
    const auto completed = transfer_to_device(b, source.data());
    completed->get();
    EXPECT_FALSE(completed->cancel());
    EXPECT_EQ(completed->state(), TransferState::completed);
    const TransferStats stats = TransferEngine::of(target.device).stats();
    EXPECT_EQ(stats.directions[0].cancelled, 2u);
    EXPECT_EQ(stats.directions[0].completed, 1u);
    EXPECT_EQ(stats.queued + stats.in_progress, 0u);
}

TEST(Transfer, IsCountedByItsStateAndToldWhenItIsOver) {
    struct Spans : observe::Listener {
        std::mutex mutex;
        std::vector<std::tuple<std::string, double, std::string>> all;
        void happened(const observe::Happening& each) noexcept override {
            if (each.topic != observe::Topic::transfer) return;
            const std::lock_guard lock(mutex);
            EXPECT_LE(each.start_ns, each.end_ns);
            all.emplace_back(each.name, each.amount, each.detail);
        }
    };
    SmallChunks target;
    const Meter& meter = meter_of(target.device, nullptr);
    const auto source = pattern(20 * kChunk);
    const Array a = bytes_on(target.device, source.size()), b = bytes_on(target.device, 10);
    const std::uint64_t completed = meter[Count::transfers_completed];
    const std::uint64_t cancelled = meter[Count::transfers_cancelled];
    const auto spans = std::make_shared<Spans>();
    observe::add_listener(spans);
    const auto hook = watch(target.device, [](const Watch::Copy&, std::size_t index) { return index == 3; });
    const auto running = transfer_to_device(a, source.data());
    hook->wait_stopped(1);
    const auto queued = transfer_to_device(b, source.data(), {.priority = 1});
    EXPECT_EQ(meter[Level::transfers_in_progress], 1);
    EXPECT_EQ(meter[Level::transfers_queued], 1);
    EXPECT_TRUE(queued->cancel());
    EXPECT_EQ(meter[Level::transfers_queued], 0);
    hook->let_go(1);
    running->get();
    TransferEngine::of(target.device).drain();
    observe::remove_listener(spans.get());
    target.device.launcher().remove_hook(hook.get());
    EXPECT_EQ(meter[Level::transfers_in_progress], 0);
    EXPECT_EQ(meter[Count::transfers_completed] - completed, 1u);
    EXPECT_EQ(meter[Count::transfers_cancelled] - cancelled, 1u);
    const decltype(spans->all) expected = {{"to_device", 0.0, "cancelled"},
                                           {"to_device", 20.0 * kChunk, "completed"}};
    EXPECT_EQ(spans->all, expected);
}

TEST(Transfer, KeepsItsErrorAndTheLaneGoesOn) {
    SmallChunks target;
    const auto source = pattern(6 * kChunk);
    const Array a = bytes_on(target.device, source.size());
    target.driver.set_faults(
        {{.call = "copy_to_device", .nth = 3, .code = 700, .code_name = "CUDA_ERROR_ILLEGAL_ADDRESS"}});
    const auto failing = transfer_to_device(a, source.data());
    expect_code("CUDA_ERROR_ILLEGAL_ADDRESS", [&] { failing->get(); });
    expect_code("CUDA_ERROR_ILLEGAL_ADDRESS", [&] { failing->get(); });  // kept
    EXPECT_EQ(failing->state(), TransferState::failed);
    EXPECT_NE(failing->failure(), nullptr);
    const auto next = transfer_to_device(a, source.data());
    std::vector<std::uint8_t> back(source.size());
    transfer_to_host(a, back.data())->get();
    next->get();
    EXPECT_EQ(back, source);
}

TEST(Transfer, AFillThatThrowsFailsIt) {
    SmallChunks target;
    const Array a = bytes_on(target.device, 8 * kChunk);
    const auto transfer = transfer_filled(a, 1, [](std::size_t offset, std::span<std::byte>) {
        if (offset >= 5 * kChunk) throw error(ErrorKind::file, {.call = "fill", .got = "damage"});
    });
    expect_kind(ErrorKind::file, [&] { transfer->get(); });
    EXPECT_EQ(transfer->state(), TransferState::failed);
}

TEST(Transfer, FillsInPiecesOfItsGrain) {
    SmallChunks target({}, [] {
        TransferOptions options = kSmall;
        options.chunk_bytes = 5000;
        return options;
    }());
    const auto source = pattern(30000);
    const Array a = bytes_on(target.device, source.size());
    std::atomic<int> odd{0};
    transfer_filled(a, 96, [&](std::size_t offset, std::span<std::byte> out) {
        odd += offset % 96 != 0;
        std::memcpy(out.data(), source.data() + offset, out.size());
    })->get();
    EXPECT_EQ(odd, 0);
    std::vector<std::uint8_t> back(source.size());
    transfer_to_host(a, back.data())->get();
    EXPECT_EQ(back, source);
}

TEST(Transfer, TellsOfProgressAndOfItsEnd) {
    SmallChunks target;
    const auto source = pattern(9 * kChunk + 1);
    const Array a = bytes_on(target.device, source.size());
    std::mutex mutex;
    std::vector<std::size_t> seen;
    int ends = 0;
    bool kept_alive = false;
    const auto token = std::make_shared<int>(7);
    std::weak_ptr<int> watched = token;
    {
        TransferHow how{.keep = {token}, .progress = [&](std::size_t done, std::size_t total) {
                            const std::lock_guard lock(mutex);
                            EXPECT_EQ(total, source.size());
                            seen.push_back(done);
                        }};
        const auto transfer = transfer_to_device(a, source.data(), std::move(how));
        transfer->on_done([&] {
            ++ends;
            kept_alive = !watched.expired();
        });
        transfer->on_done([] { throw std::runtime_error("a callback's own fault"); });
        transfer->get();
        TransferEngine::of(target.device).drain();
        transfer->on_done([&] { ++ends; });  // at once
    }
    EXPECT_EQ(ends, 2);
    EXPECT_TRUE(kept_alive);
    EXPECT_EQ(token.use_count(), 1);
    const std::lock_guard lock(mutex);
    ASSERT_FALSE(seen.empty());
    EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
    EXPECT_EQ(seen.back(), source.size());
}

TEST(Transfer, KeepsItsArraysAlive) {
    SmallChunks target({.interleaved = true, .seed = 4});
    const auto source = pattern(7 * kChunk);
    std::vector<std::uint8_t> back(source.size());
    std::shared_ptr<Transfer> down;
    {
        const Array a = bytes_on(target.device, source.size());
        transfer_to_device(a, source.data());
        down = transfer_to_host(a, back.data());
    }
    // What takes memory now must not get the array's.
    const Array b = bytes_on(target.device, source.size());
    const std::vector<std::uint8_t> zeros(source.size(), 0);
    const auto other = transfer_to_device(b, zeros.data(), {.priority = -1});
    down->get();
    other->get();
    EXPECT_EQ(back, source);
    TransferEngine::of(target.device).drain();
    EXPECT_EQ(MemoryPool::of(target.device).stats().live_blocks, 1u);
}

TEST(Transfer, RefusesWhatItCannotDo) {
    SmallChunks target;
    TestDevice elsewhere;
    const auto source = pattern(100);
    const Array a = Array::empty(target.device, {10, 10}, DType::uint8);
    const Array b = Array::empty(elsewhere.device, {10, 10}, DType::uint8);
    expect_kind(ErrorKind::value, [&] { transfer_to_device(a.transpose({}), source.data()); });
    expect_kind(ErrorKind::value, [&] { transfer_to_device(a.readonly(), source.data()); });
    expect_kind(ErrorKind::value, [&] { transfer_to_device(a, nullptr); });
    expect_kind(ErrorKind::value, [&] { transfer_on_device(a, b); });
    expect_kind(ErrorKind::value, [&] { transfer_on_device(a, a); });
    expect_kind(ErrorKind::value,
                [&] { transfer_filled(a, std::size_t{1} << 40, [](std::size_t, std::span<std::byte>) {}); });
    const auto stream = Stream::create(target.device);
    const StreamScope scope(stream);
    EXPECT_THROW(Graph::capture(stream, [&] { transfer_to_device(a, source.data()); }), Error);
    transfer_to_device(a, source.data())->get();
    expect_kind(ErrorKind::value, [&] { TransferEngine::of(target.device).configure(kSmall); });
    EXPECT_EQ(TransferEngine::of(target.device).stats().directions[0].completed, 1u);
}

// -- Tenants -------------------------------------------------------------------------------------------

TEST(Transfer, OfATenantPassesItsGovernor) {
    struct Governor : LaunchHook {
        std::atomic<std::size_t> bytes{0};
        std::atomic<bool> refuse{false};
        void before(const WorkRecord& work) override {
            if (refuse) throw error(ErrorKind::unsupported, {.call = "governor", .got = "a copy"});
            bytes += static_cast<std::size_t>(work.cost.bytes);
        }
        void after(const WorkRecord&, bool) noexcept override {}
    };
    SmallChunks target;
    const auto governor = std::make_shared<Governor>();
    const auto tenant = Tenant::create({.name = "guest", .max_streams = 2, .governor = governor});
    const auto source = pattern(10 * kChunk);
    const auto stream = Stream::create_for(tenant, target.device);
    const StreamScope scope(stream);
    const Array a = bytes_on(target.device, source.size());
    const auto up = transfer_to_device(a, source.data());
    up->get();
    EXPECT_EQ(governor->bytes, source.size());
    governor->refuse = true;
    expect_kind(ErrorKind::unsupported, [&] { transfer_to_device(a, source.data())->get(); });
    governor->refuse = false;
    // Its two streams are its own and the lane's: a lane for the other direction is one too many, and large
    // blocking copies then go by its own stream.
    std::vector<std::uint8_t> back(source.size());
    expect_kind(ErrorKind::unsupported, [&] { transfer_to_host(a, back.data()); });
    EXPECT_FALSE(copies_by_transfer(target.device, TransferKind::to_host, kTransferBytes));
    a.copy_to_host(back.data());
    EXPECT_EQ(back, source);
}

// -- Threads -------------------------------------------------------------------------------------------

TEST(Transfer, ManyThreadsCopyCancelAndUseAtOnce) {
    for (const bool interleaved : {false, true}) {
        SmallChunks target({.interleaved = interleaved, .seed = 9});
        std::vector<std::thread> threads;
        for (unsigned id = 0; id < 4; ++id) {
            threads.emplace_back([&, id] {
                std::mt19937 random(id);
                for (int round = 0; round < 25; ++round) {
                    const std::size_t bytes = random() % (12 * kChunk);
                    const auto source = pattern(bytes, id * 100 + static_cast<unsigned>(round));
                    std::vector<std::uint8_t> back(bytes + 1);
                    const Array a = bytes_on(target.device, bytes);
                    const int priority = static_cast<int>(random() % 3) - 1;
                    const auto up = transfer_to_device(a, bytes > 0 ? source.data() : back.data(),
                                                       {.priority = priority});
                    const auto down = transfer_to_host(a, back.data(), {.priority = priority});
                    const bool cancels = random() % 4 == 0;
                    if (cancels) (random() % 2 == 0 ? up : down)->cancel();
                    up->wait();
                    down->wait();
                    if (up->state() == TransferState::completed &&
                        down->state() == TransferState::completed) {
                        EXPECT_TRUE(std::equal(source.begin(), source.end(), back.begin()));
                    } else {
                        EXPECT_TRUE(cancels);
                    }
                }
            });
        }
        for (auto& each : threads) each.join();
        TransferEngine::of(target.device).drain();
        EXPECT_EQ(MemoryPool::of(target.device).stats().live_blocks, 0u);
        EXPECT_EQ(PinnedPool::of(target.device).stats().live_blocks, 0u);
    }
}

TEST(Transfer, ADeviceThatGoesEndsThemAll) {
    const auto source = pattern(60 * kChunk);
    for (const bool interleaved : {false, true}) {
        std::vector<std::shared_ptr<Transfer>> all;
        {
            SmallChunks target({.interleaved = interleaved, .seed = 2});
            for (int i = 0; i < 5; ++i) {
                all.push_back(transfer_to_device(bytes_on(target.device, source.size()), source.data(),
                                                 {.priority = i - 2}));
            }
        }
        for (const auto& each : all) {
            EXPECT_TRUE(each->over());
            EXPECT_TRUE(each->wait());
            EXPECT_FALSE(each->cancel());
            EXPECT_TRUE(each->state() == TransferState::completed ||
                        each->state() == TransferState::cancelled);
        }
    }
}
