// A working set of twice the pool: blocks go to pinned host memory and come back, at the rates of plain
// copies, with every block's checksum asked at every touch.
#include <cmath>

#include "array/storage.hpp"
#include "base/error.hpp"
#include "harness.hpp"
#include "kernels.hpp"
#include "memory/pool.hpp"
#include "pinned_rates.hpp"
#include "runtime/meter.hpp"

namespace bench {

namespace {

constexpr double kShare = 0.9;  // of the plain copies' rate

struct Sizes {
    std::size_t limit, block;
    std::size_t count() const { return 2 * limit / block; }
};

// The pool limited, and evicting, for the length of a scope.
class Limited {
   public:
    Limited(gpk::MemoryPool& pool, std::size_t bytes) : pool_(pool), before_(pool.limit()) {
        pool.trim();
        pool.set_limit(bytes);
        pool.set_eviction(true);
    }
    ~Limited() {
        pool_.set_eviction(false);
        pool_.set_limit(before_);
    }
    Limited(const Limited&) = delete;
    Limited& operator=(const Limited&) = delete;

   private:
    gpk::MemoryPool& pool_;
    std::size_t before_;
};

// Blocks of random data. A touch queues a checksum of one; check() compares what all touches found.
class WorkingSet {
   public:
    WorkingSet(gpk::Device& device, const Kernels& kernels, std::size_t block)
        : device_(device),
          kernels_(kernels),
          block_(block),
          stream_(gpk::current_stream(device)),
          found_(device, kMostTouches * sizeof(std::uint64_t)) {
        clear();
    }

    void grow(std::size_t count, std::uint64_t seed) {
        Random random(seed);
        for (std::size_t i = 0; i < count; ++i) {
            blocks_.push_back(gpk::Storage::allocate(device_, block_));
            const gpk::UseScope use;
            blocks_.back()->before_write(stream_);
            fill_random(kernels_, *stream_, blocks_.back()->pointer(), block_, random.next());
            expected_.push_back(checksum(kernels_, *stream_, blocks_.back()->pointer(), block_));
        }
    }
    std::size_t size() const { return blocks_.size(); }

    void touch(std::size_t i) {
        gpk::Storage& storage = *blocks_[i];
        const gpk::UseScope use;
        storage.before_read(stream_);
        kernels_.checksum.launch(*stream_, {.grid = {1024}, .block = {256}},
                                 ChecksumParams{found_.as<std::uint64_t>() + touched_.size(),
                                                reinterpret_cast<std::uint32_t*>(storage.pointer()),
                                                static_cast<std::int64_t>(block_ / 4)},
                                 {.bytes = static_cast<double>(block_)});
        touched_.push_back(i);
    }
    bool full() const { return touched_.size() == kMostTouches; }
    void wait() { stream_->synchronize(); }

    // Waits; the touches that found something else than what was written.
    std::size_t wrong() {
        std::vector<std::uint64_t> found(kMostTouches);
        device_.launcher().copy_to_host(*stream_, found.data(), found_.pointer(), found_.bytes());
        wait();
        std::size_t count = 0;
        for (std::size_t t = 0; t < touched_.size(); ++t) count += found[t] != expected_[touched_[t]];
        checked_ += touched_.size();
        clear();
        return count;
    }
    std::size_t checked() const { return checked_; }

   private:
    static constexpr std::size_t kMostTouches = 4096;

    void clear() {
        touched_.clear();
        device_.launcher().fill(*stream_, found_.pointer(), 0, found_.bytes());
        wait();
    }

    gpk::Device& device_;
    const Kernels& kernels_;
    std::size_t block_;
    std::shared_ptr<gpk::Stream> stream_;
    Memory found_;
    std::vector<std::shared_ptr<gpk::Storage>> blocks_;
    std::vector<std::uint64_t> expected_;
    std::vector<std::size_t> touched_;
    std::size_t checked_ = 0;
};

std::string text(std::size_t bytes) { return gpk::str(bytes >> 20, " MiB"); }

Row row_of(std::string name, const std::vector<double>& rates, double limit, double error) {
    return {.name = std::move(name),
            .value = median(rates),
            .unit = "GB/s",
            .low = quantile(rates, 0),
            .high = quantile(rates, 1),
            .error = error,
            .goal = at_least(kShare),
            .goal_of = "a plain copy",
            .ratios = {{"a plain copy", median(rates) / limit}},
            .figures = {{"a plain copy GB/s", limit}}};
}

// One way at a time: new blocks push the set out; once they are gone, the set is touched and comes back.
void one_way(const Section& section, const Kernels& kernels, PinnedRates& rates, const Sizes& sizes) {
    gpk::Device& device = section.device;
    const Limited limited(gpk::MemoryPool::of(device), sizes.limit);
    WorkingSet set(device, kernels, sizes.block);
    const std::size_t count = sizes.count() / 2 - 1;  // the limit, but for the counters
    set.grow(count, 1);
    // All that was copied, with what was sent off ahead and is not asked for yet.
    const gpk::Meter& meter = gpk::meter_of(device, nullptr);
    const auto gigabytes = [&](gpk::Count count) { return static_cast<double>(meter[count]) * 1e-9; };
    std::vector<double> out, in, plain_out, plain_in;
    std::size_t wrong = 0;
    for (int round = 0; round < section.options.sized(6, 2) && (round < 2 || !section.out_of_time());
         ++round) {
        plain_out.push_back(rates.to_host());
        plain_in.push_back(rates.to_device());
        const double out_before = gigabytes(gpk::Count::to_host_bytes);
        double seconds_out = 0;
        {
            std::vector<std::shared_ptr<gpk::Storage>> pushing;
            seconds_out = seconds_of([&] {
                for (std::size_t i = 0; i < count; ++i) {
                    pushing.push_back(gpk::Storage::allocate(device, sizes.block));
                }
                device.synchronize();
            });
        }
        const double moved_out = gigabytes(gpk::Count::to_host_bytes) - out_before;
        const double in_before = gigabytes(gpk::Count::to_device_bytes);
        const double seconds_in = seconds_of([&] {
            for (std::size_t i = 0; i < count; ++i) set.touch(i);
            set.wait();
        });
        const double moved_in = gigabytes(gpk::Count::to_device_bytes) - in_before;
        wrong += set.wrong();
        if (round == 0) continue;  // pins the host's memory
        out.push_back(moved_out / seconds_out);
        in.push_back(moved_in / seconds_in);
    }
    const double error = static_cast<double>(wrong) / static_cast<double>(set.checked());
    section.row(row_of("evict, blocks of " + text(sizes.block), out, median(plain_out), error));
    section.row(row_of("reload, blocks of " + text(sizes.block), in, median(plain_in), error));
}

// Both ways at once: each touch of the set brings a block back and pushes one out.
void both_ways(const Section& section, const Kernels& kernels, PinnedRates& rates, const Sizes& sizes) {
    struct Order {
        const char* name;
        bool random;
    };
    gpk::Device& device = section.device;
    gpk::MemoryPool& pool = gpk::MemoryPool::of(device);
    const Limited limited(pool, sizes.limit);
    WorkingSet set(device, kernels, sizes.block);
    set.grow(sizes.count(), 2);
    for (const Order& order : {Order{"cyclic", false}, Order{"random", true}}) {
        Random random(11);
        std::vector<double> moved, plain;
        std::size_t wrong = 0;
        const std::size_t checked_before = set.checked();
        for (int round = 0; round < section.options.sized(6, 2) && (round < 2 || !section.out_of_time());
             ++round) {
            plain.push_back(rates.each_way());
            const std::uint64_t reloads = pool.stats().reloads;
            const double seconds = seconds_of([&] {
                for (std::size_t i = 0; i < set.size(); ++i) {
                    set.touch(order.random ? random.below(set.size()) : i);
                }
                set.wait();
            });
            const auto came = static_cast<double>(pool.stats().reloads - reloads);
            wrong += set.wrong();
            if (round > 0) moved.push_back(came * static_cast<double>(sizes.block) * 1e-9 / seconds);
        }
        section.row(row_of(
            gpk::str("each way, ", order.name, " touch of twice the pool, blocks of ", text(sizes.block)),
            moved, median(plain),
            static_cast<double>(wrong) / static_cast<double>(set.checked() - checked_before)));
    }
}

// Whether the device's memory comes back to the byte once all is gone.
void cycle_blocks(const Section& section, const Kernels& kernels) {
    constexpr std::size_t kBlock = std::size_t{4} << 20;
    gpk::Device& device = section.device;
    gpk::MemoryPool& pool = gpk::MemoryPool::of(device);
    const std::size_t wanted = section.options.sized<std::size_t>(10'000, 6);
    const auto free_bytes = [&] {
        device.synchronize();
        pool.trim();
        return static_cast<double>(device.driver().memory_info().free_bytes);
    };
    std::size_t wrong = 0, checked = 0;
    const auto run = [&](std::size_t cycles) {
        const std::size_t count = section.options.sized<std::size_t>(64, 8);
        const Limited limited(pool, count / 2 * kBlock);
        WorkingSet set(device, kernels, kBlock);
        set.grow(count, 3);
        const std::uint64_t before = pool.stats().reloads;
        for (std::size_t i = 0; pool.stats().reloads - before < cycles && !section.out_of_time(); ++i) {
            set.touch(i % set.size());
            if (set.full()) wrong += set.wrong();
        }
        wrong += set.wrong();
        checked += set.checked();
        return static_cast<double>(pool.stats().reloads - before);
    };
    run(section.options.sized<std::size_t>(100, 1));
    const double before = free_bytes();
    const double cycles = run(wanted);
    section.row({.name = "bytes that did not come back, a block of 4 MiB evicted and reloaded",
                 .value = std::abs(before - free_bytes()),
                 .unit = "bytes",
                 .error = static_cast<double>(wrong) / static_cast<double>(checked),
                 .goal = at_most(0),
                 .figures = {{"cycles", cycles}}});
}

}  // namespace

void measure_eviction(Section& section) {
    const Kernels kernels(section.device);
    PinnedRates rates(section.device, section.options.sized(std::size_t{1} << 30, std::size_t{1} << 20));
    constexpr std::size_t kMiB = std::size_t{1} << 20;
    constexpr std::size_t kBlocks = 64;  // that the pool has room for
    std::vector<std::size_t> blocks = {64 * kMiB, 256 * kMiB};
    if (section.options.quick) blocks = {8 * kMiB};
    cycle_blocks(section, kernels);
    for (const std::size_t block : blocks) {
        const Sizes sizes{section.options.sized(kBlocks, std::size_t{4}) * block, block};
        one_way(section, kernels, rates, sizes);
        both_ways(section, kernels, rates, sizes);
    }
}

}  // namespace bench
