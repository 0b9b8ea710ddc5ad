// Every driver call of programs that allocate, evict, reload, read, write and trim is made to fail. Whatever
// an operation did not do, it left as it was: every array still holds what the operations that returned
// have put there, nothing leaks, and the rest of the program runs.
#include <functional>

#include "evict_support.hpp"

using namespace gpk;
using namespace sim;

namespace {

struct Known {
    Array array;
    std::int64_t value = 0;  // of word 0
    std::int64_t step = 1;   // from one word to the next
};

// Runs operations; the first failure ends the plan of faults, and the rest goes on without.
class Program {
   public:
    explicit Program(TestDevice& target) : target_(target) {}

    int failures = 0;

    template <class Operation>
    void run(Operation&& operation, std::function<void()> then = nullptr) {
        try {
            operation();
        } catch (const Error& failure) {
            ++failures;
            EXPECT_TRUE(failure.kind() == ErrorKind::driver || failure.kind() == ErrorKind::memory)
                << failure.what();
            target_.driver.set_faults({});
            return;
        }
        if (then) then();
    }

    void make(std::size_t at, std::int64_t value, std::int64_t pages) {
        run([&] {
            Array made = counted(target_.device, value, pages);
            known_.at(at) = {std::move(made), value, 1};
        });
    }
    void change(std::size_t at) {
        Known& x = known_.at(at);
        if (x.array.storage() == nullptr) return;
        run([&] { affine(x.array, 3, 1); },
            [&] {
                x.value = x.value * 3 + 1;
                x.step *= 3;
            });
    }
    void read(std::size_t at) {
        run([&] { check(known_.at(at)); });
    }
    void evict(std::size_t at) {
        if (known_.at(at).array.storage() == nullptr) return;
        run([&] { known_.at(at).array.storage()->evict(); });
    }
    void drop(std::size_t at) { known_.at(at) = {}; }
    void trim() {
        run([&] { MemoryPool::of(target_.device).trim(); });
    }
    void check_all() {
        for (Known& each : known_) check(each);
        known_ = {};
    }

   private:
    static void check(const Known& x) {
        if (x.array.storage() == nullptr) return;
        const auto host = words(x.array);
        for (std::size_t i = 0; i < host.size(); ++i) {
            ASSERT_EQ(host[i], x.value + x.step * static_cast<std::int64_t>(i)) << i;
        }
    }

    TestDevice& target_;
    std::array<Known, 6> known_;
};

void program(Program& p, const std::shared_ptr<Stream>& one, const std::shared_ptr<Stream>& two) {
    {
        const StreamScope scope(one);
        for (std::size_t i = 0; i < 6; ++i) p.make(i, static_cast<std::int64_t>(i), 1 + i % 3);
        p.change(0);
        p.change(1);
    }
    {
        const StreamScope scope(two);
        p.change(1);
        p.change(4);
        p.evict(2);
        p.evict(1);
        p.read(3);
        p.change(2);
        p.drop(3);
        p.make(3, 77, 3);
        p.trim();
        p.change(3);
    }
    p.change(5);
    p.read(0);
}

// Returns how many faults were met.
int sweep(bool interleaved, int code, const char* code_name) {
    SimOptions options = paged(11, interleaved);
    options.memory_bytes = 1 << 20;
    TestDevice target(options);
    MemoryPool& pool = MemoryPool::of(target.device);
    pool.set_limit(6 * kPage);
    pool.set_eviction(true);
    const auto expect_nothing_left = [&](const std::string& where) {
        pool.trim();
        EXPECT_EQ(pool.stats().live_blocks, 0u) << where;
        EXPECT_EQ(pool.stats().evicted_bytes, 0u) << where;
        EXPECT_EQ(pool.stats().reserved_bytes, 0u) << where;
        EXPECT_EQ(pool.stats().cached_bytes, 0u) << where;
        EXPECT_EQ(target.driver.bytes_in_use(), 0u) << where;
        EXPECT_EQ(target.driver.live_physical(), 0u) << where;
        EXPECT_EQ(target.driver.live_reservations(), 0u) << where;
        EXPECT_EQ(target.driver.host_bytes(), 0u) << where;
        EXPECT_EQ(target.driver.invalid_frees(), 0u) << where;
    };
    const auto one = Stream::create(target.device), two = Stream::create(target.device);
    const auto run = [&](const std::string& where) {
        Program p(target);
        program(p, one, two);
        const auto counts = target.driver.call_counts();
        target.driver.set_faults({});
        p.check_all();
        target.device.synchronize();
        expect_nothing_left(where);
        return std::pair(p.failures, counts);
    };
    target.driver.set_faults({});
    const auto [failures, counts] = run("without a fault");
    EXPECT_EQ(failures, 0);
    EXPECT_GT(pool.stats().reloads, 3u);
    int met = 0;
    for (const auto& [call, count] : counts) {
        if (call.starts_with("free") || call.starts_with("release") || call == "unmap" || call == "unload" ||
            call.ends_with("_destroy")) {
            continue;
        }
        for (int nth = 1; nth <= count; ++nth) {
            target.driver.set_faults({{.call = call, .nth = nth, .code = code, .code_name = code_name}});
            met += run(str(call, " number ", nth, ", ", code_name)).first;
            if (::testing::Test::HasFailure()) return met;
        }
    }
    return met;
}

}  // namespace

TEST(EvictFault, EveryCallMayFail) {
    for (const bool interleaved : {false, true}) {
        EXPECT_GT(sweep(interleaved, 700, "CUDA_ERROR_ILLEGAL_ADDRESS"), 40);
        EXPECT_GT(sweep(interleaved, 719, "CUDA_ERROR_LAUNCH_FAILED"), 40);
        EXPECT_GT(sweep(interleaved, 2, "CUDA_ERROR_OUT_OF_MEMORY"), 20);
    }
}

TEST(EvictFault, ADeviceThatBreaksForGoodLeaksNothing) {
    for (const char* call : {"copy_to_host", "copy_to_device", "map", "event_record", "event_synchronize"}) {
        // Where work runs at once, nobody waits for an event.
        TestDevice target(paged(11, std::string_view(call) == "event_synchronize"));
        MemoryPool& pool = MemoryPool::of(target.device);
        pool.set_limit(6 * kPage);
        pool.set_eviction(true);
        target.driver.set_faults(
            {{.call = call, .nth = 2, .code = 719, .code_name = "CUDA_ERROR_LAUNCH_FAILED", .sticky = true}});
        bool failed = false;
        try {
            Program p(target);
            std::vector<Array> all;
            for (int i = 0; i < 20; ++i) all.push_back(counted(target.device, i));
            for (const Array& each : all) affine(each, 1, 1);
        } catch (const Error&) {
            failed = true;
        }
        EXPECT_TRUE(failed) << call;
        target.driver.set_faults({});
        pool.trim();
        EXPECT_EQ(target.driver.bytes_in_use(), 0u) << call;
        EXPECT_EQ(target.driver.host_bytes(), 0u) << call;
        EXPECT_EQ(pool.stats().live_blocks, 0u) << call;
    }
}
