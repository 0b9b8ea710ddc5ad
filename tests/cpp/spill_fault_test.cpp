// Every call of the driver and of the spill file is made to fail under programs that use all three tiers.
// Whatever an operation did not do, it left as it was.
#include <map>

#include "evict_program.hpp"
#include "spill_support.hpp"

using namespace gpk;
using namespace sim;

namespace {

// Six blocks of one to three pages, twelve in all, in four pages of the device, three of pinned memory and
// the rest of a file.
struct Sweep : Spilling {
    std::shared_ptr<Stream> one = Stream::create(device), two = Stream::create(device);

    explicit Sweep(bool interleaved) : Spilling(4, 3, 16, options(interleaved)) {}
    static SimOptions options(bool interleaved) {
        SimOptions made = paged(11, interleaved);
        made.memory_bytes = 1 << 20;
        return made;
    }

    // How many operations failed.
    int run(const std::string& where, std::map<std::string, int>* counts = nullptr) {
        Program p(*this, ErrorKind::file);
        p.after_failure = [this] { file->set({}); };
        program(p, one, two);
        if (counts != nullptr) {
            for (const auto& [call, count] : driver.call_counts()) (*counts)[call] = count;
            (*counts)["read"] = file->reads;
            (*counts)["write"] = file->writes;
            (*counts)["resize"] = file->resizes;
        }
        driver.set_faults({});
        file->set({});
        p.check_all();
        device.synchronize();
        pool.trim();
        EXPECT_EQ(pool.stats().live_blocks, 0u) << where;
        EXPECT_EQ(pool.stats().evicted_bytes, 0u) << where;
        EXPECT_EQ(pool.stats().spilled_bytes, 0u) << where;
        EXPECT_EQ(pool.stats().disk_bytes, 0u) << where;
        EXPECT_EQ(pool.stats().reserved_bytes, 0u) << where;
        EXPECT_EQ(driver.bytes_in_use(), 0u) << where;
        EXPECT_EQ(driver.live_reservations(), 0u) << where;
        EXPECT_EQ(driver.host_bytes(), 0u) << where;
        EXPECT_EQ(driver.invalid_frees(), 0u) << where;
        return p.failures;
    }
};

}  // namespace

TEST(SpillFault, EveryDriverCallMayFail) {
    for (const bool interleaved : {false, true}) {
        Sweep on(interleaved);
        std::map<std::string, int> counts;
        on.driver.set_faults({});
        on.file->set({});
        EXPECT_EQ(on.run("without a fault", &counts), 0);
        EXPECT_GT(counts["write"], 3);
        EXPECT_GT(counts["read"], 3);
        int met = 0;
        for (const auto& [call, count] : counts) {
            if (!can_fail(call)) continue;  // the file's calls neither: they have a test of their own
            for (const auto& [code, name] :
                 {std::pair{719, "CUDA_ERROR_LAUNCH_FAILED"}, std::pair{2, "CUDA_ERROR_OUT_OF_MEMORY"}}) {
                for (int nth = 1; nth <= count; ++nth) {
                    on.driver.set_faults({{.call = call, .nth = nth, .code = code, .code_name = name}});
                    met += on.run(str(call, " number ", nth, ", ", name));
                    if (::testing::Test::HasFailure()) return;
                }
            }
        }
        EXPECT_GT(met, 60);
    }
}

TEST(SpillFault, EveryFileCallMayFail) {
    for (const bool interleaved : {false, true}) {
        Sweep on(interleaved);
        std::map<std::string, int> counts;
        on.driver.set_faults({});
        on.file->set({});
        EXPECT_EQ(on.run("without a fault", &counts), 0);
        std::map<std::string, int> met;
        for (const char* call : {"read", "write", "resize"}) {
            for (int nth = 1; nth <= counts[call]; ++nth) {
                for (const int code : {EIO, ENOSPC, EINTR}) {
                    for (const bool all_after : {false, true}) {
                        if (code == EINTR && (all_after || call == std::string("resize"))) continue;
                        on.file->set({.call = call, .nth = nth, .code = code, .all_after = all_after});
                        const int failures = on.run(str(call, " number ", nth, ", errno ", code));
                        if (code == EINTR) {
                            EXPECT_EQ(failures, 0) << "an interrupted call is made again";
                        }
                        met[call] += failures;
                        if (::testing::Test::HasFailure()) return;
                    }
                }
                if (call == std::string("resize")) continue;
                on.file->set({.call = call, .nth = nth, .what = FileFault::short_count, .all_after = true});
                EXPECT_EQ(on.run(str(call, " number ", nth, ", short")), 0) << "the rest follows";
                on.file->set({.call = call, .nth = nth, .what = FileFault::nothing, .all_after = true});
                met[call] += on.run(str(call, " number ", nth, ", nothing"));
                if (::testing::Test::HasFailure()) return;
            }
        }
        EXPECT_GT(met["read"], 5);
        EXPECT_GT(met["write"], 5);
        EXPECT_GT(met["resize"], 1);
    }
}

TEST(SpillFault, ADamagedFileIsAnErrorAndNotWrongData) {
    Sweep on(false);
    std::map<std::string, int> counts;
    on.driver.set_faults({});
    on.file->set({});
    EXPECT_EQ(on.run("without a fault", &counts), 0);
    for (int nth = 1; nth <= counts["read"]; ++nth) {
        on.file->set({.call = "read", .nth = nth, .what = FileFault::damage});
        EXPECT_EQ(on.run(str("damage of read number ", nth)), 1);
    }
}

// The block stays away with what it needs to come back once the disk works again.
TEST(SpillFault, AReadErrorLeavesTheBlockOnTheDisk) {
    Spilling on(4, 4, 64);
    std::vector<Array> all;
    for (int i = 0; i < 16; ++i) all.push_back(counted(on.device, 1000 * i));
    const PoolStats before = on.pool.stats();
    on.file->set({.call = "read", .nth = 1, .all_after = true});
    for (int i = 0; i < 3; ++i) {
        try {
            affine(all[0], 1, 1);
            ADD_FAILURE() << "nothing was thrown";
        } catch (const Error& failure) {
            EXPECT_EQ(failure.kind(), ErrorKind::file) << failure.what();
            EXPECT_NE(std::string(failure.what()).find("Input/output error"), std::string::npos);
        }
        EXPECT_FALSE(all[0].storage()->on_device());
    }
    on.file->set({});
    EXPECT_GE(on.pool.stats().spilled_bytes, before.spilled_bytes);
    for (int i = 0; i < 16; ++i) EXPECT_TRUE(holds_counted(all[static_cast<std::size_t>(i)], 1000 * i)) << i;
}

TEST(SpillFault, AFullDiskIsSaidAndLosesNothing) {
    Spilling on(4, 4, 64);
    on.file->set({.call = "resize", .nth = 3, .code = ENOSPC, .all_after = true});
    std::vector<Array> all;
    try {
        for (int i = 0; i < 16; ++i) all.push_back(counted(on.device, 1000 * i));
        ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& failure) {
        EXPECT_EQ(failure.kind(), ErrorKind::memory) << failure.what();
        EXPECT_NE(std::string(failure.what()).find("No space left on device"), std::string::npos)
            << failure.what();
    }
    EXPECT_EQ(all.size(), 10u);  // four on the device, four pinned, two on the disk
    on.file->set({});
    for (std::size_t i = 0; i < all.size(); ++i) {
        EXPECT_TRUE(holds_counted(all[i], 1000 * static_cast<std::int64_t>(i))) << i;
    }
}
