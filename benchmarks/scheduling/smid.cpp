// Where blocks really ran: every block counts itself for its SM (%smid), from two partitions at once and
// from two processes. A partition's SM set is what it runs on when it runs alone; it must have as many SMs
// as the partition says.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "base/error.hpp"
#include "base/platform.hpp"
#include "driver/sim_driver.hpp"
#include "halves.hpp"
#include "harness.hpp"
#include "kernels.hpp"

namespace bench {

namespace {

constexpr std::uint32_t kThreads = 32;

struct Audit {
    std::vector<std::uint64_t> counts = std::vector<std::uint64_t>(kMostSms);
    std::uint64_t first_ns = 0, last_ns = 0;  // on the device's clock
    std::uint64_t expected = 0;

    std::uint64_t blocks() const {
        std::uint64_t sum = 0;
        for (const std::uint64_t count : counts) sum += count;
        return sum;
    }
    std::uint64_t unaccounted() const {
        const std::uint64_t counted = blocks();
        return counted > expected ? counted - expected : expected - counted;
    }
    int sms() const {
        return static_cast<int>(std::count_if(counts.begin(), counts.end(), [](auto n) { return n > 0; }));
    }
    std::uint64_t outside(const Audit& own) const {
        std::uint64_t sum = 0;
        for (std::size_t sm = 0; sm < counts.size(); ++sm) sum += own.counts[sm] == 0 ? counts[sm] : 0;
        return sum;
    }
    int shared_with(const Audit& other) const {
        int shared = 0;
        for (std::size_t sm = 0; sm < counts.size(); ++sm) shared += counts[sm] > 0 && other.counts[sm] > 0;
        return shared;
    }
};

// A tenant's stream with its counts on the device.
class Auditor {
   public:
    Auditor(const Kernels& kernels, gpk::Device& device)
        : kernels_(kernels),
          partition_(half_of(device, "audited")),
          stream_(gpk::Stream::create_for(partition_->tenant(), device)),
          simulated_(dynamic_cast<gpk::SimDriver*>(&device.driver())),
          counts_(device, kMostSms * sizeof(std::uint64_t), stream_),
          span_(device, 2 * sizeof(std::uint64_t), stream_) {
        clear();
    }
    ~Auditor() { stream_->synchronize(); }

    int multiprocessors() const { return partition_->multiprocessors(); }
    void launch(std::uint32_t blocks) {
        if (simulated_ == nullptr) return launch_at(0, blocks);
        // Host twins run on no SM: as many blocks on each that the stream may use.
        const auto size = static_cast<std::uint32_t>(stream_->device().info().sm_group_size);
        const std::vector<int> groups = simulated_->sm_groups_of(stream_->handle());
        for (const int group : groups) {
            for (std::uint32_t sm = 0; sm < size; ++sm) {
                launch_at(static_cast<std::uint32_t>(group) * size + sm, blocks);
            }
        }
    }
    Audit take() {
        Audit audit;
        audit.expected = std::exchange(expected_, 0);
        gpk::Launcher& launcher = stream_->device().launcher();
        std::array<std::uint64_t, 2> span{};
        launcher.copy_to_host(*stream_, audit.counts.data(), counts_.pointer(), counts_.bytes());
        launcher.copy_to_host(*stream_, span.data(), span_.pointer(), span_.bytes());
        stream_->synchronize();
        audit.first_ns = span[0];
        audit.last_ns = span[1];
        clear();
        return audit;
    }

   private:
    void launch_at(std::uint32_t first_sm, std::uint32_t blocks) {
        kernels_.record_smid.launch(
            *stream_, {.grid = {blocks}, .block = {kThreads}},
            RecordSmidParams{counts_.as<std::uint64_t>() + first_sm, span_.as<std::uint64_t>()});
        expected_ += blocks;
    }
    void clear() {
        gpk::Launcher& launcher = stream_->device().launcher();
        launcher.fill(*stream_, counts_.pointer(), 0, counts_.bytes());
        launcher.fill(*stream_, span_.pointer(), 0xff, sizeof(std::uint64_t));
        launcher.fill(*stream_, span_.pointer() + sizeof(std::uint64_t), 0, sizeof(std::uint64_t));
        stream_->synchronize();
    }

    const Kernels& kernels_;
    std::shared_ptr<gpk::Partition> partition_;
    std::shared_ptr<gpk::Stream> stream_;
    gpk::SimDriver* simulated_;  // null on a GPU
    Memory counts_, span_;
    std::uint64_t expected_ = 0;
};

struct Plan {
    std::uint32_t launches, blocks;  // of each partition
};
Plan plan_of(const Options& options) { return {8, options.sized<std::uint32_t>(6'500'000, 100)}; }

// The share of the shorter run in which the other ran too.
double overlap(const Audit& a, const Audit& b) {
    const std::uint64_t begin = std::max(a.first_ns, b.first_ns), end = std::min(a.last_ns, b.last_ns);
    const std::uint64_t shorter = std::min(a.last_ns - a.first_ns, b.last_ns - b.first_ns);
    return end > begin && shorter > 0 ? static_cast<double>(end - begin) / static_cast<double>(shorter) : 0;
}

void put_rows(const Section& section, const std::string& what, const std::array<Audit, 2>& alone,
              const std::array<Audit, 2>& both, const std::array<int, 2>& multiprocessors) {
    const std::uint64_t blocks = both[0].blocks() + both[1].blocks();
    const double wrong =
        static_cast<double>(both[0].unaccounted() + both[1].unaccounted()) / static_cast<double>(blocks);
    section.row({.name = "blocks outside their partition's SMs, " + what,
                 .value = static_cast<double>(both[0].outside(alone[0]) + both[1].outside(alone[1])),
                 .unit = "blocks",
                 .error = wrong,
                 .goal = at_most(0),
                 .figures = {{"blocks", static_cast<double>(blocks)},
                             {"ran together, share of the time", overlap(both[0], both[1])}}});
    section.row({.name = "SMs that both ran on, " + what,
                 .value = static_cast<double>(both[0].shared_with(both[1])),
                 .unit = "SMs",
                 .goal = at_most(0),
                 .figures = {{"SMs of the first", both[0].sms()}, {"SMs of the second", both[1].sms()}}});
    section.row({.name = "SMs too many or too few, " + what,
                 .value = static_cast<double>(std::abs(alone[0].sms() - multiprocessors[0]) +
                                              std::abs(alone[1].sms() - multiprocessors[1])),
                 .unit = "SMs",
                 .goal = at_most(0)});
}

void audit_partitions(const Section& section, const Kernels& kernels) {
    std::array<std::unique_ptr<Auditor>, 2> auditors;
    for (auto& auditor : auditors) auditor = std::make_unique<Auditor>(kernels, section.device);
    const Plan plan = plan_of(section.options);
    std::array<Audit, 2> alone, both;
    for (std::size_t i = 0; i < 2; ++i) {
        auditors[i]->launch(plan.blocks);
        alone[i] = auditors[i]->take();
    }
    for (std::uint32_t n = 0; n < plan.launches; ++n) {
        for (const auto& auditor : auditors) auditor->launch(plan.blocks);
    }
    for (std::size_t i = 0; i < 2; ++i) both[i] = auditors[i]->take();
    put_rows(section, "two partitions", alone, both,
             {auditors[0]->multiprocessors(), auditors[1]->multiprocessors()});
}

// -- Two processes ----------------------------------------------------------------------------------------

void write_audit(std::ostream& out, const char* what, const Audit& audit) {
    out << what << ' ' << audit.expected << ' ' << audit.first_ns << ' ' << audit.last_ns << ' '
        << audit.sms();
    for (std::size_t sm = 0; sm < audit.counts.size(); ++sm) {
        if (audit.counts[sm] > 0) out << ' ' << sm << ' ' << audit.counts[sm];
    }
    out << '\n';
}

Audit read_audit(std::istream& in, const std::string& what, const std::string& all) {
    std::string word;
    Audit audit;
    int sms = 0;
    if (!(in >> word) || word != what || !(in >> audit.expected >> audit.first_ns >> audit.last_ns >> sms)) {
        throw gpk::error(gpk::ErrorKind::unsupported,
                         {.call = "the audit's second process", .expected = what, .got = all});
    }
    for (int i = 0; i < sms; ++i) {
        std::size_t sm = 0;
        std::uint64_t count = 0;
        in >> sm >> count;
        if (in && sm < audit.counts.size()) audit.counts[sm] = count;
    }
    return audit;
}

// Until all `of` processes have come.
void meet(const std::string& folder, int index, int of) {
    namespace fs = std::filesystem;
    fs::create_directories(folder);
    std::ofstream(gpk::str(folder, "/", index)).close();
    for (int waited_ms = 0; waited_ms < 30'000; ++waited_ms) {
        int here = 0;
        for (int i = 0; i < of; ++i) here += fs::exists(gpk::str(folder, "/", i)) ? 1 : 0;
        if (here == of) return;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    throw gpk::error(
        gpk::ErrorKind::unsupported,
        {.call = "the audit", .expected = gpk::str(of, " processes"), .got = "one that did not come"});
}

void audit_processes(const Section& section) {
    const gpk::platform::TemporaryFolder meeting;
    std::array<FILE*, 2> pipes{};
    for (std::size_t i = 0; i < 2; ++i) {
        std::string command = gpk::str("'", section.options.program, "' --device ", section.device.name(),
                                       section.options.quick ? " --quick" : "", " --smid-child ", i, " 2 '",
                                       meeting.path(), "'");
        if (!section.options.folders.empty()) {
            command += gpk::str(" --library-folders '", section.options.folders, "'");
        }
        pipes[i] = popen(command.c_str(), "r");
    }
    std::array<Audit, 2> alone, both;
    std::array<int, 2> multiprocessors{};
    std::array<std::string, 2> texts;
    for (std::size_t i = 0; i < 2; ++i) {
        char buffer[4096];
        std::size_t got = 0;
        while (pipes[i] != nullptr && (got = std::fread(buffer, 1, sizeof(buffer), pipes[i])) > 0) {
            texts[i].append(buffer, got);
        }
        if (pipes[i] != nullptr) pclose(pipes[i]);
    }
    for (std::size_t i = 0; i < 2; ++i) {
        std::istringstream in(texts[i]);
        std::string word;
        in >> word >> multiprocessors[i];
        alone[i] = read_audit(in, "alone", texts[i]);
        both[i] = read_audit(in, "both", texts[i]);
    }
    put_rows(section, "two processes", alone, both, multiprocessors);
}

}  // namespace

int run_smid_child(const Options& options, int index, int of, const std::string& meeting_folder) {
    gpk::Device& device = gpk::device(options.device_name);
    const Kernels kernels(device);
    Auditor auditor(kernels, device);
    const Plan plan = plan_of(options);
    auditor.launch(plan.blocks);
    const Audit alone = auditor.take();
    meet(meeting_folder, index, of);
    for (std::uint32_t n = 0; n < plan.launches; ++n) auditor.launch(plan.blocks);
    const Audit both = auditor.take();
    meet(meeting_folder + "/done", index, of);  // its share is its own until the other has done
    std::ostringstream out;
    out << "multiprocessors " << auditor.multiprocessors() << '\n';
    write_audit(out, "alone", alone);
    write_audit(out, "both", both);
    std::fputs(out.str().c_str(), stdout);
    return 0;
}

void measure_smid(Section& section) {
    {
        const Kernels kernels(section.device);
        audit_partitions(section, kernels);
    }
    audit_processes(section);
}

}  // namespace bench
