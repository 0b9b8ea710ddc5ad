#include "scheduler/kernel_times.hpp"

#include <algorithm>
#include <bit>

namespace gpk {

namespace {

constexpr double kAssumedBandwidth = 1e12, kAssumedFlops = 1e13;  // a second, until measured
constexpr std::int64_t kLaunchNs = 3'000;
constexpr std::int64_t kLongest = 3'600'000'000'000;

std::uint64_t mix(std::uint64_t sum, std::uint64_t value) noexcept {
    sum = (sum ^ value) * 0x9e3779b97f4a7c15u;
    return sum ^ (sum >> 29);
}

// A name is told by its address: reading it would cost as much as all the rest.
std::uint64_t key_of(const WorkRecord& work) noexcept {
    std::uint64_t key =
        mix(static_cast<std::uint64_t>(work.kind), reinterpret_cast<std::uintptr_t>(work.name.data()));
    key = mix(key, (std::uint64_t{work.config.grid.x} << 32) ^ (std::uint64_t{work.config.grid.y} << 16) ^
                       work.config.grid.z);
    key = mix(key, std::bit_cast<std::uint64_t>(work.cost.bytes) ^
                       std::rotl(std::bit_cast<std::uint64_t>(work.cost.flops), 17));
    return key | 1;  // 0 is an empty entry
}

}  // namespace

KernelTimes::Known& KernelTimes::find(std::uint64_t key) noexcept {
    Known* oldest = nullptr;
    for (std::size_t i = 0; i < kProbes; ++i) {
        Known& each = entries_[(key / 2 + i) % kEntries];
        if (each.key == key) return each;
        if (oldest == nullptr || each.launches < oldest->launches) oldest = &each;
    }
    return *oldest;
}

KernelTimes::Known& KernelTimes::of(const WorkRecord& work) noexcept {
    const std::uint64_t key = key_of(work);
    Known& known = find(key);
    if (known.key != key) {
        const double bandwidth = bandwidth_ > 0 ? bandwidth_ : kAssumedBandwidth;
        const double seconds = std::max(work.cost.bytes / bandwidth, work.cost.flops / kAssumedFlops);
        const double ns = std::clamp(seconds * 1e9, 0.0, static_cast<double>(kLongest));
        known = {key, kLaunchNs + static_cast<std::int64_t>(ns), 0, 0};
    }
    return known;
}

void KernelTimes::learn(std::uint64_t key, std::int64_t ns) noexcept {
    Known& known = find(key);
    if (known.key != key) return;
    ns = std::clamp<std::int64_t>(ns, 100, kLongest);
    // The first replaces the guess; later ones move it, so that one slow run does not count for all.
    known.ns = known.measured == 0 ? ns : known.ns + (ns - known.ns) / 4;
    ++known.measured;
}

}  // namespace gpk
