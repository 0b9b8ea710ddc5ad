#include "harness.hpp"

#include <algorithm>
#include <cstdio>

#include "base/clock.hpp"
#include "base/error.hpp"

namespace bench {

namespace {

std::string number(double value) {
    if (!std::isfinite(value)) return "null";
    char text[32];
    std::snprintf(text, sizeof(text), "%.9g", value);
    return text;
}

const char* verdict(const Goal& goal, double value, bool judged) {
    if (!judged || goal.kind == Goal::Kind::none || std::isnan(value)) return "null";
    const bool met = goal.kind == Goal::Kind::at_most ? value <= goal.bound : value >= goal.bound;
    return met ? "true" : "false";
}

std::string text_of(const Row& row) {
    if (row.goal.kind == Goal::Kind::none) return "null";
    const char* sign = row.goal.kind == Goal::Kind::at_most ? "<= " : ">= ";
    return quoted(gpk::str(row.goal_of.empty() ? "" : row.goal_of + " ", sign, row.goal.bound));
}

std::string object_of(const std::vector<std::pair<std::string, double>>& entries) {
    std::string result;
    for (const auto& [what, value] : entries) {
        result += gpk::str(result.empty() ? "" : ", ", quoted(what), ": ", number(value));
    }
    return gpk::str("{", result, "}");
}

void put_line(const std::string& line) {
    std::fwrite(line.data(), 1, line.size(), stdout);
    std::fputc('\n', stdout);
    std::fflush(stdout);
}

}  // namespace

std::string quoted(std::string_view text) {
    std::string result = "\"";
    for (const char c : text) {
        if (c == '"' || c == '\\') result += '\\';
        if (static_cast<unsigned char>(c) < 0x20) {
            char code[8];
            std::snprintf(code, sizeof(code), "\\u%04x", static_cast<unsigned char>(c));
            result += code;
        } else {
            result += c;
        }
    }
    return result + '"';
}

void print(std::string_view section, const Row& row, bool judged) {
    double held = row.value;
    for (const auto& [what, ratio] : row.ratios) {
        if (what == row.goal_of) held = ratio;
    }
    const auto or_value = [&](double bound) { return number(std::isnan(bound) ? row.value : bound); };
    put_line(gpk::str("{\"section\": ", quoted(section), ", \"name\": ", quoted(row.name), ", \"value\": ",
                      number(row.value), ", \"unit\": ", quoted(row.unit), ", \"low\": ", or_value(row.low),
                      ", \"high\": ", or_value(row.high), ", \"error\": ", number(row.error),
                      ", \"goal\": ", text_of(row), ", \"met\": ", verdict(row.goal, held, judged),
                      ", \"ratios\": ", object_of(row.ratios), ", \"figures\": ", object_of(row.figures),
                      ", \"note\": ", row.note.empty() ? "null" : quoted(row.note), "}"));
}

void print_failure(std::string_view section, std::string_view message) {
    put_line(gpk::str("{\"section\": ", quoted(section), ", \"failure\": ", quoted(message), "}"));
}

std::int64_t Section::now_ns() { return gpk::steady_clock().now_ns(); }

double quantile(std::vector<double> values, double q) {
    if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
    const auto rank = static_cast<std::size_t>(std::ceil(q * static_cast<double>(values.size())));
    const std::size_t index = std::min(values.size(), std::max<std::size_t>(rank, 1)) - 1;
    std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(index), values.end());
    return values[index];
}

double seconds_of(const std::function<void()>& work) {
    const std::int64_t start = Section::now_ns();
    work();
    return static_cast<double>(Section::now_ns() - start) * 1e-9;
}

std::uint64_t Random::next() noexcept {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
}

}  // namespace bench
