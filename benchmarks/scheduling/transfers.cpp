// The transfer engine: bulk copies of pinned memory beside plain copies of the same run, each way and both
// ways at once; and how long a small urgent copy takes beside a bulk one, and what the bulk loses by it.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>

#include "base/error.hpp"
#include "harness.hpp"
#include "kernels.hpp"
#include "memory/pinned.hpp"
#include "memory/transfer_engine.hpp"
#include "pinned_rates.hpp"

namespace bench {

namespace {

constexpr std::size_t kUrgentBytes = 64 << 10;
constexpr double kUrgentPeriod = 0.5e-3;  // seconds

// A block of the pool that the engine copies without staging.
class PoolPinned {
   public:
    PoolPinned(gpk::Device& device, std::size_t bytes)
        : pool_(gpk::PinnedPool::of(device)), block_(pool_.allocate(bytes)) {}
    ~PoolPinned() { pool_.release(block_); }
    PoolPinned(const PoolPinned&) = delete;
    PoolPinned& operator=(const PoolPinned&) = delete;
    std::byte* data() const noexcept { return block_.data; }

   private:
    gpk::PinnedPool& pool_;
    gpk::PinnedBlock block_;
};

class Copies {
   public:
    Copies(gpk::Device& device, const Kernels& kernels, std::size_t bytes)
        : bytes(bytes),
          rates(device, bytes),
          source(device, bytes),
          target(device, bytes),
          device_(device),
          kernels_(kernels),
          engine_(gpk::TransferEngine::of(device)) {
        // Random on the device and in both sources of the host.
        gpk::Stream& stream = *device.default_stream();
        fill_random(kernels, stream, rates.down.pointer(), bytes, 0x5eed);
        expected_ = checksum(kernels, stream, rates.down.pointer(), bytes);
        rates.to_host();
        std::memcpy(source.data(), rates.target.data(), bytes);
        std::memcpy(rates.source.data(), rates.target.data(), bytes);
    }

    std::shared_ptr<gpk::Transfer> up(std::size_t size, int priority, std::size_t from = 0) {
        return start({.kind = gpk::TransferKind::to_device,
                      .bytes = size,
                      .device = rates.up.pointer() + from,
                      .source = source.data() + from,
                      .priority = priority});
    }
    std::shared_ptr<gpk::Transfer> down(std::size_t size, int priority, std::size_t from = 0) {
        return start({.kind = gpk::TransferKind::to_host,
                      .bytes = size,
                      .device = rates.down.pointer() + from,
                      .target = target.data() + from,
                      .priority = priority});
    }

    // The share of the checks that fail, of what the engine copies into memory that was zeroed before.
    double error() {
        gpk::Stream& stream = *device_.default_stream();
        device_.launcher().fill(stream, rates.up.pointer(), 0, bytes);
        stream.synchronize();
        std::memset(target.data(), 0, bytes);
        up(bytes, 0)->get();
        down(bytes, 0)->get();
        const bool up_right = checksum(kernels_, stream, rates.up.pointer(), bytes) == expected_;
        const bool down_right = std::memcmp(target.data(), source.data(), bytes) == 0;
        return 0.5 * ((up_right ? 0 : 1) + (down_right ? 0 : 1));
    }

    const std::size_t bytes;
    PinnedRates rates;
    PoolPinned source, target;

   private:
    std::shared_ptr<gpk::Transfer> start(gpk::TransferRequest request) {
        auto transfer = engine_.prepare(std::move(request));
        engine_.submit(transfer);
        return transfer;
    }

    gpk::Device& device_;
    const Kernels& kernels_;
    gpk::TransferEngine& engine_;
    std::uint64_t expected_ = 0;
};

// -- Bulk ---------------------------------------------------------------------------------------------------

template <class Work>
double rate_of(const Copies& copies, Work&& work) {
    return static_cast<double>(copies.bytes) * 1e-9 / seconds_of(work);
}

void measure_bulk(const Section& section, Copies& copies) {
    struct Case {
        const char* name;
        double (*engine)(Copies&);
        double (*plain)(Copies&);
    };
    const Case cases[] = {
        {"to the device", [](Copies& c) { return rate_of(c, [&] { c.up(c.bytes, 0)->get(); }); },
         [](Copies& c) { return c.rates.to_device(); }},
        {"to the host", [](Copies& c) { return rate_of(c, [&] { c.down(c.bytes, 0)->get(); }); },
         [](Copies& c) { return c.rates.to_host(); }},
        {"each way, both at once",
         [](Copies& c) {
             return rate_of(c, [&] {
                 const auto up = c.up(c.bytes, 0), down = c.down(c.bytes, 0);
                 up->get();
                 down->get();
             });
         },
         [](Copies& c) { return c.rates.each_way(); }},
    };
    const double error = copies.error();
    std::array<std::vector<double>, std::size(cases)> engine, plain;
    for (int round = 0; round < section.options.sized(10, 2) && !section.out_of_time(); ++round) {
        for (std::size_t i = 0; i < std::size(cases); ++i) {
            plain[i].push_back(cases[i].plain(copies));
            engine[i].push_back(cases[i].engine(copies));
        }
    }
    for (std::size_t i = 0; i < std::size(cases); ++i) {
        const double rate = median(engine[i]), limit = median(plain[i]);
        section.row({.name = gpk::str("pinned, ", cases[i].name),
                     .value = rate,
                     .unit = "GB/s",
                     .low = quantile(engine[i], 0),
                     .high = quantile(engine[i], 1),
                     .error = error,
                     .goal = at_least(0.95),
                     .goal_of = "a plain copy",
                     .ratios = {{"a plain copy", rate / limit}},
                     .figures = {{"a plain copy GB/s", limit}}});
    }
}

// -- Urgent beside bulk -------------------------------------------------------------------------------------

struct Direction {
    const char* name;
    std::shared_ptr<gpk::Transfer> (Copies::*copy)(std::size_t bytes, int priority, std::size_t from);
};
constexpr Direction kDirections[] = {{"to the device", &Copies::up}, {"to the host", &Copies::down}};

// Seconds that `pieces` bulk copies take, with urgent ones meanwhile, at least one, where `latencies_us` is
// given.
double bulk_seconds(Copies& copies, const Direction& direction, int pieces,
                    std::vector<double>* latencies_us) {
    std::atomic<std::int64_t> ended{0};
    std::atomic<int> left{pieces};
    std::vector<std::shared_ptr<gpk::Transfer>> bulk;
    const std::int64_t started = Section::now_ns();
    for (int i = 0; i < pieces; ++i) {
        bulk.push_back((copies.*direction.copy)(copies.bytes - kUrgentBytes, 0, kUrgentBytes));
        bulk.back()->on_done([&] {
            ended = Section::now_ns();
            --left;
        });
    }
    std::int64_t due = Section::now_ns();
    while (latencies_us != nullptr && (left > 0 || latencies_us->empty())) {
        std::int64_t asked = Section::now_ns();
        while (asked < due) asked = Section::now_ns();
        if (left == 0 && !latencies_us->empty()) break;
        (copies.*direction.copy)(kUrgentBytes, -1, 0)->get();
        const std::int64_t now = Section::now_ns();
        latencies_us->push_back(static_cast<double>(now - asked) * 1e-3);
        due = std::max(now, due + Section::to_ns(kUrgentPeriod));
    }
    for (const auto& transfer : bulk) transfer->get();
    while (left > 0) {  // the calls come on the engine's own thread
    }
    return static_cast<double>(ended - started) * 1e-9;
}

void measure_urgent(const Section& section, Copies& copies) {
    const int pieces = section.options.sized(8, 2);
    for (const Direction& direction : kDirections) {
        std::vector<double> idle_us, latencies_us, alone, beside;
        for (int i = 0; i < section.options.sized(500, 3); ++i) {
            const std::int64_t asked = Section::now_ns();
            (copies.*direction.copy)(kUrgentBytes, -1, 0)->get();
            idle_us.push_back(static_cast<double>(Section::now_ns() - asked) * 1e-3);
        }
        for (int round = 0; round < section.options.sized(10, 1) && !section.out_of_time(); ++round) {
            alone.push_back(bulk_seconds(copies, direction, pieces, nullptr));
            beside.push_back(bulk_seconds(copies, direction, pieces, &latencies_us));
        }
        const double gigabytes = static_cast<double>(copies.bytes - kUrgentBytes) * pieces * 1e-9;
        const double error = copies.error();
        section.row({.name = gpk::str("p99 of an urgent 64 KiB ", direction.name, " beside bulk"),
                     .value = quantile(latencies_us, 0.99),
                     .unit = "us",
                     .error = error,
                     .goal = at_most(100),
                     .figures = {{"p50 us", median(latencies_us)},
                                 {"max us", quantile(latencies_us, 1)},
                                 {"p50 with no bulk us", median(idle_us)},
                                 {"copies", static_cast<double>(latencies_us.size())}}});
        section.row({.name = gpk::str("bulk ", direction.name, " beside urgent copies"),
                     .value = gigabytes / median(beside),
                     .unit = "GB/s",
                     .low = gigabytes / quantile(beside, 1),
                     .high = gigabytes / quantile(beside, 0),
                     .error = error,
                     .goal = at_least(0.97),
                     .goal_of = "its rate alone",
                     .ratios = {{"its rate alone", median(alone) / median(beside)}},
                     .figures = {{"alone GB/s", gigabytes / median(alone)}}});
    }
}

}  // namespace

void measure_transfers(Section& section) {
    const Kernels kernels(section.device);
    Copies copies(section.device, kernels, section.options.sized(std::size_t{1} << 30, std::size_t{1} << 20));
    measure_bulk(section, copies);
    measure_urgent(section, copies);
}

}  // namespace bench
