// Every driver call of programs that allocate, evict, reload, read, write and trim is made to fail. Whatever
// an operation did not do, it left as it was: every array still holds what the operations that returned
// have put there, nothing leaks, and the rest of the program runs.
#include "evict_program.hpp"

using namespace gpk;
using namespace sim;

namespace {

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
        for (int nth = 1; can_fail(call) && nth <= count; ++nth) {
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
