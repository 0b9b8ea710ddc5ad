// The memory pool in C++: a block allocated and released again, and among many that live.
#include <algorithm>

#include "array/storage.hpp"
#include "base/error.hpp"
#include "harness.hpp"
#include "memory/pool.hpp"

namespace bench {

namespace {

constexpr double kGoalNs = 50;

struct Timed {
    std::vector<double> rounds;  // ns
    bool distinct = true;        // no two live blocks overlapped
};

Row row_of(std::string name, const Timed& timed) {
    return {.name = std::move(name),
            .value = median(timed.rounds),
            .unit = "ns",
            .low = quantile(timed.rounds, 0),
            .high = quantile(timed.rounds, 1),
            .error = timed.distinct ? 0.0 : 1.0,
            .goal = at_most(kGoalNs)};
}

Timed pairs(gpk::MemoryPool& pool, const std::shared_ptr<gpk::Stream>& stream, std::size_t bytes, int count,
            int rounds) {
    Timed timed;
    pool.release(pool.allocate(bytes, stream));
    for (int round = 0; round < rounds; ++round) {
        gpk::DevicePtr last = 0;
        const double seconds = seconds_of([&] {
            for (int i = 0; i < count; ++i) {
                gpk::Block block = pool.allocate(bytes, stream);
                last = block.pointer;
                pool.release(std::move(block));
            }
        });
        timed.rounds.push_back(seconds / count * 1e9);
        timed.distinct = timed.distinct && last != 0;
    }
    return timed;
}

// A window of live blocks of random sizes; each step frees the one and allocates the next.
Timed churn(gpk::MemoryPool& pool, const std::shared_ptr<gpk::Stream>& stream, int count, int rounds) {
    constexpr std::size_t kLive = 256;
    Random random(7);
    std::vector<std::size_t> sizes(4096);
    for (std::size_t& size : sizes) size = std::size_t{1} << (9 + random.below(10));
    std::vector<gpk::Block> live(kLive);
    std::size_t next = 0;
    const auto step = [&] {
        gpk::Block& slot = live[next % kLive];
        pool.release(std::move(slot));
        slot = pool.allocate(sizes[next % sizes.size()], stream);
        ++next;
    };
    for (std::size_t i = 0; i < 2 * sizes.size(); ++i) step();
    Timed timed;
    for (int round = 0; round < rounds; ++round) {
        const double seconds = seconds_of([&] {
            for (int i = 0; i < count; ++i) step();
        });
        timed.rounds.push_back(seconds / count * 1e9);
    }
    std::vector<std::pair<gpk::DevicePtr, std::size_t>> spans;
    for (gpk::Block& block : live) spans.emplace_back(block.pointer, block.bytes);
    std::sort(spans.begin(), spans.end());
    for (std::size_t i = 1; i < spans.size(); ++i) {
        timed.distinct = timed.distinct && spans[i - 1].first + spans[i - 1].second <= spans[i].first;
    }
    for (gpk::Block& block : live) pool.release(std::move(block));
    return timed;
}

Timed storages(gpk::Device& device, std::size_t bytes, int count, int rounds) {
    Timed timed;
    for (int round = 0; round < rounds; ++round) {
        const double seconds = seconds_of([&] {
            for (int i = 0; i < count; ++i) gpk::Storage::allocate(device, bytes);
        });
        timed.rounds.push_back(seconds / count * 1e9);
    }
    return timed;
}

}  // namespace

void measure_pool(Section& section) {
    gpk::MemoryPool& pool = gpk::MemoryPool::of(section.device);
    const auto stream = gpk::Stream::create_for(nullptr, section.device);
    const int count = section.options.sized(200'000, 200), rounds = section.options.sized(15, 2);
    const std::pair<const char*, std::size_t> sizes[] = {
        {"512 B", 512}, {"64 KiB", 64 << 10}, {"1 MiB", 1 << 20}, {"64 MiB", 64 << 20}};
    for (const auto& [name, bytes] : sizes) {
        section.row(
            row_of(gpk::str("allocate and release ", name), pairs(pool, stream, bytes, count, rounds)));
    }
    section.row(row_of("allocate and release, 256 blocks live, 512 B to 256 KiB",
                       churn(pool, stream, count, rounds)));
    Row storage =
        row_of("an array's storage of 4 KiB, made and let go", storages(section.device, 4096, count, rounds));
    storage.goal = {};
    section.row(storage);
}

}  // namespace bench
