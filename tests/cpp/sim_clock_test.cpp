// The simulated device on a virtual clock: when work begins and ends.
#include <chrono>
#include <cmath>
#include <vector>

#include "base/clock.hpp"
#include "runtime/kernel.hpp"
#include "runtime/stream.hpp"
#include "sim_support.hpp"

using namespace gpk;
using namespace sim;

namespace {

constexpr std::int64_t kMicrosecond = 1000;

void nothing_host(const void*, const LaunchConfig&) {}
constexpr KernelDef kNothing{.name = "nothing", .twin = nothing_host};

// Numbers that are easy in the head: 1 flop, byte or copied byte takes a nanosecond on the whole device.
constexpr SimRates kRates{.flops = 1e9, .bytes = 1e9, .bytes_to_device = 1e9, .bytes_to_host = 5e8};

class SimClock : public testing::Test {
   protected:
    void start(const SimRates& rates = kRates) {
        driver = make_sim_driver({.memory_bytes = 1 << 20,
                                  .multiprocessors = 132,
                                  .sm_group_size = 8,
                                  .clock = clock,
                                  .rates = rates});
    }
    void SetUp() override { start(); }

    void launch(StreamHandle stream, const SimCost& cost) {
        SimDriver::expect_cost(cost);
        driver->launch(stream, driver->function(kNothing), {}, nullptr, 0);
    }
    EventHandle record(StreamHandle stream) {
        const EventHandle event = driver->event_create(true);
        driver->event_record(event, stream);
        return event;
    }
    // When an event was reached, by the clock.
    std::int64_t when(EventHandle event) {
        driver->event_synchronize(event);
        return std::llround(static_cast<double>(driver->event_elapsed_ms(origin(), event)) * 1e6);
    }
    EventHandle origin() {
        if (origin_ == nullptr) {
            origin_ = driver->event_create(true);
            driver->event_record(origin_, driver->stream_create(0));
        }
        return origin_;
    }
    StreamHandle within(std::vector<int> groups, int priority = 0) {
        return driver->stream_create(priority, driver->sm_partition_create(groups));
    }
    std::vector<int> range(int from, int to) {
        std::vector<int> all;
        for (int i = from; i < to; ++i) all.push_back(i);
        return all;
    }

    std::shared_ptr<VirtualClock> clock = std::make_shared<VirtualClock>();
    std::unique_ptr<SimDriver> driver;
    EventHandle origin_ = nullptr;
};

}  // namespace

TEST_F(SimClock, TimeMovesWhenSomebodyWaits) {
    const StreamHandle stream = driver->stream_create(0);
    origin();
    launch(stream, {.flops = 700});
    const EventHandle first = record(stream);
    launch(stream, {.bytes = 300});
    const EventHandle second = record(stream);
    EXPECT_EQ(clock->now_ns(), 0);
    EXPECT_EQ(driver->next_end_ns(), 700);
    EXPECT_FALSE(driver->event_query(first));
    driver->event_synchronize(first);
    EXPECT_EQ(clock->now_ns(), 700);
    EXPECT_FALSE(driver->event_query(second));
    EXPECT_FALSE(driver->stream_query(stream));
    clock->advance_to(999);
    EXPECT_FALSE(driver->event_query(second));
    clock->advance_to(5000);  // somebody else moved it: the work ended in its own time
    EXPECT_TRUE(driver->event_query(second));
    EXPECT_EQ(when(second), 1000);
    EXPECT_EQ(driver->next_end_ns(), std::nullopt);
    launch(stream, {.flops = 10});  // begins now, not when the last one ended
    driver->stream_synchronize(stream);
    EXPECT_EQ(clock->now_ns(), 5010);
    driver->synchronize();
    EXPECT_EQ(clock->now_ns(), 5010);
}

TEST_F(SimClock, AKernelTakesTheLongerOfComputeAndMemory) {
    const StreamHandle stream = driver->stream_create(0);
    launch(stream, {.flops = 400, .bytes = 900});
    driver->synchronize();
    EXPECT_EQ(clock->now_ns(), 900);
    launch(stream, {.flops = 950, .bytes = 900});
    driver->synchronize();
    EXPECT_EQ(clock->now_ns(), 1850);
    start({.flops = 1e9, .launch_ns = 2 * kMicrosecond});
    const StreamHandle other = driver->stream_create(0);
    launch(other, {.flops = 500, .bytes = 1e30});  // bytes take no time without a rate
    launch(other, {});
    driver->synchronize();
    EXPECT_EQ(clock->now_ns(), 1850 + 2500 + 2000);
}

TEST_F(SimClock, KernelsShareTheDevice) {
    const StreamHandle a = driver->stream_create(0), b = driver->stream_create(0);
    origin();
    launch(a, {.flops = 1000});
    launch(b, {.flops = 3000});
    const EventHandle ends_first = record(a), ends_last = record(b);
    EXPECT_EQ(when(ends_first), 2000);  // half each
    EXPECT_EQ(when(ends_last), 4000);   // then the other has it all
}

TEST_F(SimClock, BandwidthGoesToWhoNeedsIt) {
    const StreamHandle a = within(range(0, 8)), b = within(range(8, 16));
    origin();
    // Half the SMs: 1000 flops take 2000 ns, in which 500 bytes are a quarter of the bandwidth.
    launch(a, {.flops = 1000, .bytes = 500});
    launch(b, {.bytes = 3000});
    const EventHandle compute = record(a), memory = record(b);
    EXPECT_EQ(when(compute), 2000);
    EXPECT_EQ(when(memory), 3500);  // 3/4 of it for 2000 ns, then all
}

TEST_F(SimClock, PartitionsDoNotShareSms) {
    const StreamHandle half = within(range(0, 8)), other = within(range(8, 16)),
                       quarter = within(range(0, 4));
    origin();
    launch(half, {.flops = 1000});
    launch(other, {.flops = 1000});
    EXPECT_EQ(when(record(half)), 2000);
    EXPECT_EQ(when(record(other)), 2000);
    EXPECT_EQ(driver->next_end_ns(), std::nullopt);
    // Partitions that overlap do: the quarter is half of the first one's SMs.
    launch(half, {.flops = 300});
    launch(quarter, {.flops = 100});
    const EventHandle first = record(half), second = record(quarter);
    EXPECT_EQ(when(first) - 2000, 800);   // 4 groups of its own and 4 shared: 6/16 a ns
    EXPECT_EQ(when(second) - 2000, 800);  // 2/16
}

TEST_F(SimClock, MoreUrgentStreamsGetTheSms) {
    const StreamHandle low = driver->stream_create(0), high = driver->stream_create(-3);
    origin();
    launch(low, {.flops = 1000});
    clock->advance_to(400);
    launch(high, {.flops = 200});
    EXPECT_EQ(when(record(high)), 600);
    EXPECT_EQ(when(record(low)), 1200);
}

TEST_F(SimClock, CopiesRunBesideKernelsOnTheirEngines) {
    const StreamHandle a = driver->stream_create(0), b = driver->stream_create(0),
                       c = driver->stream_create(0);
    const DevicePtr x = driver->allocate(4000);
    void* host = driver->allocate_host(4000);
    origin();
    launch(a, {.flops = 1000});
    driver->copy_to_device(b, x, host, 600);
    driver->copy_to_device(c, x, host, 300);  // behind it, on the same engine
    driver->copy_to_host(c, host, x, 100);    // in the stream's order
    const EventHandle kernel = record(a), bulk = record(b), last = record(c);
    EXPECT_EQ(when(bulk), 600);
    EXPECT_EQ(when(kernel), 1000);
    EXPECT_EQ(when(last), 1100);
    driver->copy_on_device(a, x, x + 2000, 50);  // read and written
    driver->fill(a, x, 1, 70);
    EXPECT_EQ(when(record(a)), 1100 + 170);
    std::vector<char> pageable(100);
    driver->copy_to_host(a, pageable.data(), x, 100);  // has waited
    EXPECT_EQ(clock->now_ns(), 1270 + 200);
    EXPECT_EQ(pageable[69], 1);
}

TEST_F(SimClock, StreamsWaitForEvents) {
    const StreamHandle a = driver->stream_create(0), b = driver->stream_create(0);
    origin();
    launch(a, {.flops = 500});
    const EventHandle first = record(a);
    driver->stream_wait_event(b, first);
    launch(b, {.flops = 200});
    const EventHandle second = record(b);
    driver->stream_wait_event(a, second);
    launch(a, {.flops = 300});
    driver->stream_destroy(a);  // what was queued still runs
    driver->stream_destroy(b);
    EXPECT_EQ(when(second), 700);
    driver->synchronize();
    EXPECT_EQ(clock->now_ns(), 1000);
}

TEST_F(SimClock, GraphsRunTheirNodesSideBySide) {
    start({.flops = 1e9, .bytes = 1e9, .bytes_to_device = 1e9, .launch_ns = 100});
    const StreamHandle a = driver->stream_create(0), b = driver->stream_create(0);
    const DevicePtr x = driver->allocate(1000);
    void* host = driver->allocate_host(1000);
    const EventHandle fork = driver->event_create(false), join = driver->event_create(false);
    driver->capture_begin(a);
    launch(a, {.flops = 100});
    driver->event_record(fork, a);
    driver->stream_wait_event(b, fork);
    launch(a, {.flops = 700});
    driver->copy_to_device(b, x, host, 400);
    driver->event_record(join, b);
    driver->stream_wait_event(a, join);
    launch(a, {.bytes = 50});
    const GraphHandle graph = driver->capture_end(a);
    EXPECT_EQ(clock->now_ns(), 0);
    driver->graph_launch(graph, a);
    driver->graph_launch(graph, b);  // launches of one graph follow each other
    driver->synchronize();
    EXPECT_EQ(clock->now_ns(), 2 * (100 + 100 + 700 + 50));
}

TEST_F(SimClock, WorkHasItsEffectAtItsEnd) {
    const StreamHandle stream = driver->stream_create(0);
    const DevicePtr x = driver->allocate(8);
    auto* const word = reinterpret_cast<std::int64_t*>(x);
    *word = 3;
    const AffineParams params{word, 2, 1, 1};
    SimDriver::expect_cost({.flops = 10});
    driver->launch(stream, driver->function(kAffine), {}, &params, sizeof params);
    clock->advance_to(9);
    EXPECT_FALSE(driver->stream_query(stream));
    EXPECT_EQ(*word, 3);
    clock->advance_to(10);
    EXPECT_TRUE(driver->stream_query(stream));
    EXPECT_EQ(*word, 7);
    driver->launch(stream, driver->function(kFailing), {}, nullptr, 0);
    expect_kind(ErrorKind::value, [&] { driver->stream_synchronize(stream); });
    // Longer than anybody waits.
    launch(stream, {.flops = 1e300});
    expect_code("CUDA_ERROR_UNKNOWN", [&] { driver->synchronize(); });
}

TEST_F(SimClock, WorkLeftBehindGoesWithTheDevice) {
    const StreamHandle a = driver->stream_create(0), b = driver->stream_create(0);
    launch(a, {.flops = 1000});
    driver->stream_wait_event(b, record(a));
    launch(b, {.flops = 1000});
    driver->stream_destroy(b);
    driver.reset();
    EXPECT_EQ(clock->now_ns(), 0);
}

TEST_F(SimClock, LaunchesDeclareTheirCosts) {
    TestDevice sim({.clock = clock, .rates = kRates});
    sim.device.launcher().add_hook(std::make_shared<DeclaredCosts>());
    static const Kernel kernel(kNothing);
    Stream& stream = *sim.device.default_stream();
    sim.device.launcher().launch(stream, kernel, {}, nullptr, 0, {.flops = 250, .bytes = 100});
    sim.device.launcher().launch(stream, kernel, {}, nullptr, 0, {.bytes = 50});
    stream.synchronize();
    EXPECT_EQ(clock->now_ns(), 300);
}

TEST_F(SimClock, OptionsAreChecked) {
    const auto refused = [&](SimOptions options) {
        options.clock = clock;
        expect_kind(ErrorKind::value, [&] { make_sim_driver(options); });
    };
    refused({.interleaved = true});
    refused({.rates = {.flops = -1}});
    refused({.rates = {.bytes = std::nan("")}});
    refused({.rates = {.bytes_to_host = INFINITY}});
    refused({.rates = {.launch_ns = -1}});
    EXPECT_EQ(make_sim_driver({.memory_bytes = 1 << 20})->next_end_ns(), std::nullopt);
}

// The same calls give the same times, to the nanosecond, and quickly.
TEST_F(SimClock, ADayIsSoonOver) {
    const auto day = [&] {
        clock = std::make_shared<VirtualClock>();
        start({.flops = 1e15, .bytes = 3e12, .bytes_to_device = 5e10, .launch_ns = 3 * kMicrosecond});
        std::vector<StreamHandle> streams;
        for (int i = 0; i < 4; ++i) streams.push_back(within(range(4 * i, 4 * i + 4), -(i % 3)));
        std::uint64_t hash = 0;
        for (int i = 0; i < 50000; ++i) {
            const StreamHandle stream = streams[static_cast<std::size_t>(i) % 4];
            launch(stream, {.flops = 1e9 * (1 + i % 7), .bytes = 1e6 * (1 + i % 11)});
            if (i % 16 != 0) continue;
            driver->stream_synchronize(stream);
            hash = hash * 1099511628211u + static_cast<std::uint64_t>(clock->now_ns());
        }
        driver->synchronize();
        return hash + static_cast<std::uint64_t>(clock->now_ns());
    };
    const auto begin = std::chrono::steady_clock::now();
    const std::uint64_t first = day();
    RecordProperty(
        "events_per_second",
        std::to_string(100000 /
                       std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count()));
    EXPECT_EQ(first, day());
}
