// The pool with eviction against a plain model: long random programs of three tenants over a device that is
// too small for them. The model knows what each array holds, and who pays for it; where an array is, the pool
// says.
#include <random>

#include "evict_support.hpp"
#include "fault_support.hpp"

using namespace gpk;
using namespace sim;

namespace {

constexpr int kWalks = faults::kCodesMet == faults::kCodeCount ? 10 : 3;  // sanitizers are slow
constexpr std::uint64_t kSteps = 10'000;                                  // of each walk
constexpr std::size_t kRoom = 24 * kPage;

struct Known {
    Array array;
    std::size_t party = 0;
    std::int64_t first = 0, step = 1;  // of words that count up
};

struct Party {
    std::shared_ptr<Tenant> tenant;
    std::shared_ptr<Stream> stream;
    std::size_t limit;

    Party(Device& device, const char* name, QosClass qos, std::size_t limit)
        : tenant(Tenant::create({.name = name, .qos = qos, .memory_limit = limit})),
          stream(Stream::create_for(tenant, device)),
          limit(limit) {}
};

class Walk {
   public:
    explicit Walk(std::uint64_t seed) : random_(seed), target_(paged(seed)) {
        pool_.set_limit(kRoom);
        pool_.set_eviction(true);
    }

    std::uint64_t steps = 0, refused = 0, checked = 0;

    void run() {
        while (steps < kSteps && !::testing::Test::HasFatalFailure()) {
            take();
            ++steps;
            check_charges();
        }
        for (const Known& each : known_) attempt(each.party, [&] { check(each); });
        const PoolStats stats = pool_.stats();
        EXPECT_GT(stats.evictions, kSteps / 50);
        EXPECT_GT(stats.reloads, kSteps / 100);
        known_.clear();
        pool_.trim();
        EXPECT_EQ(target_.driver.bytes_in_use(), 0u);
        EXPECT_EQ(target_.driver.live_physical() + target_.driver.live_reservations(), 0u);
        EXPECT_EQ(target_.driver.host_bytes(), 0u);
        for (const Party& each : parties_) EXPECT_EQ(each.tenant->memory_used(), 0u);
    }

   private:
    std::size_t below(std::size_t limit) { return static_cast<std::size_t>(random_() % limit); }
    Known& any() { return known_[below(known_.size())]; }
    static std::size_t bytes_of(const Known& each) {
        return MemoryPool::class_bytes(each.array.nbytes()) + kPage - 1 -
               (each.array.nbytes() + kPage - 1) % kPage;
    }

    // An operation that may find no room, where the model allows that. Guaranteed arrays of others stay where
    // they are, whatever is done.
    template <class Operation>
    bool attempt(std::size_t party, Operation&& operation) {
        std::vector<std::pair<const Storage*, bool>> guaranteed;
        for (const Known& each : known_) {
            if (each.party == 0)
                guaranteed.emplace_back(each.array.storage().get(), each.array.storage()->on_device());
        }
        bool done = true;
        try {
            const StreamScope scope(parties_[party].stream);
            operation();
        } catch (const Error& failure) {
            EXPECT_EQ(static_cast<int>(failure.kind()), static_cast<int>(ErrorKind::memory))
                << failure.what();
            ++refused;
            done = false;
        }
        if (party != 0) {
            for (const auto& [storage, was] : guaranteed) {
                EXPECT_EQ(storage->on_device(), was) << "step " << steps;
            }
        }
        return done;
    }

    void take() {
        const std::size_t what = below(16);
        if (known_.size() < 8 || (what < 3 && known_.size() < 40)) return make();
        if (what < 4) {
            std::swap(any(), known_.back());
            known_.pop_back();
        } else if (what < 5) {
            Known& each = any();
            attempt(each.party, [&] { each.array.storage()->evict(); });
        } else if (what < 6 && below(8) == 0) {
            pool_.trim();
        } else if (what < 11) {
            Known& each = any();
            const auto term = static_cast<std::int64_t>(below(100));
            if (attempt(each.party, [&] { affine(each.array, 3, term); })) {
                each.first = times_plus(each.first, 3, term);
                each.step = times_plus(each.step, 3, 0);
            }
        } else {
            const Known& each = any();
            attempt(each.party, [&] { check(each); });
        }
    }

    void make() {
        // Now and then more than there is beside what is guaranteed: then what is not must all leave.
        const bool large = below(20) == 0;
        const std::size_t party = large ? 1 : below(3);
        const auto pages = static_cast<std::int64_t>(large ? 14 + below(10) : 1 + below(3));
        const auto value = static_cast<std::int64_t>(below(1000));
        Array made;
        if (!attempt(party, [&] { made = counted(target_.device, value, pages); })) return;
        known_.push_back({std::move(made), party, value, 1});
    }

    void check(const Known& each) {
        const auto host = words(each.array);
        int wrong = 0;
        for (std::size_t i = 0; i < host.size(); ++i) {
            wrong += host[i] != times_plus(each.step, static_cast<std::int64_t>(i), each.first);
        }
        EXPECT_EQ(wrong, 0) << "step " << steps;
        ++checked;
    }

    // Each pays for what it has on the device, and never for more than it may have.
    void check_charges() {
        std::size_t live[3] = {}, away = 0, blocks = 0;
        for (const Known& each : known_) {
            const std::size_t bytes = bytes_of(each);
            (each.array.storage()->on_device() ? live[each.party] : away) += bytes;
            ++blocks;
        }
        for (std::size_t i = 0; i < 3; ++i) {
            ASSERT_EQ(parties_[i].tenant->memory_used(), live[i]) << "step " << steps << ", tenant " << i;
            ASSERT_TRUE(parties_[i].limit == 0 || live[i] <= parties_[i].limit) << "step " << steps;
        }
        const PoolStats stats = pool_.stats();
        ASSERT_EQ(stats.live_blocks, blocks) << "step " << steps;
        ASSERT_EQ(stats.evicted_bytes, away) << "step " << steps;
        ASSERT_LE(stats.reserved_bytes, kRoom) << "step " << steps;
    }

    std::mt19937_64 random_;
    TestDevice target_;
    MemoryPool& pool_ = MemoryPool::of(target_.device);
    Party parties_[3] = {{target_.device, "guaranteed", QosClass::guaranteed, 8 * kPage},
                         {target_.device, "burstable", QosClass::burstable, 0},
                         {target_.device, "best effort", QosClass::best_effort, 12 * kPage}};
    std::vector<Known> known_;
};

}  // namespace

TEST(EvictModel, RandomStepsAgreeWithAModel) {
    std::uint64_t steps = 0, checked = 0, refused = 0;
    for (std::uint64_t seed = 0; seed < kWalks && !::testing::Test::HasFailure(); ++seed) {
        SCOPED_TRACE(seed);
        Walk walk(seed);
        walk.run();
        steps += walk.steps;
        checked += walk.checked;
        refused += walk.refused;
    }
    EXPECT_EQ(steps, kWalks * kSteps);
    EXPECT_GT(checked, steps / 5);
    EXPECT_LT(refused, steps / 10);
    RecordProperty("steps", str(steps));
}
