// Partitions under faults: every driver call of making, entering, resizing and destroying one is made to
// fail, with every error code. A step that fails leaves the partition, its streams, the ledger and its
// neighbour as they were, and can be taken again.
#include "fault_support.hpp"
#include "partition_support.hpp"

using namespace gpk;
using namespace partitions;
using namespace sim;

namespace {

std::size_t shares(Device& device) { return device.attached<DeviceLedger>().ledger->entries().size(); }

const PartitionLimits kHalf = PartitionLimits().compute(0.5).memory(8 * kMiB);

// Made, or not there: neither in the manager nor in the ledger.
void create(faults::Run& run) {
    PartitionManager manager({.device = &run.device});
    std::shared_ptr<Partition> a;
    const auto make = [&] { a = manager.create("a", "", kHalf); };
    run.whole(make, [&] {
        EXPECT_TRUE(manager.list().empty());
        EXPECT_EQ(shares(run.device), 0u);
        make();
        EXPECT_EQ(ran_on(Scope(a).stream), 0x00ff);
    });
    const auto b = manager.create_anonymous("b", PartitionLimits().compute(0.25));
    run.whole([&] { EXPECT_EQ(ran_on(Scope(b).stream), 0x0f00); },
              [&] {
                  EXPECT_EQ(b->usage().entered, 0);
                  EXPECT_EQ(b->usage().memory_used, 0u);
                  EXPECT_EQ(ran_on(Scope(b).stream), 0x0f00);
              });
}

void resize(faults::Run& run) {
    PartitionManager manager({.device = &run.device});
    const auto a = manager.create("a", "", kHalf);
    const auto b = manager.create("b", "", PartitionLimits().compute(0.25));
    const Scope inside(b);
    const auto kept = Stream::create_for(a->tenant(), run.device),
               other = Stream::create_for(a->tenant(), run.device);
    const auto resize_to = [&](double compute, std::size_t memory) {
        manager.resize(*a, PartitionLimits().compute(compute).memory(memory).streams(4));
    };
    // Wider and narrower; where it fails, all is as it was, and the step can be taken again.
    const auto step = [&](double compute, std::size_t memory, std::int64_t bits) {
        const PartitionLimits limits = a->limits();
        const auto groups = a->sm_groups();
        const std::int64_t before = ran_on(kept);
        run.whole([&] { resize_to(compute, memory); },
                  [&] {
                      EXPECT_TRUE(a->limits() == limits);
                      EXPECT_EQ(a->sm_groups(), groups);
                      EXPECT_EQ(a->tenant()->memory_limit(), limits.memory());
                      EXPECT_EQ(ran_on(kept), before);
                      EXPECT_EQ(ran_on(other), before);
                      EXPECT_EQ(ran_on(inside.stream), 0x0f00);
                      EXPECT_EQ(shares(run.device), 2u);
                      resize_to(compute, memory);
                      EXPECT_EQ(ran_on(other), bits);
                  });
        EXPECT_EQ(ran_on(kept), bits);
    };
    step(0.75, 9 * kMiB, 0xf0ff);
    step(0.25, 4 * kMiB, 0x000f);
    EXPECT_EQ(ran_on(inside.stream), 0x0f00);
}

void destroy(faults::Run& run) {
    PartitionManager manager({.device = &run.device});
    const auto a = manager.create("a", "", kHalf);
    const auto b = manager.create("b", "", PartitionLimits().compute(0.25));
    const auto kept = Stream::create_for(a->tenant(), run.device);
    EXPECT_EQ(ran_on(kept), 0x00ff);
    run.whole([&] { manager.destroy("a"); },
              [&] {
                  EXPECT_TRUE(a->alive());
                  EXPECT_EQ(manager.get("a"), a);
                  EXPECT_EQ(ran_on(kept), 0x00ff);
                  EXPECT_EQ(shares(run.device), 2u);
                  manager.destroy("a");
              });
    EXPECT_FALSE(a->alive());
    const ErrorKind refusal = run.device.lost() ? ErrorKind::driver : ErrorKind::unsupported;
    expect_kind(refusal, [&] { run.device.launcher().fill(*kept, 1, 1, 8); });
    EXPECT_EQ(shares(run.device), 1u);
    EXPECT_EQ(ran_on(Scope(b).stream), 0x0f00);
}

void nothing_promised(TestDevice& target, const std::string& where) {
    EXPECT_EQ(shares(target.device), 0u) << where;
}

faults::Scenario scenario(const char* name, void (*program)(faults::Run&)) {
    return {.name = name,
            .program = program,
            .options = {.memory_bytes = 64 * kMiB, .seed = 3, .multiprocessors = 132, .sm_group_size = 8},
            .settle = nothing_promised,
            .most_streams = 2,  // the default one, and the one that stands in for those of ended partitions
            .most_events = 2};
}

const faults::Scenario kScenarios[] = {scenario("create", create), scenario("resize", resize),
                                       scenario("destroy", destroy)};

class PartitionFault : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Programs, PartitionFault,
                         ::testing::Range(0, static_cast<int>(std::size(kScenarios))));

}  // namespace

TEST_P(PartitionFault, EveryCallMayFailWithEveryCode) {
    faults::Watchdog watchdog;
    const faults::Swept swept = faults::sweep(kScenarios[GetParam()], watchdog);
    EXPECT_EQ(swept.codes.size(), faults::kCodesMet);
    EXPECT_GT(swept.planned, 100);
    EXPECT_GT(swept.thrown, swept.planned * 3 / 4);
}
