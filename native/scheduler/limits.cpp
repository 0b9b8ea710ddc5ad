#include "scheduler/limits.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.hpp"

namespace gpk {

namespace {

constexpr int kMaxStreams = 4096;

template <class Number>
[[noreturn]] void refuse(const char* argument, const char* expected, Number got) {
    throw error(ErrorKind::value,
                {.call = "PartitionLimits", .argument = argument, .expected = expected, .got = str(got)});
}

double checked_share(const char* argument, double share) {
    if (!(share > 0 && share <= 1)) refuse(argument, "a share above 0 and at most 1", share);
    return share;
}

}  // namespace

PartitionLimits& PartitionLimits::memory(std::size_t bytes) {
    if (bytes == 0 || bytes > static_cast<std::size_t>(std::numeric_limits<std::int64_t>::max())) {
        refuse("memory", "1 to 2^63 - 1 bytes", bytes);
    }
    memory_ = bytes;
    return *this;
}

PartitionLimits& PartitionLimits::compute(double share) {
    compute_ = checked_share("compute", share);
    return *this;
}

PartitionLimits& PartitionLimits::bandwidth(double share) {
    bandwidth_ = checked_share("bandwidth", share);
    return *this;
}

PartitionLimits& PartitionLimits::streams(std::int64_t count) {
    if (count < 1 || count > kMaxStreams) refuse("streams", "1 to 4096", count);
    streams_ = static_cast<int>(count);
    return *this;
}

PartitionLimits& PartitionLimits::qos(QosClass qos) noexcept {
    qos_ = qos;
    return *this;
}

PartitionLimits& PartitionLimits::slicing(const SliceConfig& config) {
    check(config);
    slicing_ = config;
    return *this;
}

int groups_for(double share, int groups) noexcept {
    if (share <= 0 || groups <= 0) return 0;
    constexpr double kRounding = 1e-9;  // 0.1 of 10 groups is one
    return std::clamp(static_cast<int>(std::floor(share * groups + kRounding)), 1, groups);
}

}  // namespace gpk
