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

std::int64_t KernelTimes::declared_ns(const WorkRecord& work) const noexcept {
    const double bandwidth = bandwidth_ > 0 ? bandwidth_ : kAssumedBandwidth;
    const double seconds = std::max(work.cost.bytes / bandwidth, work.cost.flops / kAssumedFlops);
    return static_cast<std::int64_t>(std::clamp(seconds * 1e9, 0.0, static_cast<double>(kLongest)));
}

std::size_t KernelTimes::slot_of(const char* kernel) noexcept {
    return mix(0, reinterpret_cast<std::uintptr_t>(kernel)) % kKernels;
}

std::int64_t KernelTimes::guess(const char* kernel, std::int64_t declared_ns) const noexcept {
    const Rate& rate = rates_[slot_of(kernel)];
    double ns = static_cast<double>(declared_ns);
    if (kernel != nullptr && rate.kernel == kernel) ns *= rate.measured_ns / rate.declared_ns;
    return kLaunchNs + static_cast<std::int64_t>(std::min(ns, static_cast<double>(kLongest)));
}

KernelTimes::Known& KernelTimes::of(const WorkRecord& work) noexcept {
    const std::uint64_t key = key_of(work);
    Known& known = find(key);
    if (known.key != key) {
        const char* kernel = work.kind == WorkKind::kernel ? work.name.data() : nullptr;
        const std::int64_t declared = declared_ns(work);
        known = {.key = key, .ns = guess(kernel, declared), .kernel = kernel, .declared_ns = declared};
    }
    return known;
}

std::int64_t KernelTimes::expected_ns(const WorkRecord& work) const noexcept {
    const std::uint64_t key = key_of(work);
    for (std::size_t i = 0; i < kProbes; ++i) {
        const Known& each = entries_[(key / 2 + i) % kEntries];
        if (each.key == key && each.measured > 0) return each.ns;
    }
    return guess(work.kind == WorkKind::kernel ? work.name.data() : nullptr, declared_ns(work));
}

void KernelTimes::learn(std::uint64_t key, std::int64_t ns) noexcept {
    Known& known = find(key);
    if (known.key != key) return;
    ns = std::clamp<std::int64_t>(ns, 100, kLongest);
    // The first replaces the guess; later ones move it, so that one slow run does not count for all.
    known.ns = known.measured == 0 ? ns : known.ns + (ns - known.ns) / 4;
    ++known.measured;
    if (known.kernel == nullptr || known.declared_ns == 0) return;
    constexpr double kKept = 0.75;
    Rate& rate = rates_[slot_of(known.kernel)];
    if (rate.kernel != known.kernel) rate = {.kernel = known.kernel};
    rate.measured_ns = kKept * rate.measured_ns + static_cast<double>(ns);
    rate.declared_ns = kKept * rate.declared_ns + static_cast<double>(known.declared_ns);
}

}  // namespace gpk
