// The disk tier of eviction: what neither the device nor pinned memory has room for comes back as it was.
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <random>
#include <thread>

#include "base/checksum.hpp"
#include "runtime/meter.hpp"
#include "spill_support.hpp"

using namespace gpk;
using namespace sim;

namespace {

std::vector<Array> fill(Device& device, int count, std::int64_t pages = 1) {
    std::vector<Array> all;
    for (int i = 0; i < count; ++i) all.push_back(counted(device, 1000 * i, pages));
    return all;
}

void expect_values(const std::vector<Array>& all, std::int64_t added = 0) {
    for (std::size_t i = 0; i < all.size(); ++i) {
        EXPECT_TRUE(holds_counted(all[i], 1000 * static_cast<std::int64_t>(i) + added)) << i;
    }
}

template <class Call>
std::string message_of(ErrorKind kind, Call&& call) {
    try {
        call();
    } catch (const Error& failure) {
        EXPECT_EQ(static_cast<int>(failure.kind()), static_cast<int>(kind)) << failure.what();
        return failure.what();
    }
    ADD_FAILURE() << "nothing was thrown";
    return {};
}

}  // namespace

TEST(Checksum, SeesEveryChangeOfAByteAndIsOneOverAnyPieces) {
    std::mt19937_64 random(1);
    std::vector<unsigned char> bytes(200);
    for (auto& each : bytes) each = static_cast<unsigned char>(random());
    const auto of = [&](std::size_t size, std::size_t piece) {
        Checksum sum;
        for (std::size_t at = 0; at < size; at += piece) sum.add(&bytes[at], std::min(piece, size - at));
        return sum.value();
    };
    for (const std::size_t size : {std::size_t{1}, std::size_t{8}, std::size_t{31}, std::size_t{32},
                                   std::size_t{33}, std::size_t{200}}) {
        const std::uint64_t whole = of(size, size);
        for (std::size_t piece = 1; piece < 70; ++piece) EXPECT_EQ(of(size, piece), whole);
        EXPECT_NE(of(size - 1, size), whole);
        for (std::size_t at = 0; at < size; ++at) {
            for (int bit = 0; bit < 8; ++bit) {
                bytes[at] ^= static_cast<unsigned char>(1 << bit);
                EXPECT_NE(of(size, size), whole) << at << " " << bit;
                bytes[at] ^= static_cast<unsigned char>(1 << bit);
            }
        }
    }
    EXPECT_EQ(Checksum().value(), Checksum().value());
}

TEST(Spill, EightTimesTheDeviceWithALittlePinnedMemoryKeepsEveryValue) {
    for (const bool interleaved : {false, true}) {
        for (std::uint64_t seed = 0; seed < (interleaved ? 12u : 1u); ++seed) {
            Spilling on(8, 3, 64, paged(seed, interleaved));
            std::mt19937_64 random(seed);
            const auto all = fill(on.device, 64);
            std::vector<std::int64_t> added(64);
            for (int step = 0; step < 200; ++step) {
                const std::size_t k = step < 64 ? static_cast<std::size_t>(step) : random() % 64;
                affine(all[k], 1, 7);
                added[k] += 7;
            }
            for (std::size_t k = 0; k < 64; ++k) {
                ASSERT_TRUE(holds_counted(all[k], 1000 * static_cast<std::int64_t>(k) + added[k])) << k;
            }
            const PoolStats stats = on.pool.stats();
            EXPECT_LE(stats.host_bytes, 3 * kPage);
            EXPECT_GE(stats.spilled_bytes, 50 * kPage);
            EXPECT_GE(stats.disk_bytes, stats.spilled_bytes);
            EXPECT_LE(on.file->largest, 64 * kPage);
            EXPECT_EQ(meter_of(on.device, nullptr)[Level::spilled_bytes],
                      static_cast<std::int64_t>(stats.spilled_bytes));
        }
    }
}

TEST(Spill, OnePinnedBlockIsEnough) {
    Spilling on(4, 2, 1000, paged(1, true));
    const auto all = fill(on.device, 16, 2);  // of as many pages as pinned memory has
    for (int round = 0; round < 3; ++round) {
        for (const Array& each : all) affine(each, 1, 1);
    }
    expect_values(all, 3);
}

TEST(Spill, NothingIsLeftBehind) {
    Spilling on(4, 4, 64);
    auto all = fill(on.device, 20);
    all.erase(all.begin(), all.begin() + 10);
    EXPECT_GT(on.pool.stats().spilled_bytes, 0u);
    all.clear();
    EXPECT_EQ(on.pool.stats().spilled_bytes, 0u);
    EXPECT_EQ(meter_of(on.device, nullptr)[Level::spilled_bytes], 0);
    on.pool.trim();
    EXPECT_EQ(on.pool.stats().disk_bytes, 0u);
    EXPECT_EQ(on.driver.bytes_in_use(), 0u);
    EXPECT_EQ(on.driver.host_bytes(), 0u);
    EXPECT_EQ(on.driver.live_reservations(), 0u);
}

TEST(Spill, ExtentsAreUsedAgainWhateverTheirSizes) {
    Spilling on(16, 8, 72);
    std::mt19937_64 random(5);
    struct Known {
        Array array;
        std::int64_t value;
    };
    std::vector<Known> all;
    std::int64_t pages = 0;
    for (int step = 0; step < 2000; ++step) {
        const std::int64_t more = 1 + static_cast<std::int64_t>(random() % 7);
        if (pages + more <= 70 && random() % 3 != 0) {
            all.push_back({counted(on.device, step, more), step});
            pages += more;
        } else if (!all.empty()) {
            std::swap(all[random() % all.size()], all.back());
            ASSERT_TRUE(holds_counted(all.back().array, all.back().value));
            pages -= all.back().array.size() / kWords;
            all.pop_back();
        }
    }
    EXPECT_LE(on.file->largest, 72 * kPage);
    EXPECT_GT(on.file->writes, 500);
}

TEST(Spill, WithoutRoomInEitherTierTheMessageSaysBothLimits) {
    Spilling on(4, 4, 4);
    const auto all = fill(on.device, 12);
    const std::string message = message_of(ErrorKind::memory, [&] { counted(on.device, 5); });
    EXPECT_NE(message.find(str("of at most ", 4 * kPage)), std::string::npos) << message;
    EXPECT_NE(message.find(str("spill file: ", 4 * kPage, " of at most ", 4 * kPage)), std::string::npos)
        << message;
    EXPECT_EQ(on.pool.stats().spilled_bytes, 4 * kPage);
    EXPECT_EQ(on.pool.stats().evicted_bytes, 8 * kPage);
}

TEST(Spill, ALimitOfNothingSpillsNothing) {
    Spilling on(4, 4, 0);
    const auto all = fill(on.device, 8);
    expect_kind(ErrorKind::memory, [&] { counted(on.device, 5); });
    EXPECT_EQ(on.pool.stats().disk_bytes, 0u);
    EXPECT_TRUE(on.pool.evictor().away().set_disk_limit(4 * kPage));
    const auto more = fill(on.device, 4);
    EXPECT_EQ(on.pool.stats().disk_bytes, 4 * kPage);
}

TEST(Spill, ABlockLargerThanPinnedMemoryStays) {
    Spilling on(8, 2, 100);
    const Array large = counted(on.device, 3, 4);
    const auto all = fill(on.device, 8);
    EXPECT_TRUE(large.storage()->on_device());
    EXPECT_FALSE(all[0].storage()->on_device());
    expect_kind(ErrorKind::memory, [&] { large.storage()->evict(); });
    EXPECT_TRUE(holds_counted(large, 3));
    expect_values(all);
}

TEST(Spill, ANewFolderTakesOverAndTheOldFileStaysUntilItsDataIsBack) {
    Spilling on(4, 4, 64);
    auto all = fill(on.device, 16);
    const std::size_t before = on.pool.stats().disk_bytes;
    EXPECT_EQ(before, 8 * kPage);
    on.pool.evictor().away().set_spill(std::make_unique<platform::ScratchFile>("test", "folder", on.folder),
                                       64 * kPage);
    EXPECT_EQ(on.pool.stats().disk_bytes, before);
    expect_values(all);
    all.clear();
    on.pool.trim();
    EXPECT_EQ(on.pool.stats().disk_bytes, 0u);
}

// The use comes first: the write is under way when the block is wanted back, or dropped.
TEST(Spill, ABlockMayBeUsedOrDroppedWhileItIsWritten) {
    for (const bool drop : {false, true}) {
        Spilling on(4, 4, 64);
        auto all = fill(on.device, 8);  // the first four are in pinned memory
        all.reserve(20);
        const PoolStats before = on.pool.stats();
        ASSERT_EQ(before.spilled_bytes, 0u);
        std::atomic<int> inside{0}, done{0};
        on.file->in_write = [&] {
            if (inside.fetch_add(1) > 0) return;
            while (done == 0) std::this_thread::yield();
        };
        Array more;
        std::thread spilling([&] { more = counted(on.device, 77); });
        while (inside == 0) std::this_thread::yield();
        all[7] = {};  // room for the reload
        if (drop) {
            all[0] = {};
        } else {
            affine(all[0], 1, 5);
        }
        done = 1;
        spilling.join();
        on.file->in_write = nullptr;
        EXPECT_TRUE(holds_counted(more, 77));
        if (!drop) {
            EXPECT_TRUE(holds_counted(all[0], 5));
        }
        for (std::size_t i = 1; i < 7; ++i) {
            EXPECT_TRUE(holds_counted(all[i], 1000 * static_cast<std::int64_t>(i)));
        }
        all.clear();
        more = {};
        on.pool.trim();
        EXPECT_EQ(on.pool.stats().disk_bytes, 0u);
        EXPECT_EQ(on.pool.stats().spilled_bytes, 0u);
        EXPECT_EQ(on.driver.host_bytes(), 0u);
    }
}

// Work on what is on the device goes on while another thread waits for the disk.
TEST(Spill, NobodyElseWaitsForTheDisk) {
    Spilling on(4, 2, 64);
    const auto all = fill(on.device, 6);
    on.pool.set_limit(4 * kPage + 256);
    std::atomic<bool> inside{false}, go_on{false};
    on.file->in_write = [&] {
        inside = true;
        while (!go_on) std::this_thread::yield();
    };
    std::thread spilling([&] { affine(all[0], 1, 0); });
    while (!inside) std::this_thread::yield();
    affine(all[5], 1, 9);
    const Array small = Array::empty(on.device, {16}, DType::int64);  // the slow way of the pool
    go_on = true;
    spilling.join();
    EXPECT_TRUE(holds_counted(all[5], 5009));
    EXPECT_TRUE(holds_counted(all[0], 0));
}

TEST(Spill, ThreadsShareThreeTiers) {
    Spilling on(12, 6, 128);
    std::vector<std::thread> threads;
    std::atomic<int> wrong{0};
    for (int t = 0; t < 4; ++t) {
        threads.emplace_back([&, t] {
            std::mt19937 random(static_cast<unsigned>(t));
            const auto stream = Stream::create(on.device);
            const StreamScope scope(stream);
            std::vector<Array> mine;
            for (int i = 0; i < 24; ++i) mine.push_back(counted(on.device, t + 1000 * i));
            std::vector<std::int64_t> terms(24);
            for (int i = 0; i < 150; ++i) {
                const std::size_t k = random() % 24;
                if (i % 40 == 39) {
                    mine[k] = counted(on.device, t + 1000 * static_cast<std::int64_t>(k));
                    terms[k] = 0;
                }
                affine(mine[k], 1, 1);
                ++terms[k];
            }
            for (std::size_t k = 0; k < 24; ++k) {
                wrong += !holds_counted(mine[k], t + 1000 * static_cast<std::int64_t>(k) + terms[k]);
            }
        });
    }
    for (auto& thread : threads) thread.join();
    EXPECT_EQ(wrong, 0);
    EXPECT_GT(on.file->writes, 20);
}

TEST(ScratchFile, IsPrivateAndHasNoName) {
    const platform::TemporaryFolder folder;
    platform::ScratchFile file("test", "folder", folder.path() + "/");
    EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
    EXPECT_EQ(file.resize(10'000), 0);
    EXPECT_EQ(file.write("hello", 5, 9'990), 5);
    char text[6] = "";
    EXPECT_EQ(file.read(text, 5, 9'990), 5);
    EXPECT_STREQ(text, "hello");
    EXPECT_EQ(file.read(text, 5, 10'000), 0);
    EXPECT_EQ(file.resize(0), 0);
    EXPECT_GT(file.bytes_left_on_disk(), 0u);
    int found = 0;
    for (const auto& each : std::filesystem::directory_iterator("/proc/self/fd")) {
        std::error_code gone;
        const std::string target = std::filesystem::read_symlink(each.path(), gone).string();
        if (target.rfind(folder.path(), 0) != 0) continue;
        struct stat status{};
        ASSERT_EQ(stat(each.path().c_str(), &status), 0);
        EXPECT_EQ(status.st_mode & 0777, 0600u);
        EXPECT_EQ(status.st_nlink, 0u);
        ++found;
    }
    EXPECT_EQ(found, 1);
}

TEST(ScratchFile, RefusesHostileFolders) {
    const platform::TemporaryFolder folder;
    const std::string real = folder.path() + "/real", link = folder.path() + "/link";
    const std::string plain = folder.path() + "/plain", closed = folder.path() + "/closed";
    std::filesystem::create_directory(real);
    std::filesystem::create_directory_symlink(real, link);
    ASSERT_TRUE(platform::replace_file(plain, "x"));
    std::filesystem::create_directory(closed);
    ASSERT_EQ(chmod(closed.c_str(), 0500), 0);
    std::vector<std::string> hostile = {"",
                                        "relative",
                                        "./real",
                                        folder.path() + "/missing",
                                        plain,
                                        link,
                                        link + "/",
                                        link + "/.",
                                        std::string("/tmp\0x", 6),
                                        folder.path() + "/" + std::string(300, 'n'),
                                        "/proc/self"};
    if (geteuid() != 0) hostile.push_back(closed);
    for (const std::string& each : hostile) {
        const std::string message =
            message_of(ErrorKind::value, [&] { platform::ScratchFile("set_eviction", "spill_dir", each); });
        EXPECT_NE(message.find("spill_dir"), std::string::npos) << message;
    }
    EXPECT_TRUE(std::filesystem::is_empty(real));
}
