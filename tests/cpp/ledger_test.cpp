// Ledger: what is promised once, over processes, and what damaged files do.
#include "scheduler/ledger.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <random>
#include <thread>

#include "sim_support.hpp"

using namespace gpk;
using namespace sim;

namespace {

constexpr Capacity kCapacity{.groups = 16, .memory_bytes = 1000};

std::vector<int> range(int from, int to) {
    std::vector<int> values;
    for (int i = from; i < to; ++i) values.push_back(i);
    return values;
}

std::string read_file(const std::string& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
}

void write_file(const std::string& path, const std::string& text) { std::ofstream(path) << text; }

}  // namespace

TEST(Ledger, PromisesNothingTwice) {
    Ledger ledger("");
    const auto a = ledger.take({.name = "a", .memory_bytes = 600, .bandwidth = 0.5}, 8, kCapacity);
    EXPECT_EQ(a.share.groups, range(0, 8));
    const auto b = ledger.take({.name = "b", .memory_bytes = 400, .bandwidth = 0.5}, 8, kCapacity);
    EXPECT_EQ(b.share.groups, range(8, 16));
    expect_kind(ErrorKind::memory, [&] { ledger.take({.memory_bytes = 1}, 0, kCapacity); });
    expect_kind(ErrorKind::unsupported, [&] { ledger.take({.bandwidth = 0.01}, 0, kCapacity); });
    expect_kind(ErrorKind::unsupported, [&] { ledger.take({}, 1, kCapacity); });
    // Upper limits promise nothing.
    const auto c =
        ledger.take({.qos = QosClass::best_effort, .memory_bytes = 1000, .bandwidth = 1}, 0, kCapacity);
    EXPECT_EQ(ledger.entries().size(), 3u);
    ledger.give_back(a.id);
    ledger.give_back(a.id);
    EXPECT_EQ(ledger.take({.memory_bytes = 600}, 3, kCapacity).share.groups, range(0, 3));
    ledger.give_back(c.id);
    ledger.give_back(12345);
    EXPECT_EQ(ledger.entries().size(), 2u);
}

TEST(Ledger, AChangeKeepsWhatItCan) {
    Ledger ledger("");
    const auto a = ledger.take({.name = "a", .memory_bytes = 100}, 4, kCapacity);
    const auto b = ledger.take({.name = "b"}, 4, kCapacity);
    auto grown =
        ledger.change(a.id, {.name = "a", .groups = a.share.groups, .memory_bytes = 1000}, 6, kCapacity);
    EXPECT_EQ(grown.share.groups, (std::vector<int>{0, 1, 2, 3, 8, 9}));
    expect_kind(ErrorKind::unsupported, [&] { ledger.change(a.id, grown.share, 13, kCapacity); });
    expect_kind(ErrorKind::memory,
                [&] { ledger.change(b.id, {.name = "b", .memory_bytes = 1}, 4, kCapacity); });
    grown = ledger.change(a.id, grown.share, 2, kCapacity);
    EXPECT_EQ(grown.share.groups, range(0, 2));
    EXPECT_EQ(ledger.entries().size(), 2u);
    expect_kind(ErrorKind::value, [&] { ledger.change(99, {}, 0, kCapacity); });
}

TEST(Ledger, ComputeIsAccountedWhereThereAreNoGroups) {
    Ledger ledger("");
    const Capacity none{.groups = 0, .memory_bytes = 1};
    ledger.take({.compute = 0.7}, 0, none);
    expect_kind(ErrorKind::unsupported, [&] { ledger.take({.compute = 0.4}, 0, none); });
    ledger.take({.compute = 0.3}, 0, none);
}

TEST(Ledger, TheTextComesBackAsItWas) {
    std::vector<LedgerEntry> entries;
    entries.push_back({{12, 34, 56},
                       7,
                       {.name = "a b\n\t\xff",
                        .qos = QosClass::burstable,
                        .groups = {1, 5},
                        .compute = 0.1,
                        .memory_bytes = ~std::size_t{0},
                        .bandwidth = 1.0 / 3}});
    entries.push_back({{1, 2, 3}, 8, {.name = ""}});
    int damaged = -1;
    const auto back = parse_ledger(write_ledger(entries), &damaged);
    EXPECT_EQ(damaged, 0);
    ASSERT_EQ(back.size(), 2u);
    EXPECT_EQ(back[0].share.name, entries[0].share.name);
    EXPECT_EQ(back[0].share.groups, entries[0].share.groups);
    EXPECT_EQ(back[0].share.bandwidth, 1.0 / 3);
    EXPECT_EQ(back[0].share.memory_bytes, ~std::size_t{0});
    EXPECT_TRUE(back[0].owner == entries[0].owner);
    EXPECT_EQ(back[1].share.name, "");
}

// Whatever bytes change, what is read is a subset of what was written.
TEST(Ledger, DamagedTextNeverBecomesAnotherShare) {
    std::vector<LedgerEntry> entries;
    for (int i = 0; i < 4; ++i) entries.push_back({{i, 2, 3}, 8, {.name = str("p", i), .groups = {i}}});
    const std::string whole = write_ledger(entries);
    std::mt19937 random(1);
    for (int round = 0; round < 20000; ++round) {
        std::string text = whole;
        for (int hits = 1 + static_cast<int>(random() % 4); hits > 0; --hits) {
            switch (random() % 3) {
                case 0: text[random() % text.size()] = static_cast<char>(random()); break;
                case 1: text.resize(1 + random() % text.size()); break;
                default: text.insert(random() % text.size(), 1, static_cast<char>(random())); break;
            }
        }
        int damaged = 0;
        for (const LedgerEntry& each : parse_ledger(text, &damaged)) {
            ASSERT_GE(each.owner.pid, 0);
            ASSERT_LT(each.owner.pid, 4);
            ASSERT_EQ(each.share.groups, std::vector<int>{each.owner.pid});
        }
    }
}

TEST(Ledger, ADamagedFileIsRebuilt) {
    const platform::TemporaryFolder folder;
    const std::string path = folder.path() + "/ledger";
    Ledger one(path);
    const auto a = one.take({.name = "a"}, 4, kCapacity);
    for (const std::string& damage :
         {std::string("nonsense"), std::string(), std::string(1 << 21, 'x'), read_file(path).substr(0, 40)}) {
        write_file(path, damage);
        EXPECT_EQ(one.entries().size(), 1u);
        int damaged = 0;
        EXPECT_EQ(parse_ledger(read_file(path), &damaged).size(), 1u);
        EXPECT_EQ(damaged, 0);
    }
    one.give_back(a.id);
    EXPECT_TRUE(one.entries().empty());
}

TEST(Ledger, LinksAndOthersFilesAreRefused) {
    const platform::TemporaryFolder folder;
    const std::string path = folder.path() + "/ledger", other = folder.path() + "/other";
    write_file(other, "");
    ASSERT_EQ(symlink(other.c_str(), path.c_str()), 0);
    Ledger ledger(path);
    expect_kind(ErrorKind::file, [&] { ledger.take({}, 1, kCapacity); });
    EXPECT_EQ(read_file(other), "");
    platform::remove_file(path);
    write_file(path, "");
    ASSERT_EQ(chmod(path.c_str(), 0666), 0);
    expect_kind(ErrorKind::file, [&] { ledger.take({}, 1, kCapacity); });
    ASSERT_EQ(chmod(path.c_str(), 0600), 0);
    EXPECT_EQ(ledger.take({}, 1, kCapacity).share.groups, range(0, 1));
    // A file that cannot be opened any more: the share comes back with the process.
    ASSERT_EQ(chmod(path.c_str(), 0666), 0);
    ledger.give_back(1);
}

TEST(Ledger, ADeadOwnersShareComesBack) {
    const platform::TemporaryFolder folder;
    const std::string path = folder.path() + "/ledger";
    platform::Process gone = platform::this_process();
    EXPECT_TRUE(platform::is_alive(gone));
    ++gone.started;  // the same number, used again
    EXPECT_FALSE(platform::is_alive(gone));
    platform::Process never = gone;
    never.pid = -5;
    EXPECT_FALSE(platform::is_alive(never));
    write_file(path,
               write_ledger({{gone, 1, {.name = "gone", .groups = range(0, 16), .memory_bytes = 1000}}}));
    Ledger ledger(path);
    EXPECT_EQ(ledger.take({.memory_bytes = 1000}, 16, kCapacity).share.groups, range(0, 16));
}

TEST(Ledger, ThreadsNeverShareAGroup) {
    const platform::TemporaryFolder folder;
    const std::string path = folder.path() + "/ledger";
    Ledger ledger(path);
    std::atomic<int> holders[16] = {};
    std::atomic<int> taken{0};
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < 4; ++t) {
        threads.emplace_back([&, t] {
            std::mt19937 random(t);
            for (int round = 0; round < 150; ++round) {
                try {
                    const auto mine = ledger.take({}, 1 + static_cast<int>(random() % 7), kCapacity);
                    ++taken;
                    for (const int group : mine.share.groups) EXPECT_EQ(++holders[group], 1);
                    for (const int group : mine.share.groups) --holders[group];
                    ledger.give_back(mine.id);
                } catch (const Error& failure) {
                    EXPECT_EQ(static_cast<int>(failure.kind()), static_cast<int>(ErrorKind::unsupported));
                }
            }
        });
    }
    for (auto& thread : threads) thread.join();
    EXPECT_GT(taken, 100);
    EXPECT_TRUE(ledger.entries().empty());
}
