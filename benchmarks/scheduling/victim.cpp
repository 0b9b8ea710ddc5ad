// What a neighbour does to a victim: a kernel of 200 us on half the SMs every millisecond, beside one that
// computes or one that saturates the memory; with no measure against it, with stream priorities, with the SMs
// partitioned, and with the neighbour paced as well. The settings go in turns, so that drift cancels.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <exception>
#include <map>
#include <thread>

#include "base/error.hpp"
#include "halves.hpp"
#include "harness.hpp"
#include "kernels.hpp"

namespace bench {

namespace {

constexpr double kPeriodSeconds = 1e-3;
constexpr double kVictimUs = 200;
constexpr int kSlots = 8;  // places in the data where requests begin, so that the cache holds none of it

struct VictimKind {
    const char* name;
    std::int64_t loads;
    std::int32_t steps;  // of fused multiply-adds, for each load of 16 bytes
};
// On 64 SMs of an H100 mixed asks for about 0.7 TB/s, and memory for what half of its SMs can get.
constexpr VictimKind kVictims[] = {{"compute", 0, 320}, {"mixed", 1, 320}, {"memory", 1, 16}};

struct Setting {
    const char* name;
    bool neighbour, priorities, partitioned, paced;
};
constexpr Setting kSettings[] = {
    {"alone", false, false, false, false},
    {"shared", true, false, false, false},
    {"priorities only", true, true, false, false},
    {"partitions only", true, false, true, false},
    {"partitions and pacing", true, false, true, true},
    {"alone in its partition", false, false, true, false},
};

// -- The victim -------------------------------------------------------------------------------------------

class Victim {
   public:
    Victim(const Kernels& kernels, gpk::Device& device, int blocks, const Options& options)
        : kernels_(kernels),
          device_(device),
          blocks_(static_cast<std::uint32_t>(blocks)),
          kind_(kind_of(options.victim)),
          rounds_(options.sized(64, 1)),
          data_(device, options.sized(std::size_t{512} << 20, std::size_t{1} << 16)),
          out_(device, std::size_t{blocks_} * threads(options) * sizeof(float)),
          threads_(threads(options)) {
        fill_random(kernels, *device.default_stream(), data_.pointer(), data_.bytes(), 1);
        if (!options.quick) calibrate();
        for (int slot = 0; slot < kSlots; ++slot) {
            launch(*device.default_stream(), slot);
            expected_[static_cast<std::size_t>(slot)] = result(*device.default_stream());
        }
    }

    void launch(gpk::Stream& stream, int slot) {
        const auto count = static_cast<std::int64_t>(data_.bytes() / sizeof(float));
        kernels_.victim.launch(stream,
                               {.grid = {blocks_}, .block = {threads_}, .shared_bytes = kVictimSharedBytes},
                               VictimParams{.out = out_.as<float>(),
                                            .data = data_.as<float>(),
                                            .count = count,
                                            .offset = count / kSlots * slot,
                                            .rounds = rounds_,
                                            .steps = kind_.steps,
                                            .loads = kind_.loads},
                               {.flops = 2.0 * blocks_ * threads_ * rounds_ * kind_.steps, .bytes = bytes()});
        last_slot_ = slot;
    }
    double bytes() const { return static_cast<double>(kind_.loads) * 16.0 * blocks_ * threads_ * rounds_; }
    // Whether the latest request gave what it gave alone.
    bool right(gpk::Stream& stream) {
        return result(stream) == expected_[static_cast<std::size_t>(last_slot_)];
    }

   private:
    static std::uint32_t threads(const Options& options) { return options.sized(kVictimThreads, 32u); }
    static const VictimKind& kind_of(const std::string& name) {
        for (const VictimKind& kind : kVictims) {
            if (name == kind.name) return kind;
        }
        throw gpk::error(gpk::ErrorKind::value,
                         {.call = "--victim", .expected = "compute, mixed or memory", .got = name});
    }
    std::uint64_t result(gpk::Stream& stream) {
        return checksum(kernels_, stream, out_.pointer(), out_.bytes());
    }
    void calibrate() {
        gpk::Stream& stream = *device_.default_stream();
        for (int step = 0; step < 3; ++step) {
            std::vector<double> times;
            for (int i = 0; i < 50; ++i) {
                gpk::Event begin(device_, true), end(device_, true);
                begin.record(stream);
                launch(stream, i % kSlots);
                end.record(stream);
                end.synchronize();
                times.push_back(end.elapsed_ms(begin) * 1e3);
            }
            const double scale = kVictimUs / median(times);
            rounds_ = std::max(1, static_cast<std::int32_t>(std::lround(rounds_ * scale)));
        }
    }

    const Kernels& kernels_;
    gpk::Device& device_;
    std::uint32_t blocks_;
    const VictimKind& kind_;
    std::int32_t rounds_;
    Memory data_, out_;
    std::uint32_t threads_;
    int last_slot_ = 0;
    std::array<std::uint64_t, kSlots> expected_{};
};

struct Latencies {
    std::vector<double> host_us, device_us;
    std::vector<double> round_p99_us;
    int wrong = 0, checked = 0;
};

// `count` requests, one a period or, where one takes longer, as soon as the one before it is done.
void request(Victim& victim, gpk::Stream& stream, int count, double most_seconds, Latencies& latencies) {
    gpk::Event begin(stream.device(), true), end(stream.device(), true);
    const std::int64_t started = Section::now_ns();
    const std::int64_t stop = started + Section::to_ns(most_seconds);
    std::int64_t due = started;
    std::vector<double> host_us;
    for (int i = 0; i < count; ++i) {
        std::int64_t now = Section::now_ns();
        if (now > stop) break;
        while (now < due) now = Section::now_ns();
        due = std::max(due, now - Section::to_ns(kPeriodSeconds)) + Section::to_ns(kPeriodSeconds);
        const std::int64_t submitted = Section::now_ns();
        begin.record(stream);
        victim.launch(stream, i % kSlots);
        end.record(stream);
        while (!end.query()) {
        }
        host_us.push_back(static_cast<double>(Section::now_ns() - submitted) * 1e-3);
        latencies.device_us.push_back(end.elapsed_ms(begin) * 1e3);
    }
    latencies.host_us.insert(latencies.host_us.end(), host_us.begin(), host_us.end());
    latencies.round_p99_us.push_back(quantile(std::move(host_us), 0.99));
    latencies.wrong += victim.right(stream) ? 0 : 1;
    ++latencies.checked;
}

// -- The neighbours ---------------------------------------------------------------------------------------

// A kernel that is launched again and again from a thread of its own, several at a time in flight.
class Neighbour {
   public:
    virtual ~Neighbour() = default;
    virtual const char* name() const = 0;
    virtual void launch(gpk::Stream& stream) = 0;
    virtual double work(gpk::Stream& stream) const = 0;  // of one launch there
    virtual bool right(gpk::Stream& stream) = 0;
};

int sms_of(gpk::Stream& stream) {
    gpk::Device& device = stream.device();
    return stream.tenant() ? stream.tenant()->multiprocessors(device) : device.info().multiprocessors;
}

class ComputeNeighbour final : public Neighbour {
   public:
    ComputeNeighbour(const Kernels& kernels, gpk::Device& device, const Options& options)
        : kernels_(kernels),
          threads_(options.sized(256u, 32u)),
          steps_(options.sized<std::int64_t>(24576, 8)),
          waves_(options.sized(4u, 1u)),
          out_(device, std::size_t{waves_} * kBlocksOfSm * threads_ * sizeof(float) *
                           static_cast<std::size_t>(device.info().multiprocessors)) {}
    const char* name() const override { return "compute-bound neighbour"; }
    void launch(gpk::Stream& stream) override {
        kernels_.fma.launch(stream, {.grid = {blocks(stream)}, .block = {threads_}},
                            FmaParams{out_.as<float>(), steps_},
                            {.flops = 2.0 * 8 * static_cast<double>(steps_ / 8) * blocks(stream) * threads_});
    }
    double work(gpk::Stream& stream) const override { return blocks(stream); }
    bool right(gpk::Stream& stream) override {
        const std::uint64_t now = checksum(kernels_, stream, out_.pointer(),
                                           std::size_t{blocks(stream)} * threads_ * sizeof(float));
        const auto [known, first] = expected_.emplace(blocks(stream), now);
        return first || known->second == now;
    }

   private:
    static constexpr std::uint32_t kBlocksOfSm = 8;
    std::uint32_t blocks(gpk::Stream& stream) const {
        return waves_ * kBlocksOfSm * static_cast<std::uint32_t>(sms_of(stream));
    }

    const Kernels& kernels_;
    std::uint32_t threads_;
    std::int64_t steps_;
    std::uint32_t waves_;
    Memory out_;
    std::map<std::uint32_t, std::uint64_t> expected_;
};

class MemoryNeighbour final : public Neighbour {
   public:
    MemoryNeighbour(const Kernels& kernels, gpk::Device& device, const Options& options)
        : kernels_(kernels),
          pieces_(options.sized<std::size_t>(8, 1)),
          from_(device, options.sized(std::size_t{512} << 20, std::size_t{1} << 16)),
          to_(device, from_.bytes()) {
        fill_random(kernels, *device.default_stream(), from_.pointer(), from_.bytes(), 2);
        expected_ = checksum(kernels, *device.default_stream(), from_.pointer(), from_.bytes());
    }
    const char* name() const override { return "memory-saturating neighbour"; }
    // A piece of the buffer: long work would leave a protected neighbour no gaps.
    void launch(gpk::Stream& stream) override {
        constexpr std::int64_t kPerBlock = 4096;  // of 16 bytes
        const auto count = static_cast<std::int64_t>(piece() / 16);
        const auto blocks = static_cast<std::uint32_t>((count + kPerBlock - 1) / kPerBlock);
        const std::size_t offset = next_++ % pieces_ * piece();
        kernels_.stream_copy.launch(
            stream, {.grid = {blocks}, .block = {256}},
            StreamCopyParams{to_.as<char>() + offset, from_.as<char>() + offset, count, kPerBlock},
            {.bytes = work(stream)});
    }
    double work(gpk::Stream&) const override { return 2.0 * static_cast<double>(piece()); }
    bool right(gpk::Stream& stream) override {
        return checksum(kernels_, stream, to_.pointer(), to_.bytes()) == expected_;
    }

   private:
    std::size_t piece() const { return from_.bytes() / pieces_; }

    const Kernels& kernels_;
    std::size_t pieces_;
    Memory from_, to_;
    std::size_t next_ = 0;
    std::uint64_t expected_ = 0;
};

// Runs a neighbour while it lives.
class Running {
   public:
    Running(Neighbour& neighbour, std::shared_ptr<gpk::Stream> stream)
        : neighbour_(neighbour), stream_(std::move(stream)), thread_([this] { run(); }) {
        while (done_.load() < 2 && !failed_.load()) std::this_thread::yield();  // it is under way
        begin_ns_ = Section::now_ns();
        begin_done_ = done_.load();
    }
    ~Running() { join(); }
    Running(const Running&) = delete;
    Running& operator=(const Running&) = delete;

    double rate() const {  // since the beginning
        const double seconds = static_cast<double>(Section::now_ns() - begin_ns_) * 1e-9;
        return static_cast<double>(done_.load() - begin_done_) * neighbour_.work(*stream_) / seconds;
    }
    double rate_over(double seconds) const {  // at least so long
        const std::int64_t end = begin_ns_ + Section::to_ns(seconds);
        while (!failed_.load() && (Section::now_ns() < end || done_.load() < begin_done_ + 3)) {
            std::this_thread::sleep_for(std::chrono::microseconds(200));
        }
        return rate();
    }
    void stop() {  // throws what it failed with
        join();
        if (failure_) std::rethrow_exception(failure_);
    }

   private:
    void join() {
        stop_ = true;
        if (thread_.joinable()) thread_.join();
    }
    void run() {
        try {
            std::array<std::unique_ptr<gpk::Event>, 4> in_flight;
            for (auto& event : in_flight) event = std::make_unique<gpk::Event>(stream_->device());
            for (std::size_t i = 0; !stop_; ++i) {
                gpk::Event& event = *in_flight[i % in_flight.size()];
                if (i >= in_flight.size()) {
                    event.synchronize();
                    ++done_;
                }
                neighbour_.launch(*stream_);
                event.record(*stream_);
            }
            stream_->synchronize();
        } catch (...) {
            failure_ = std::current_exception();
            failed_ = true;
        }
    }

    Neighbour& neighbour_;
    std::shared_ptr<gpk::Stream> stream_;
    std::atomic<bool> stop_{false}, failed_{false};
    std::atomic<std::int64_t> done_{0};
    std::int64_t begin_ns_ = 0, begin_done_ = 0;
    std::exception_ptr failure_;
    std::thread thread_;
};

// -- The settings -----------------------------------------------------------------------------------------

struct Result {
    Latencies latencies;
    std::vector<double> neighbour_share;  // of its rate alone in its partition
    int neighbour_wrong = 0, neighbour_checked = 0;
};

class Table {
   public:
    Table(const Section& section, const Kernels& kernels)
        : section_(section),
          halves_{half_of(section.device, "victim"), half_of(section.device, "neighbour")},
          victim_(kernels, section.device, section.device.is_cuda() ? halves_[0]->multiprocessors() : 1,
                  section.options) {
        gpk::Device& device = section.device;
        const gpk::DeviceInfo& info = device.info();
        const auto victim_tenant = halves_[0]->tenant(), neighbour_tenant = halves_[1]->tenant();
        for (const Setting& setting : kSettings) {
            streams_[setting.name] = {
                gpk::Stream::create_for(setting.partitioned ? victim_tenant : nullptr, device,
                                        setting.priorities ? info.highest_priority : 0),
                gpk::Stream::create_for(setting.partitioned ? neighbour_tenant : nullptr, device,
                                        setting.priorities ? info.lowest_priority : 0)};
        }
    }

    void measure(Neighbour& neighbour) {
        const Options& options = section_.options;
        const int rounds = options.sized(10, 1), count = options.sized(1000, 4);
        const double most_seconds = 1.5 * kPeriodSeconds * count + 0.1;
        const auto& alone_stream = streams_.at("partitions only").neighbour;
        std::map<std::string, Result> results;
        for (int round = 0; round < rounds && !section_.out_of_time(); ++round) {
            double alone_rate = 0;
            allow(kSettings[0]);
            {
                Running running(neighbour, alone_stream);
                alone_rate = running.rate_over(options.sized(0.15, 0.001));
                running.stop();
            }
            for (const Setting& setting : kSettings) {
                const auto streams = streams_.find(setting.name);
                if (streams == streams_.end()) continue;
                Result& result = results[setting.name];
                allow(setting);
                const bool reference = setting.partitioned && !setting.neighbour;  // held against nothing
                run(neighbour, setting, streams->second, alone_rate, reference ? (count + 4) / 5 : count,
                    most_seconds, result);
            }
        }
        put_rows(neighbour, results);
    }

   private:
    struct Streams {
        std::shared_ptr<gpk::Stream> victim, neighbour;
    };

    // What the neighbour's partition is allowed.
    void allow(const Setting& setting) {
        auto limits = gpk::PartitionLimits().compute(0.5);
        if (setting.paced) {
            limits.bandwidth(section_.options.bandwidth).qos(gpk::QosClass::best_effort);
        }
        gpk::Partition& partition = *halves_[1];
        if (partition.limits() == limits) return;
        gpk::PartitionManager::of(section_.device).resize(partition, limits);
        if (!setting.paced) return;
        for (const gpk::Guarantee& each : partition.guarantees()) {
            if (each.resource == "bandwidth") {
                pacing_ = gpk::str("bandwidth ", section_.options.bandwidth, ", ", to_string(each.level),
                                   ": ", each.mechanism, each.reason.empty() ? "" : "; ", each.reason);
            }
        }
    }

    void run(Neighbour& neighbour, const Setting& setting, const Streams& streams, double alone_rate,
             int count, double most_seconds, Result& result) {
        if (!setting.neighbour) {
            request(victim_, *streams.victim, count, most_seconds, result.latencies);
            return;
        }
        Running running(neighbour, streams.neighbour);
        request(victim_, *streams.victim, count, most_seconds, result.latencies);
        result.neighbour_share.push_back(running.rate() / alone_rate);
        running.stop();
        result.neighbour_wrong += neighbour.right(*streams.neighbour) ? 0 : 1;
        ++result.neighbour_checked;
    }

    void put_rows(const Neighbour& neighbour, const std::map<std::string, Result>& results) {
        const Latencies& alone = results.at("alone").latencies;
        const double alone_p99 = quantile(alone.host_us, 0.99), alone_p50 = median(alone.host_us);
        const bool computes = std::string(neighbour.name()).starts_with("compute");
        for (const Setting& setting : kSettings) {
            const auto found = results.find(setting.name);
            if (found == results.end()) continue;
            const Latencies& own = found->second.latencies;
            const double p99 = quantile(own.host_us, 0.99);
            Row row{.name = gpk::str("victim's p99, ", setting.name, ", ", neighbour.name()),
                    .value = p99,
                    .unit = "us",
                    .low = quantile(own.round_p99_us, 0),
                    .high = quantile(own.round_p99_us, 1),
                    .error = static_cast<double>(own.wrong) / own.checked,
                    .ratios = {{"its p99 alone", p99 / alone_p99},
                               {"its median alone", median(own.host_us) / alone_p50}},
                    .figures = {{"p50 us", median(own.host_us)},
                                {"max us", quantile(own.host_us, 1)},
                                {"p50 on the device us", median(own.device_us)},
                                {"p99 on the device us", quantile(own.device_us, 0.99)},
                                {"requests", static_cast<double>(own.host_us.size())}}};
            if (setting.paced) row.note = pacing_;
            if (setting.partitioned && setting.neighbour && (computes ? !setting.paced : setting.paced)) {
                row.goal = at_most(computes ? 1.10 : 1.25);
                row.goal_of = "its p99 alone";
            }
            if (std::string(setting.name) == "alone") {
                row.figures.emplace_back("GB/s while it runs",
                                         victim_.bytes() / median(own.device_us) * 1e-3);
            }
            section_.row(row);
            if (!setting.neighbour) continue;
            const Result& result = found->second;
            section_.row({.name = gpk::str("neighbour's rate, ", setting.name, ", ", neighbour.name()),
                          .value = median(result.neighbour_share),
                          .unit = "of its partition alone",
                          .low = quantile(result.neighbour_share, 0),
                          .high = quantile(result.neighbour_share, 1),
                          .error = static_cast<double>(result.neighbour_wrong) / result.neighbour_checked,
                          .goal = setting.paced && !computes ? at_least(0.7) : Goal{}});
        }
    }

    const Section& section_;
    std::array<std::shared_ptr<gpk::Partition>, 2> halves_;
    Victim victim_;
    std::map<std::string, Streams> streams_;
    std::string pacing_;  // what the partition says of it
};

}  // namespace

void measure_victim(Section& section) {
    const Kernels kernels(section.device);
    Table table(section, kernels);
    ComputeNeighbour compute(kernels, section.device, section.options);
    table.measure(compute);
    MemoryNeighbour memory(kernels, section.device, section.options);
    table.measure(memory);
}

}  // namespace bench
