#include "base/byte_size.hpp"

#include <charconv>
#include <cmath>
#include <limits>

#include "base/error.hpp"

namespace gpk {

namespace {

struct Unit {
    std::string_view name;
    double bytes;
};

constexpr Unit kUnits[] = {
    {"", 1},
    {"B", 1},
    {"kB", 1e3},
    {"KB", 1e3},
    {"MB", 1e6},
    {"GB", 1e9},
    {"TB", 1e12},
    {"KiB", 1024.0},
    {"MiB", 1048576.0},
    {"GiB", 1073741824.0},
    {"TiB", 1099511627776.0},
};

}  // namespace

std::size_t parse_byte_size(std::string_view call, std::string_view text) {
    double number = 0;
    const auto [rest, failure] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (failure == std::errc()) {
        std::string_view unit(rest, static_cast<std::size_t>(text.data() + text.size() - rest));
        while (!unit.empty() && unit.front() == ' ') unit.remove_prefix(1);
        for (const Unit& known : kUnits) {
            if (unit != known.name) continue;
            const double bytes = std::floor(number * known.bytes);
            if (bytes >= 1 && bytes < static_cast<double>(std::numeric_limits<std::ptrdiff_t>::max())) {
                return static_cast<std::size_t>(bytes);
            }
        }
    }
    throw error(
        ErrorKind::value,
        {.call = std::string(call), .expected = "a size such as 4GiB or 500MB", .got = str("'", text, "'")});
}

}  // namespace gpk
