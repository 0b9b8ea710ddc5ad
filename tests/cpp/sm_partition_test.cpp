// SM partitions: on either device, and which SMs work runs on in the simulated one.
#include <mutex>
#include <numeric>
#include <vector>

#include "runtime/stream.hpp"
#include "runtime/tenant.hpp"
#include "sim_support.hpp"
#include "support.hpp"

using namespace gpk;
using namespace sim;

TEST(SmPartition, StreamsInPartitionsRunWork) {
    Device& device = test_device();
    Driver& driver = device.driver();
    const DeviceInfo& info = device.info();
    if (info.sm_groups < 2) GTEST_SKIP() << "no SM partitions here";
    EXPECT_GT(info.sm_group_size, 0);
    EXPECT_LE(info.sm_groups * info.sm_group_size, info.multiprocessors);
    std::vector<int> low(static_cast<std::size_t>(info.sm_groups / 2)), high(low.size());
    std::iota(low.begin(), low.end(), 0);
    std::iota(high.begin(), high.end(), info.sm_groups / 2);
    const SmPartitionHandle one = driver.sm_partition_create(low), two = driver.sm_partition_create(high);
    const StreamHandle a = driver.stream_create(0, one), b = driver.stream_create(info.highest_priority, two);
    const StreamHandle outside = driver.stream_create(0);
    constexpr std::size_t kBytes = 1 << 20;
    const DevicePtr x = driver.allocate(kBytes), y = driver.allocate(kBytes);
    const EventHandle event = driver.event_create(false), done = driver.event_create(false);
    // Over the borders of the partitions, and out of them.
    driver.fill(a, x, 1, kBytes);
    driver.fill(a, x, 2, kBytes / 2);
    driver.event_record(event, a);
    driver.stream_wait_event(b, event);
    driver.copy_on_device(b, y, x, kBytes);
    driver.fill(b, y + kBytes - 1, 3, 1);
    driver.event_record(done, b);
    driver.stream_wait_event(outside, done);
    std::vector<std::uint8_t> host(kBytes);
    driver.copy_to_host(outside, host.data(), y, kBytes);
    driver.stream_synchronize(outside);
    EXPECT_EQ(host[0], 2);
    EXPECT_EQ(host[kBytes / 2 - 1], 2);
    EXPECT_EQ(host[kBytes / 2], 1);
    EXPECT_EQ(host[kBytes - 1], 3);
    driver.stream_synchronize(a);
    driver.stream_synchronize(b);
    EXPECT_TRUE(driver.stream_query(b));
    for (const EventHandle each : {event, done}) driver.event_destroy(each);
    for (const StreamHandle each : {a, b, outside}) driver.stream_destroy(each);
    driver.sm_partition_destroy(one);
    driver.sm_partition_destroy(two);
    driver.free(x);
    driver.free(y);
}

TEST(SmPartition, GroupsAreChecked) {
    Device& device = test_device();
    const int groups = device.info().sm_groups;
    if (groups == 0) GTEST_SKIP() << "no SM partitions here";
    for (const std::vector<int>& bad : std::vector<std::vector<int>>{{}, {-1}, {groups}, {0, 0}, {INT_MAX}}) {
        expect_kind(ErrorKind::value, [&] { device.driver().sm_partition_create(bad); });
    }
}

TEST(SmPartition, ManyComeAndGo) {
    Device& device = test_device();
    Driver& driver = device.driver();
    if (device.info().sm_groups == 0) GTEST_SKIP() << "no SM partitions here";
    std::size_t free_bytes = 0;
    for (int round = 0; round < 40; ++round) {
        const int groups[] = {round % device.info().sm_groups};
        const SmPartitionHandle partition = driver.sm_partition_create(groups);
        const StreamHandle stream = driver.stream_create(0, partition);
        driver.stream_synchronize(stream);
        driver.stream_destroy(stream);
        driver.sm_partition_destroy(partition);
        if (round == 19) free_bytes = driver.memory_info().free_bytes;
    }
    EXPECT_EQ(driver.memory_info().free_bytes, free_bytes);
}

// -- In the simulated device ---------------------------------------------------------------------------

namespace {

// Writes one bit a group it ran on, as a kernel would that reads %smid.
struct WhereParams {
    std::int64_t* bits;
};
void where_host(const void* params, const LaunchConfig&) {
    std::int64_t bits = 0;
    for (const int group : sim_running_groups()) bits |= std::int64_t{1} << group;
    *static_cast<const WhereParams*>(params)->bits = bits;
}
constexpr KernelDef kWhere{.name = "where", .twin = where_host};

}  // namespace

class SimSmPartition : public testing::TestWithParam<bool> {
   protected:
    void launch(StreamHandle stream, DevicePtr to) {
        const WhereParams params{reinterpret_cast<std::int64_t*>(to)};
        driver->launch(stream, driver->function(kWhere), {}, &params, sizeof params);
    }
    std::int64_t ran_on(StreamHandle stream) {
        launch(stream, x);
        std::int64_t bits = -1;
        driver->copy_to_host(stream, &bits, x, sizeof bits);
        return bits;
    }

    std::unique_ptr<SimDriver> driver = make_sim_driver(
        {.memory_bytes = 1 << 20, .interleaved = GetParam(), .multiprocessors = 132, .sm_group_size = 8});
    DevicePtr x = driver->allocate(8);
};
INSTANTIATE_TEST_SUITE_P(Modes, SimSmPartition, ::testing::Bool(),
                         [](const auto& mode) { return mode.param ? "interleaved" : "immediate"; });

TEST_P(SimSmPartition, WorkRunsOnItsGroupsAlone) {
    EXPECT_EQ(driver->info().multiprocessors, 132);
    EXPECT_EQ(driver->info().sm_groups, 16);  // and 4 SMs that are not offered
    EXPECT_EQ(driver->info().sm_group_size, 8);
    const int low[] = {0, 1, 5}, high[] = {15, 7};
    const SmPartitionHandle one = driver->sm_partition_create(low), two = driver->sm_partition_create(high);
    const StreamHandle a = driver->stream_create(0, one), b = driver->stream_create(0, two);
    const StreamHandle all = driver->stream_create(0);
    EXPECT_EQ(ran_on(a), 0b100011);
    EXPECT_EQ(ran_on(b), (1 << 15) | (1 << 7));
    EXPECT_EQ(ran_on(all), 0);
    EXPECT_EQ(driver->sm_groups_of(a), (std::vector<int>{0, 1, 5}));
    EXPECT_TRUE(driver->sm_groups_of(all).empty());
    // A graph keeps the SMs of its capture, wherever it is launched.
    driver->capture_begin(a);
    launch(a, x);
    const GraphHandle graph = driver->capture_end(a);
    driver->graph_launch(graph, b);
    std::int64_t bits = 0;
    driver->copy_to_host(b, &bits, x, sizeof bits);
    EXPECT_EQ(bits, 0b100011);
    EXPECT_TRUE(sim_running_groups().empty());
}

TEST_P(SimSmPartition, StreamsGoBeforeTheirPartition) {
    const int groups[] = {3};
    const SmPartitionHandle partition = driver->sm_partition_create(groups);
    const SmPartitionHandle overlapping = driver->sm_partition_create(groups);
    EXPECT_EQ(driver->live_sm_partitions(), 2u);
    const StreamHandle first = driver->stream_create(0, partition),
                       late = driver->stream_create(0, partition);
    driver->stream_destroy(first);
    driver->sm_partition_destroy(partition);
    EXPECT_EQ(driver->invalid_frees(), 0u);
    const char* const destroyed = "CUDA_ERROR_CONTEXT_IS_DESTROYED";
    expect_code(destroyed, [&] { driver->fill(late, x, 1, 8); });
    expect_code(destroyed, [&] { driver->stream_synchronize(late); });
    expect_code("CUDA_ERROR_INVALID_HANDLE", [&] { driver->stream_create(0, partition); });
    driver->stream_destroy(late);
    EXPECT_EQ(driver->invalid_frees(), 1u);
    driver->sm_partition_destroy(partition);
    EXPECT_EQ(driver->invalid_frees(), 2u);
    driver->sm_partition_destroy(nullptr);
    driver->sm_partition_destroy(overlapping);
    EXPECT_EQ(driver->live_sm_partitions(), 0u);
    EXPECT_EQ(driver->live_streams(), 0u);
}

TEST(SimSmPartitions, EveryHostHasTheGroupsOfAnH100) {
    const DeviceInfo info = make_sim_driver({.memory_bytes = 1 << 20})->info();
    EXPECT_EQ(info.sm_groups, 16);
    EXPECT_EQ(info.sm_groups * info.sm_group_size, info.multiprocessors);
    const auto without = make_sim_driver({.memory_bytes = 1 << 20, .sm_partitions = false});
    EXPECT_EQ(without->info().sm_groups, 0);
    EXPECT_EQ(without->info().sm_group_size, 0);
    const int groups[] = {0};
    expect_kind(ErrorKind::unsupported, [&] { without->sm_partition_create(groups); });
    expect_kind(ErrorKind::value, [] { make_sim_driver({.multiprocessors = -1}); });
}

TEST(SimSmPartitions, ATenantsStreamsRunInIts) {
    TestDevice sim({.multiprocessors = 132, .sm_group_size = 8});
    const auto tenant = Tenant::create(
        {.name = "t", .sms = std::make_shared<SmPartition>(sim.device, std::vector<int>{2, 4})});
    EXPECT_EQ(tenant->multiprocessors(sim.device), 16);
    const auto stream = Stream::create_for(tenant, sim.device);
    EXPECT_EQ(sim.driver.sm_groups_of(stream->handle()), (std::vector<int>{2, 4}));
    sim.driver.set_faults(
        {{.call = "sm_partition_create", .nth = 1, .code = 2, .code_name = "CUDA_ERROR_OUT_OF_MEMORY"}});
    EXPECT_THROW(SmPartition(sim.device, {1}), DriverError);
    EXPECT_EQ(sim.driver.live_sm_partitions(), 1u);
}
