// SimDriver without captures: memory, order, events, faults, launches. Captures: sim_capture_test.cpp.
#include "driver/sim_driver.hpp"

#include <cmath>
#include <cstring>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "base/byte_size.hpp"
#include "sim_support.hpp"

using namespace gpk;
using namespace sim;

namespace {

constexpr std::size_t kMemory = std::size_t{1} << 20;

std::unique_ptr<SimDriver> interleaved(std::uint64_t seed = 0) {
    return make_sim_driver({.memory_bytes = kMemory, .interleaved = true, .seed = seed});
}

std::int64_t* words(DevicePtr pointer) { return reinterpret_cast<std::int64_t*>(pointer); }

void affine(SimDriver& driver, StreamHandle stream, DevicePtr x, std::int64_t factor, std::int64_t term,
            std::int64_t count = 1) {
    const AffineParams params{words(x), factor, term, count};
    driver.launch(stream, driver.function(kAffine), {}, &params, sizeof params);
}

}  // namespace

class SimDriverModes : public ::testing::TestWithParam<bool> {
   protected:
    std::unique_ptr<SimDriver> driver =
        make_sim_driver({.memory_bytes = kMemory, .interleaved = GetParam(), .seed = 7});
    StreamHandle stream = driver->stream_create(0);
};
INSTANTIATE_TEST_SUITE_P(Modes, SimDriverModes, ::testing::Bool(),
                         [](const auto& mode) { return mode.param ? "interleaved" : "immediate"; });

// -- Memory --------------------------------------------------------------------------------------------

TEST_P(SimDriverModes, MemoryHasACapacity) {
    const DevicePtr most = driver->allocate(kMemory - 1000);
    EXPECT_EQ(driver->memory_info().free_bytes, 1000u);
    EXPECT_EQ(driver->memory_info().total_bytes, kMemory);
    EXPECT_EQ(driver->info().memory_bytes, kMemory);
    try {
        driver->allocate(1001);
        FAIL() << "more than the capacity was given";
    } catch (const DriverError& failure) {
        EXPECT_EQ(failure.code(), 2);
        EXPECT_EQ(failure.code_name(), "CUDA_ERROR_OUT_OF_MEMORY");
        EXPECT_EQ(failure.call(), "allocate");
        EXPECT_EQ(failure.kind(), ErrorKind::memory);
    }
    const DevicePtr rest = driver->allocate(1000);
    EXPECT_EQ(driver->bytes_in_use(), kMemory);
    driver->free(most);
    driver->free(rest);
    EXPECT_EQ(driver->bytes_in_use(), 0u);
    EXPECT_EQ(driver->live_allocations(), 0u);
    expect_code("CUDA_ERROR_OUT_OF_MEMORY", [&] { driver->allocate(SIZE_MAX); });
    expect_code("CUDA_ERROR_INVALID_VALUE", [&] { driver->allocate(0); });
    expect_code("CUDA_ERROR_INVALID_VALUE", [&] { driver->allocate_host(0); });
}

TEST_P(SimDriverModes, MemoryIsAligned) {
    for (const std::size_t bytes : {1, 3, 255, 257, 5000}) EXPECT_EQ(driver->allocate(bytes) % 256, 0u);
    EXPECT_EQ(driver->live_allocations(), 5u);
}

TEST_P(SimDriverModes, InvalidFreesAreCountedAndHarmless) {
    const DevicePtr pointer = driver->allocate(64);
    driver->free(pointer + 8);
    driver->free(0);  // as cuMemFree takes it
    EXPECT_EQ(driver->invalid_frees(), 1u);
    EXPECT_EQ(driver->live_allocations(), 1u);
    driver->free(pointer);
    driver->free(pointer);
    int on_stack = 0;
    driver->free_host(&on_stack);
    EXPECT_EQ(driver->invalid_frees(), 3u);
    EXPECT_EQ(driver->live_allocations(), 0u);
}

TEST_P(SimDriverModes, CopiesAndFillsStayInsideLiveAllocations) {
    const DevicePtr a = driver->allocate(100), b = driver->allocate(100);
    std::vector<char> host(200);
    driver->fill(stream, a, 1, 100);
    driver->fill(stream, a + 40, 2, 60);
    driver->copy_on_device(stream, b + 99, a, 1);
    const char* const invalid = "CUDA_ERROR_INVALID_VALUE";
    expect_code(invalid, [&] { driver->fill(stream, a + 41, 2, 60); });
    expect_code(invalid, [&] { driver->fill(stream, a + 101, 2, 1); });
    expect_code(invalid, [&] { driver->fill(stream, a, 2, SIZE_MAX); });
    expect_code(invalid, [&] { driver->copy_to_device(stream, a, host.data(), 101); });
    expect_code(invalid, [&] { driver->copy_to_device(stream, a, nullptr, 1); });
    expect_code(invalid, [&] { driver->copy_to_host(stream, host.data(), a, 101); });
    expect_code(invalid, [&] { driver->copy_to_host(stream, nullptr, a, 1); });
    expect_code(invalid, [&] { driver->copy_on_device(stream, a, b, 101); });
    expect_code(invalid, [&] { driver->copy_on_device(stream, a + 1, b, 100); });
    driver->free(b);
    expect_code(invalid, [&] { driver->copy_on_device(stream, a, b, 1); });
    driver->copy_to_host(stream, host.data(), a, 100);
    EXPECT_EQ(host[39], 1);
    EXPECT_EQ(host[99], 2);
    // Nothing to copy is nothing to check.
    driver->copy_to_device(stream, 0, nullptr, 0);
    driver->copy_to_host(stream, nullptr, 0, 0);
    driver->fill(stream, 0, 0, 0);
}

TEST_P(SimDriverModes, PinnedMemoryIsKnown) {
    const DevicePtr device = driver->allocate(64);
    auto* pinned = static_cast<char*>(driver->allocate_host(32));
    EXPECT_EQ(driver->live_host_allocations(), 1u);
    EXPECT_EQ(driver->host_bytes(), 32u);
    std::memset(pinned, 9, 32);
    driver->copy_to_device(stream, device, pinned, 32);
    expect_code("CUDA_ERROR_INVALID_VALUE", [&] { driver->copy_to_device(stream, device, pinned, 33); });
    expect_code("CUDA_ERROR_INVALID_VALUE", [&] { driver->copy_to_host(stream, pinned + 31, device, 2); });
    std::vector<char> host(32);
    driver->copy_to_host(stream, host.data(), device, 32);
    EXPECT_EQ(host, std::vector<char>(32, 9));
    driver->free_host(pinned);
    EXPECT_EQ(driver->host_bytes(), 0u);
}

TEST(SimDriver, FreshMemoryIsNaNInInterleavedMode) {
    const auto driver = interleaved();
    const DevicePtr pointer = driver->allocate(64);
    float single;
    double twice;
    std::memcpy(&single, reinterpret_cast<void*>(pointer), sizeof single);
    std::memcpy(&twice, reinterpret_cast<void*>(pointer + 8), sizeof twice);
    EXPECT_TRUE(std::isnan(single));
    EXPECT_TRUE(std::isnan(twice));
}

TEST(SimDriver, TheEnvironmentSizesTheMemory) {
    ::setenv("PYGPUKIT_SIM_MEMORY", "3MiB", 1);
    EXPECT_EQ(make_sim_driver()->info().memory_bytes, std::size_t{3} << 20);
    ::setenv("PYGPUKIT_SIM_MEMORY", "plenty", 1);
    expect_kind(ErrorKind::value, [] { make_sim_driver(); });
    ::unsetenv("PYGPUKIT_SIM_MEMORY");
    EXPECT_GT(make_sim_driver()->info().memory_bytes, std::size_t{64} << 20);
}

TEST(ByteSize, ReadsWhatPeopleWrite) {
    EXPECT_EQ(parse_byte_size("t", "123"), 123u);
    EXPECT_EQ(parse_byte_size("t", "1.5KiB"), 1536u);
    EXPECT_EQ(parse_byte_size("t", "4 GiB"), std::size_t{4} << 30);
    EXPECT_EQ(parse_byte_size("t", "2GB"), 2000000000u);
    for (const char* bad : {"", "GiB", "-1", "0", "4Gi", "4GiB!", "nan", "inf", "1e300GiB", "0.1"}) {
        expect_kind(ErrorKind::value, [&] { parse_byte_size("t", bad); });
    }
}

// -- What a driver says of itself ----------------------------------------------------------------------

TEST(SimDriver, DescribesItself) {
    const auto driver = make_sim_driver({.memory_bytes = kMemory});
    EXPECT_EQ(driver->kind(), "cpu");
    EXPECT_EQ(driver->info().name, "CPU (simulated device)");
    EXPECT_EQ(driver->info().sm, 0);
    EXPECT_GE(driver->info().multiprocessors, 1);
    EXPECT_EQ(driver->info().lowest_priority, 0);
    EXPECT_EQ(driver->info().highest_priority, -5);
}

TEST_P(SimDriverModes, FunctionsAreOneAKernel) {
    const FunctionHandle f = driver->function(kAffine);
    EXPECT_EQ(driver->function(KernelDef{.name = "affine", .twin = affine_host}), f);
    EXPECT_NE(driver->function(kMix), f);
    EXPECT_EQ(driver->live_functions(), 2u);
    EXPECT_EQ(driver->function_info(f).max_threads_per_block, 1024);
    const Image image{};
    const KernelDef of_image{.name = "affine", .image = &image, .twin = affine_host};
    EXPECT_NE(driver->function(of_image), f);
    driver->unload(image);
    EXPECT_EQ(driver->live_functions(), 2u);
    try {
        driver->function(KernelDef{.name = "only_on_gpu"});
        FAIL() << "a kernel without a host twin was given";
    } catch (const Error& failure) {
        EXPECT_EQ(failure.kind(), ErrorKind::unsupported);
        EXPECT_NE(std::string(failure.what()).find("only_on_gpu"), std::string::npos);
    }
}

TEST_P(SimDriverModes, LaunchesAreCheckedAsADriverDoes) {
    struct Case {
        LaunchConfig config;
        const char* code;
    };
    const char* const invalid = "CUDA_ERROR_INVALID_VALUE";
    const Case cases[] = {
        {{.grid = {0, 1, 1}}, invalid},
        {{.grid = {1, 0, 1}}, invalid},
        {{.grid = {1, 1, 0}}, invalid},
        {{.grid = {0x80000000u, 1, 1}}, invalid},
        {{.grid = {1, 65536, 1}}, invalid},
        {{.grid = {1, 1, 65536}}, invalid},
        {{.block = {0, 1, 1}}, invalid},
        {{.block = {1025, 1, 1}}, invalid},
        {{.block = {32, 33, 1}}, invalid},
        {{.block = {1, 1, 65}}, invalid},
        {{.block = {65536, 65536, 1}}, invalid},
        {{.shared_bytes = 48 * 1024 + 1}, invalid},
        {{.grid = {3, 1, 1}, .cluster = 2}, "CUDA_ERROR_INVALID_CLUSTER_SIZE"},
        {{.grid = {32, 1, 1}, .cluster = 16}, "CUDA_ERROR_INVALID_CLUSTER_SIZE"},
        {{.grid = {0x10000, 1, 1}, .block = {1024}, .cluster = 0}, "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE"},
    };
    const DevicePtr x = driver->allocate(8);
    driver->fill(stream, x, 0, 8);
    const AffineParams params{words(x), 1, 1, 1};
    for (const Case& each : cases) {
        expect_code(each.code, [&] {
            driver->launch(stream, driver->function(kAffine), each.config, &params, sizeof params);
        });
    }
    const KernelDef large{.name = "large", .twin = affine_host, .max_shared_bytes = 100 * 1024};
    const LaunchConfig largest{
        .grid = {0x7fffffffu, 65535, 65535}, .block = {16, 1, 64}, .shared_bytes = 100 * 1024};
    driver->launch(stream, driver->function(large), largest, &params, sizeof params);
    const auto places = static_cast<std::uint32_t>(driver->info().multiprocessors);
    const auto together = [&](std::uint32_t blocks) {
        const LaunchConfig config{
            .grid = {blocks, 1, 1}, .block = {256}, .shared_bytes = 100 * 1024, .cluster = 0};
        driver->launch(stream, driver->function(large), config, &params, sizeof params);
    };
    together(2 * places);
    expect_code("CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE", [&] { together(2 * places + 1); });
    expect_code(invalid, [&] {
        driver->launch(stream, driver->function(large), {.shared_bytes = 100 * 1024 + 1}, &params,
                       sizeof params);
    });
    expect_code("CUDA_ERROR_INVALID_HANDLE",
                [&] { driver->launch(stream, nullptr, {}, &params, sizeof params); });
    std::int64_t result = 0;
    driver->copy_to_host(stream, &result, x, 8);
    EXPECT_EQ(result, 2);  // only the two good launches ran
}

TEST_P(SimDriverModes, DeadHandlesAreRefused) {
    const EventHandle event = driver->event_create(false);
    driver->event_destroy(event);
    driver->event_destroy(event);  // logged
    expect_code("CUDA_ERROR_INVALID_HANDLE", [&] { driver->event_record(event, stream); });
    driver->stream_destroy(stream);
    expect_code("CUDA_ERROR_INVALID_HANDLE", [&] { driver->stream_synchronize(stream); });
    expect_code("CUDA_ERROR_INVALID_HANDLE", [&] { driver->stream_synchronize(nullptr); });
    EXPECT_EQ(driver->live_streams(), 0u);
    EXPECT_EQ(driver->live_events(), 0u);
}

// -- Order ---------------------------------------------------------------------------------------------

TEST(SimDriver, InterleavedWorkRunsWhenSomebodyWaits) {
    const auto driver = interleaved();
    const StreamHandle stream = driver->stream_create(0);
    const DevicePtr x = driver->allocate(8);
    *words(x) = 5;
    affine(*driver, stream, x, 10, 1);
    affine(*driver, stream, x, 10, 2);
    EXPECT_EQ(*words(x), 5);
    driver->stream_synchronize(stream);
    EXPECT_EQ(*words(x), 512);
}

TEST(SimDriver, StreamsOverlapAndSeedsRepeat) {
    std::vector<std::int64_t> order;
    static std::vector<std::int64_t>* into;
    into = &order;
    constexpr HostTwin note = [](const void* params, const LaunchConfig&) {
        into->push_back(*static_cast<const std::int64_t*>(params));
    };
    const KernelDef def{.name = "note", .twin = note};
    const auto run = [&](std::uint64_t seed) {
        order.clear();
        const auto driver = interleaved(seed);
        const FunctionHandle function = driver->function(def);
        for (std::int64_t s = 0; s < 3; ++s) {
            const StreamHandle stream = driver->stream_create(0);
            for (std::int64_t i = 0; i < 6; ++i) {
                const std::int64_t tag = s * 100 + i;
                driver->launch(stream, function, {}, &tag, sizeof tag);
            }
        }
        driver->synchronize();
        EXPECT_EQ(order.size(), 18u);
        std::int64_t next[3] = {0, 0, 0};
        for (const std::int64_t tag : order) EXPECT_EQ(tag % 100, next[tag / 100]++);
        return order;
    };
    std::set<std::vector<std::int64_t>> orders;
    for (std::uint64_t seed = 0; seed < 50; ++seed) {
        const auto first = run(seed);
        EXPECT_EQ(run(seed), first) << "seed " << seed;
        orders.insert(first);
    }
    EXPECT_GT(orders.size(), 30u);
}

TEST(SimDriver, PageableSourcesAreReadAtTheCallAndPinnedOnesWhenTheCopyRuns) {
    const auto driver = interleaved();
    const StreamHandle stream = driver->stream_create(0);
    const DevicePtr a = driver->allocate(8), b = driver->allocate(8);
    std::int64_t pageable = 1;
    auto* pinned = static_cast<std::int64_t*>(driver->allocate_host(8));
    *pinned = 1;
    driver->copy_to_device(stream, a, &pageable, 8);
    driver->copy_to_device(stream, b, pinned, 8);
    pageable = 2;
    *pinned = 2;  // too early: the copy has not run
    driver->stream_synchronize(stream);
    EXPECT_EQ(*words(a), 1);
    EXPECT_EQ(*words(b), 2);
}

TEST(SimDriver, PageableTargetsAreWrittenBeforeTheReturnAndPinnedOnesLater) {
    const auto driver = interleaved();
    const StreamHandle stream = driver->stream_create(0);
    const DevicePtr a = driver->allocate(8);
    auto* pinned = static_cast<std::int64_t*>(driver->allocate_host(8));
    *pinned = 0;
    std::int64_t pageable = 0;
    driver->fill(stream, a, 1, 8);
    driver->copy_to_host(stream, pinned, a, 8);
    EXPECT_EQ(*pinned, 0);
    driver->copy_to_host(stream, &pageable, a, 8);
    EXPECT_EQ(pageable, 0x0101010101010101);
    EXPECT_EQ(*pinned, 0x0101010101010101);
}

TEST(SimDriver, EventsOrderStreams) {
    int wrong_without = 0;
    for (std::uint64_t seed = 0; seed < 100; ++seed) {
        for (const bool with_wait : {true, false}) {
            const auto driver = interleaved(seed);
            const StreamHandle one = driver->stream_create(0), two = driver->stream_create(0);
            const EventHandle event = driver->event_create(false);
            const DevicePtr x = driver->allocate(8);
            driver->fill(one, x, 0, 8);
            affine(*driver, one, x, 1, 3);
            driver->event_record(event, one);
            if (with_wait) driver->stream_wait_event(two, event);
            affine(*driver, two, x, 10, 1);
            driver->synchronize();
            if (!with_wait) {
                wrong_without += *words(x) != 31;
                continue;
            }
            EXPECT_EQ(*words(x), 31) << "seed " << seed;
        }
    }
    EXPECT_GT(wrong_without, 20);
}

TEST(SimDriver, AWaitIsForTheLastRecordBeforeIt) {
    int before_second = 0;
    for (std::uint64_t seed = 0; seed < 200; ++seed) {
        const auto driver = interleaved(seed);
        const StreamHandle one = driver->stream_create(0), two = driver->stream_create(0);
        const EventHandle event = driver->event_create(false);
        const DevicePtr x = driver->allocate(8), y = driver->allocate(8);
        driver->fill(one, x, 0, 8);
        driver->stream_wait_event(one, event);  // never recorded: no wait
        affine(*driver, one, x, 1, 1);
        driver->event_record(event, one);
        driver->stream_wait_event(two, event);
        affine(*driver, one, x, 1, 1);
        driver->event_record(event, one);
        driver->copy_on_device(two, y, x, 8);  // after the first record, perhaps before the second
        driver->synchronize();
        EXPECT_GE(*words(y), 1) << "seed " << seed;
        before_second += *words(y) == 1;
    }
    EXPECT_GT(before_second, 10);
    EXPECT_LT(before_second, 190);
}

TEST(SimDriver, EventsAreQueriedAndWaitedFor) {
    const auto driver = interleaved(3);
    const StreamHandle one = driver->stream_create(0), two = driver->stream_create(0);
    const EventHandle event = driver->event_create(false);
    EXPECT_TRUE(driver->event_query(event));
    driver->event_synchronize(event);
    const DevicePtr x = driver->allocate(8), y = driver->allocate(8);
    for (int i = 0; i < 50; ++i) driver->fill(one, x, 1, 8);
    driver->event_record(event, one);
    for (int i = 0; i < 50; ++i) driver->fill(two, y, 1, 8);
    EXPECT_FALSE(driver->event_query(event));
    EXPECT_FALSE(driver->stream_query(two));
    driver->event_synchronize(event);
    EXPECT_TRUE(driver->event_query(event));
    int looks = 0;
    while (!driver->stream_query(two)) ASSERT_LT(++looks, 1000);  // the device gets on by itself
}

TEST_P(SimDriverModes, DestroyedStreamsAndEventsLoseNoWork) {
    const StreamHandle other = driver->stream_create(0);
    const EventHandle event = driver->event_create(false);
    const DevicePtr x = driver->allocate(8);
    driver->fill(other, x, 0, 8);
    affine(*driver, other, x, 1, 4);
    driver->event_record(event, other);
    driver->stream_wait_event(stream, event);
    driver->event_destroy(event);
    driver->stream_destroy(other);
    affine(*driver, stream, x, 10, 0);
    driver->stream_synchronize(stream);
    EXPECT_EQ(*words(x), 40);
    EXPECT_EQ(driver->live_streams(), 1u);
    EXPECT_EQ(driver->live_events(), 0u);
}

TEST(SimDriver, FreeWaitsForTheDevice) {
    const auto driver = interleaved();
    const StreamHandle stream = driver->stream_create(0);
    const DevicePtr x = driver->allocate(8), y = driver->allocate(8);
    driver->fill(stream, x, 1, 8);
    driver->copy_on_device(stream, y, x, 8);
    driver->free(x);  // AddressSanitizer sees it if the copy runs later
    EXPECT_EQ(*words(y), 0x0101010101010101);
}

TEST(SimDriver, AKernelThatThrowsFailsTheNextWait) {
    const auto driver = interleaved();
    const StreamHandle stream = driver->stream_create(0);
    const DevicePtr x = driver->allocate(8), y = driver->allocate(8);
    driver->launch(stream, driver->function(kFailing), {}, nullptr, 0);
    driver->fill(stream, x, 1, 8);
    driver->free(y);  // cannot fail, and keeps the failure for who can
    expect_kind(ErrorKind::value, [&] { driver->stream_synchronize(stream); });
    driver->stream_synchronize(stream);
    EXPECT_EQ(*words(x), 0x0101010101010101);
}

TEST(SimDriver, AKernelThatThrowsFailsItsLaunchInImmediateMode) {
    const auto driver = make_sim_driver({.memory_bytes = kMemory});
    const StreamHandle stream = driver->stream_create(0);
    expect_kind(ErrorKind::value,
                [&] { driver->launch(stream, driver->function(kFailing), {}, nullptr, 0); });
    driver->stream_synchronize(stream);
}

TEST(SimScheduler, ADeadlockIsAnError) {
    SimScheduler scheduler(0);
    const auto stream = std::make_shared<SimStream>();
    scheduler.push(stream, SimWait{std::make_shared<SimPoint>()});
    scheduler.push(stream, SimRecord{std::make_shared<SimPoint>()});
    expect_code("CUDA_ERROR_UNKNOWN", [&] { scheduler.run_until("test", [&] { return scheduler.idle(); }); });
    EXPECT_FALSE(scheduler.drain());
}

TEST_P(SimDriverModes, ElapsedTimeIsTheHosts) {
    const EventHandle start = driver->event_create(true), end = driver->event_create(true);
    const EventHandle untimed = driver->event_create(false);
    expect_code("CUDA_ERROR_INVALID_HANDLE", [&] { driver->event_elapsed_ms(start, end); });
    static constexpr HostTwin nap = [](const void*, const LaunchConfig&) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
    };
    const KernelDef def{.name = "nap", .twin = nap};
    driver->event_record(start, stream);
    driver->launch(stream, driver->function(def), {}, nullptr, 0);
    driver->event_record(end, stream);
    driver->event_record(untimed, stream);
    if (GetParam()) expect_code("CUDA_ERROR_NOT_READY", [&] { driver->event_elapsed_ms(start, end); });
    driver->event_synchronize(end);
    EXPECT_GE(driver->event_elapsed_ms(start, end), 19.0f);
    EXPECT_LE(driver->event_elapsed_ms(end, start), -19.0f);
    driver->stream_synchronize(stream);
    expect_code("CUDA_ERROR_INVALID_HANDLE", [&] { driver->event_elapsed_ms(start, untimed); });
}

// -- Threads -------------------------------------------------------------------------------------------

TEST_P(SimDriverModes, ThreadsMayShareTheDeviceAndAStream) {
    constexpr int kThreads = 4, kRounds = 200;
    const DevicePtr shared = driver->allocate(8);
    driver->fill(stream, shared, 0, 8);
    driver->stream_synchronize(stream);
    std::vector<std::int64_t> results(kThreads);
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
        threads.emplace_back([&, t] {
            const StreamHandle own = driver->stream_create(0);
            const EventHandle event = driver->event_create(false);
            const DevicePtr x = driver->allocate(8);
            driver->fill(own, x, 0, 8);
            for (int i = 0; i < kRounds; ++i) {
                affine(*driver, own, x, 1, 1);
                affine(*driver, stream, shared, 1, 1);  // one stream's work never overlaps
                driver->event_record(event, stream);
                driver->stream_wait_event(own, event);
                if (i % 50 == 0) driver->free(driver->allocate(64));
            }
            driver->copy_to_host(own, &results[static_cast<std::size_t>(t)], x, 8);
            driver->stream_destroy(own);
            driver->event_destroy(event);
            driver->free(x);
        });
    }
    for (auto& thread : threads) thread.join();
    std::int64_t total = 0;
    driver->copy_to_host(stream, &total, shared, 8);
    EXPECT_EQ(total, kThreads * kRounds);
    EXPECT_EQ(results, std::vector<std::int64_t>(kThreads, kRounds));
    EXPECT_EQ(driver->live_allocations(), 1u);
}

// -- Faults --------------------------------------------------------------------------------------------

TEST_P(SimDriverModes, TheNthCallFailsBeforeItDoesAnything) {
    driver->set_faults({{.call = "allocate", .nth = 2, .code = 2, .code_name = "CUDA_ERROR_OUT_OF_MEMORY"},
                        {.call = "fill", .nth = 1, .code = 700, .code_name = "CUDA_ERROR_ILLEGAL_ADDRESS"}});
    const DevicePtr x = driver->allocate(8);
    expect_kind(ErrorKind::memory, [&] { driver->allocate(8); });
    EXPECT_EQ(driver->live_allocations(), 1u);
    driver->allocate(8);
    expect_code("CUDA_ERROR_ILLEGAL_ADDRESS", [&] { driver->fill(stream, x, 1, 8); });
    driver->fill(stream, x, 2, 8);
    driver->synchronize();
    EXPECT_EQ(*words(x), 0x0202020202020202);
    driver->free(x);
    auto counts = driver->call_counts();
    EXPECT_EQ(counts.at("allocate"), 3);
    EXPECT_EQ(counts.at("fill"), 2);
    EXPECT_EQ(counts.at("free"), 1);
    EXPECT_EQ(counts.at("launch"), 0);
    EXPECT_EQ(counts.size(), kSimCallCount);
    driver->set_faults({});
    EXPECT_EQ(driver->call_counts().at("allocate"), 0);
}

TEST_P(SimDriverModes, AStickyFaultBreaksTheDevice) {
    driver->set_faults(
        {{.call = "launch", .nth = 1, .code = 719, .code_name = "CUDA_ERROR_LAUNCH_FAILED", .sticky = true}});
    const DevicePtr x = driver->allocate(8);
    for (int i = 0; i < 2; ++i)
        expect_code("CUDA_ERROR_LAUNCH_FAILED", [&] { affine(*driver, stream, x, 1, 1); });
    expect_code("CUDA_ERROR_LAUNCH_FAILED", [&] { driver->synchronize(); });
    driver->free(x);
    EXPECT_EQ(driver->live_allocations(), 0u);
    driver->set_faults({});
    driver->synchronize();
}

TEST_P(SimDriverModes, FaultPlansAreChecked) {
    for (const char* call : {"alocate", "", "free", "stream_destroy", "kind"}) {
        expect_kind(ErrorKind::value,
                    [&] { driver->set_faults({{.call = call, .nth = 1, .code = 1, .code_name = "X"}}); });
    }
    expect_kind(ErrorKind::value,
                [&] { driver->set_faults({{.call = "fill", .nth = 0, .code = 1, .code_name = "X"}}); });
}
