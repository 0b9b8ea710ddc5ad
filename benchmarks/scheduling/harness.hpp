// What the sections of the scheduling benchmark share: options, rows, and statistics.
//
// A row is one line of JSON on standard output, written as soon as it is known, so that what was measured
// before a failure is kept.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/device.hpp"

namespace bench {

struct Options {
    std::string device_name;
    std::string program;   // this executable, for sections of two processes
    std::string folders;   // "--library-folders" as it was given, for the same
    bool quick = false;    // tiny sizes: whether everything runs, not how fast
    double seconds = 150;  // that a section may take before it cuts its rounds short
    std::string victim = "mixed";
    double bandwidth = 0.7;  // share of the device's, for the paced neighbour

    // The size of a run, or the one with which it is only tried.
    template <class T>
    T sized(T full, T tiny) const {
        return quick ? tiny : full;
    }
};

// What a figure must be at least or at most.
struct Goal {
    enum class Kind { none, at_most, at_least } kind = Kind::none;
    double bound = 0;
};
inline Goal at_most(double bound) { return {Goal::Kind::at_most, bound}; }
inline Goal at_least(double bound) { return {Goal::Kind::at_least, bound}; }

struct Row {
    std::string name;
    double value = 0;
    std::string unit;
    double low = std::numeric_limits<double>::quiet_NaN();  // of the rounds; NaN: as `value`
    double high = std::numeric_limits<double>::quiet_NaN();
    // Of the result that the figure was measured with: the share of it that is wrong. NaN: not checked here.
    double error = std::numeric_limits<double>::quiet_NaN();
    Goal goal = {};
    // Held against the goal instead of `value`: the entry of `ratios` of this name.
    std::string goal_of = {};
    std::vector<std::pair<std::string, double>> ratios = {};
    std::vector<std::pair<std::string, double>> figures = {};  // further ones, the unit in the name
    std::string note = {};
};

// Prints the row of a section. Figures of the simulated device meet no goal and miss none.
void print(std::string_view section, const Row& row, bool judged);
void print_failure(std::string_view section, std::string_view message);
std::string quoted(std::string_view text);  // as JSON

class Section {
   public:
    Section(std::string name, gpk::Device& device, const Options& options)
        : device(device),
          options(options),
          name_(std::move(name)),
          end_ns_(now_ns() + to_ns(options.seconds)) {}

    void row(const Row& row) const { print(name_, row, device.is_cuda() && !options.quick); }
    bool out_of_time() const { return now_ns() > end_ns_; }
    double seconds_left() const { return static_cast<double>(end_ns_ - now_ns()) * 1e-9; }

    static std::int64_t now_ns();
    static std::int64_t to_ns(double seconds) { return static_cast<std::int64_t>(seconds * 1e9); }

    gpk::Device& device;
    const Options& options;

   private:
    std::string name_;
    std::int64_t end_ns_;
};

// The sections, in the order in which they run.
void measure_smid(Section& section);
void measure_victim(Section& section);
void measure_hooks(Section& section);
void measure_pool(Section& section);
void measure_eviction(Section& section);
void measure_transfers(Section& section);
void measure_cycles(Section& section);
// The second process of the audit: its lines are for the first one.
int run_smid_child(const Options& options, int index, int of, const std::string& meeting_folder);

// -- Statistics -----------------------------------------------------------------------------------------

double quantile(std::vector<double> values, double q);  // the nearest rank; NaN of nothing
inline double median(std::vector<double> values) { return quantile(std::move(values), 0.5); }

// Seconds that `work` took.
double seconds_of(const std::function<void()>& work);

// A generator whose numbers a seed repeats: SplitMix64 (Steele, Lea, Flood 2014).
class Random {
   public:
    explicit Random(std::uint64_t seed) : state_(seed) {}
    std::uint64_t next() noexcept;
    std::size_t below(std::size_t count) noexcept { return static_cast<std::size_t>(next() % count); }

   private:
    std::uint64_t state_;
};

}  // namespace bench
