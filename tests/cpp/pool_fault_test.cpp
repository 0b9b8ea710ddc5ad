// Memory under faults: every driver call of an allocation, a release, an eviction and a reload is made to
// fail, with every error code. What was not done has changed nothing: charges, counts and contents are as
// before.
#include <array>

#include "evict_support.hpp"
#include "fault_support.hpp"
#include "runtime/graph.hpp"

using namespace gpk;
using namespace sim;

namespace {

constexpr std::size_t kQuota = 64 * kPage;
constexpr std::size_t kRoom = 2 * kPage;  // of programs that evict: their arrays have a page each

// Blocks of a scope, given back at its end, whatever happened to the device.
class Held {
   public:
    Held(faults::Run& run, MemoryPool& pool) : run_(run), pool_(pool) {}
    ~Held() {
        while (!blocks_.empty()) drop();
    }
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;

    // Done, or nothing is charged, counted or lost; and then a second attempt works.
    Block& take(std::size_t bytes, const std::shared_ptr<Stream>& stream) {
        Tenant* const tenant = stream->tenant().get();
        const auto used = [&] { return tenant != nullptr ? tenant->memory_used() : 0; };
        const std::size_t before = used(), live = pool_.stats().live_bytes;
        run_.whole([&] { blocks_.push_back(pool_.allocate(bytes, stream)); },
                   [&] {
                       EXPECT_EQ(used(), before);
                       EXPECT_EQ(pool_.stats().live_bytes, live);
                       EXPECT_EQ(pool_.stats().live_blocks, blocks_.size());
                       if (stream->capture() == nullptr) blocks_.push_back(pool_.allocate(bytes, stream));
                   });
        return blocks_.back();
    }
    void drop(const std::vector<std::shared_ptr<Stream>>& others = {}) {
        Block block = std::move(blocks_.back());
        blocks_.pop_back();
        pool_.release(std::move(block), others);
    }

   private:
    faults::Run& run_;
    MemoryPool& pool_;
    std::vector<Block> blocks_;
};

constexpr std::uint8_t kSecret = 7;

// Cleared, or never another's.
void expect_no_secret(Stream& stream, const Block& block) {
    std::vector<std::uint8_t> got(block.class_bytes, kSecret);
    stream.device().launcher().copy_to_host(stream, got.data(), block.pointer, got.size());
    stream.synchronize();
    EXPECT_EQ(std::count(got.begin(), got.end(), kSecret), 0);
}

// Fresh memory of both kinds, memory that another stream used, and another tenant's, which is cleared first.
void allocate(faults::Run& run) {
    MemoryPool& pool = MemoryPool::of(run.device);
    const auto one = Stream::create_for(Tenant::create({.name = "one", .memory_limit = kQuota}), run.device);
    const auto two = Stream::create_for(Tenant::create({.name = "two", .memory_limit = kQuota}), run.device);
    {
        Held held(run, pool);
        for (const std::size_t bytes : {std::size_t{1000}, 8 * kPage}) {
            const Block mine = held.take(bytes, one);
            run.device.launcher().fill(*one, mine.pointer, kSecret, mine.class_bytes);
            held.drop({two});
            expect_no_secret(*two, held.take(bytes, two));
            held.take(bytes, one);
        }
        expect_kind(ErrorKind::memory, [&] { pool.allocate(kQuota + 1, one); });
    }
    EXPECT_EQ(one->tenant()->memory_used() + two->tenant()->memory_used(), 0u);
}

// The cache goes back when the limit asks for it, and the graph's arena with the graph.
void make_room(faults::Run& run) {
    MemoryPool& pool = MemoryPool::of(run.device);
    const auto stream = Stream::create(run.device);
    Held held(run, pool);
    held.take(8 * kPage, stream);
    held.drop();
    held.take(9 * kPage, stream);
    pool.trim();
    const auto graph = Graph::begin(stream);
    try {
        held.take(3000, stream);
        held.drop();
        graph->end();
    } catch (...) {
        graph->abandon();
        throw;
    }
}

const std::array kValues{5, 1005, 2005};

using Arrays = std::array<Array, kValues.size()>;

// Every array that was made, whether it is on the device or away.
void expect_contents(const Arrays& all) {
    for (std::size_t i = 0; i < all.size(); ++i) {
        EXPECT_TRUE(!all[i].storage() || holds_counted(all[i], kValues[i])) << i;
    }
}

void evict(faults::Run& run) {
    const Arrays all{counted(run.device, 5)};
    const DevicePtr address = all[0].data();
    run.whole([&] { EXPECT_TRUE(all[0].storage()->evict()); }, [&] { expect_contents(all); });
    EXPECT_FALSE(all[0].storage()->on_device());
    EXPECT_EQ(MemoryPool::of(run.device).stats().evicted_bytes, kPage);
    run.whole([&] { expect_contents(all); }, [&] { expect_contents(all); });
    EXPECT_EQ(all[0].data(), address);
}

void reload(faults::Run& run) {
    const Arrays all{counted(run.device, 5)};
    EXPECT_TRUE(all[0].storage()->evict());
    run.whole([&] { affine(all[0], 1, 0); },
              [&] {
                  expect_contents(all);
                  // Nor is it stuck on the device.
                  EXPECT_TRUE(all[0].storage()->evict());
                  expect_contents(all);
              });
    EXPECT_TRUE(all[0].storage()->on_device());
    expect_contents(all);
}

// Two fit; the third sends one away, and reading them all the others in turn.
void evict_for_another(faults::Run& run) {
    Arrays all{counted(run.device, 5), counted(run.device, 1005)};
    run.whole([&] { all[2] = counted(run.device, 2005); }, [&] { expect_contents(all); });
    run.whole([&] { expect_contents(all); }, [&] { expect_contents(all); });
    EXPECT_LE(MemoryPool::of(run.device).stats().reserved_bytes, kRoom);
}

// What is away or leaving is freed, with nothing copied back.
void free_while_away(faults::Run& run) {
    const auto stream = Stream::create(run.device);
    const StreamScope scope(stream);
    Array away = counted(run.device, 5);
    EXPECT_TRUE(away.storage()->evict());
    away = Array();
    Arrays all{counted(run.device, 5), counted(run.device, 1005)};
    const Array third = counted(run.device, 2005);
    all = {};
    EXPECT_TRUE(holds_counted(third, 2005));
}

void evicting(TestDevice& target) {
    MemoryPool::of(target.device).set_limit(kRoom);
    MemoryPool::of(target.device).set_eviction(true);
}

SimOptions small() {
    SimOptions options = paged(11);
    options.memory_bytes = std::size_t{1} << 20;
    return options;
}

const faults::Scenario kScenarios[] = {
    {.name = "allocate", .program = allocate, .options = small(), .most_events = 3},
    {.name = "make room",
     .program = make_room,
     .options = small(),
     .prepare = [](TestDevice& target) { MemoryPool::of(target.device).set_limit(12 * kPage); },
     .most_events = 3},
    {.name = "evict",
     .program = evict,
     .options = small(),
     .prepare = evicting,
     .most_streams = 3,
     .most_events = 4},
    {.name = "reload",
     .program = reload,
     .options = small(),
     .prepare = evicting,
     .most_streams = 3,
     .most_events = 4},
    {.name = "evict for another",
     .program = evict_for_another,
     .options = small(),
     .prepare = evicting,
     .most_streams = 3,
     .most_events = 4},
    {.name = "free while away",
     .program = free_while_away,
     .options = small(),
     .prepare = evicting,
     .most_streams = 3,
     .most_events = 4},
};

class PoolFault : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Programs, PoolFault, ::testing::Range(0, static_cast<int>(std::size(kScenarios))));

}  // namespace

TEST_P(PoolFault, EveryCallMayFailWithEveryCode) {
    faults::Watchdog watchdog;
    const faults::Swept swept = faults::sweep(kScenarios[GetParam()], watchdog);
    EXPECT_EQ(swept.codes.size(), faults::kCodesMet);
    EXPECT_GT(swept.planned, 100);
    EXPECT_GT(swept.thrown, swept.planned / 2);
}
