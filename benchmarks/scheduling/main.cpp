// The measurements of the scheduler, pool, transfers and partitions whose loops Python would disturb. Prints
// one line of JSON a row; `python -m pygpukit.benchmark --scheduling` runs it and keeps the record.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>

#include "base/error.hpp"
#include "driver/libraries.hpp"
#include "harness.hpp"
#include "kernels.hpp"

namespace {

struct Entry {
    const char* name;
    void (*measure)(bench::Section&);
};
constexpr Entry kSections[] = {
    {"smid", bench::measure_smid},         {"victim", bench::measure_victim},
    {"hooks", bench::measure_hooks},       {"pool", bench::measure_pool},
    {"eviction", bench::measure_eviction}, {"transfers", bench::measure_transfers},
    {"cycles", bench::measure_cycles},
};

struct Arguments {
    bench::Options options;
    std::vector<std::string> sections;  // empty: all
    int child = -1, children = 0;
    std::string meeting_folder;
    int compile_for = 0;  // an architecture
    std::string problem;
};

std::vector<std::string> split(const std::string& text, char separator) {
    std::vector<std::string> parts;
    std::istringstream in(text);
    for (std::string part; std::getline(in, part, separator);) parts.push_back(part);
    return parts;
}

Arguments read(int count, char** values) {
    Arguments result;
    result.options.program = values[0];
    for (int i = 1; i < count; ++i) {
        const std::string what = values[i];
        const int left = count - i - 1;
        if (what == "--quick") {
            result.options.quick = true;
        } else if (what == "--device" && left >= 1) {
            result.options.device_name = values[++i];
        } else if (what == "--seconds" && left >= 1) {
            result.options.seconds = std::atof(values[++i]);
        } else if (what == "--victim" && left >= 1) {
            result.options.victim = values[++i];
        } else if (what == "--bandwidth" && left >= 1) {
            result.options.bandwidth = std::atof(values[++i]);
        } else if (what == "--library-folders" && left >= 1) {
            result.options.folders = values[++i];
        } else if (what == "--compile-for" && left >= 1) {
            result.compile_for = std::atoi(values[++i]);
        } else if (what == "--smid-child" && left >= 3) {
            result.child = std::atoi(values[++i]);
            result.children = std::atoi(values[++i]);
            result.meeting_folder = values[++i];
        } else if (std::any_of(std::begin(kSections), std::end(kSections),
                               [&](const Entry& entry) { return what == entry.name; })) {
            result.sections.push_back(what);
        } else {
            result.problem = what;
        }
    }
    return result;
}

int usage(const std::string& problem) {
    std::fprintf(stderr,
                 "'%s' is not understood\nusage: pygpukit_benchmarks [--device NAME] [--quick] [--seconds N] "
                 "[--victim compute|mixed|memory] [--bandwidth SHARE] [--library-folders A:B] [SECTION "
                 "...]\nsections:",
                 problem.c_str());
    for (const Entry& entry : kSections) std::fprintf(stderr, " %s", entry.name);
    std::fputc('\n', stderr);
    return 2;
}

}  // namespace

int main(int count, char** values) {
    const Arguments arguments = read(count, values);
    if (!arguments.problem.empty()) return usage(arguments.problem);
    bench::Options options = arguments.options;
    int failures = 0;
    std::string current = "start";
    try {
        if (!options.folders.empty()) gpk::set_library_folders(split(options.folders, ':'));
        if (arguments.compile_for != 0) {
            bench::compile_kernels(arguments.compile_for);
            return 0;
        }
        if (options.device_name.empty()) options.device_name = gpk::current_device().name();
        if (arguments.child >= 0) {
            return bench::run_smid_child(options, arguments.child, arguments.children,
                                         arguments.meeting_folder);
        }
        gpk::Device& device = gpk::device(options.device_name);
        for (const Entry& entry : kSections) {
            const auto& wanted = arguments.sections;
            if (!wanted.empty() && std::find(wanted.begin(), wanted.end(), entry.name) == wanted.end()) {
                continue;
            }
            current = entry.name;
            try {
                bench::Section section(entry.name, device, options);
                entry.measure(section);
            } catch (const std::exception& failure) {
                bench::print_failure(entry.name, failure.what());
                ++failures;
            }
        }
    } catch (const std::exception& failure) {
        bench::print_failure(current, failure.what());
        ++failures;
    }
    return failures == 0 ? 0 : 1;
}
