#include "scheduler/pacer.hpp"

#include <algorithm>
#include <cmath>

#include "base/error.hpp"

namespace gpk {

namespace {

constexpr double kNanoseconds = 1e9;
// A launch takes so long to arrive: the queue is refilled before it is empty.
constexpr std::int64_t kRefillNs = 10'000;
constexpr std::int64_t kAskAgainNs = 2'000;

[[noreturn]] void refuse(const char* argument, const char* expected, double got) {
    throw error(ErrorKind::value,
                {.call = "PacingConfig", .argument = argument, .expected = expected, .got = str(got)});
}

void check_share(const char* argument, double share) {
    if (!(share >= 0 && share <= 1)) refuse(argument, "a share of 0 (no limit) to 1", share);
}

bool is_sound(std::int64_t ns) { return ns >= 1'000 && ns <= 60'000'000'000; }
constexpr const char* kSoundTime = "1 microsecond to 60 seconds";

void check_time(const char* argument, std::int64_t ns) {
    if (!is_sound(ns)) refuse(argument, kSoundTime, static_cast<double>(ns) / kNanoseconds);
}

}  // namespace

void check(const PacingConfig& config) {
    check_share("time_share", config.time_share);
    check_share("bandwidth_share", config.bandwidth_share);
    if (!(config.device_bandwidth >= 0 && std::isfinite(config.device_bandwidth))) {
        refuse("device_bandwidth", "bytes a second", config.device_bandwidth);
    }
    if (config.bandwidth_share > 0 && config.device_bandwidth == 0) {
        refuse("device_bandwidth", "the bandwidth that bandwidth_share is of", 0);
    }
    check_time("queue_ahead", config.queue_ahead_ns);
    check_time("max_hold", config.max_hold_ns);
    check_time("burst", config.burst_ns);
    if (config.slicing != SliceConfig()) check(config.slicing);
}

void check(const SliceConfig& config) {
    if (is_sound(config.max_ns)) return;
    throw error(ErrorKind::value, {.call = "SliceConfig",
                                   .argument = "max_time",
                                   .expected = kSoundTime,
                                   .got = str(static_cast<double>(config.max_ns) / kNanoseconds)});
}

double TokenBucket::tokens_at(std::int64_t now_ns) const noexcept {
    if (at_ns_ < 0) return tokens_;
    return std::min(depth_,
                    tokens_ + rate_ * static_cast<double>(std::max<std::int64_t>(now_ns - at_ns_, 0)));
}

std::int64_t TokenBucket::ready_at(std::int64_t now_ns) const noexcept {
    if (rate_ <= 0) return now_ns;
    const double tokens = tokens_at(now_ns);
    if (tokens >= 0) return now_ns;
    return now_ns + static_cast<std::int64_t>(std::min(std::ceil(-tokens / rate_), 1e15));
}

void TokenBucket::take(std::int64_t now_ns, double amount) noexcept {
    if (rate_ <= 0) return;
    tokens_ = tokens_at(now_ns) - amount;
    at_ns_ = std::max(at_ns_, now_ns);
}

Pacer::Pacer(const PacingConfig& config)
    : config_(config),
      time_(config.time_share, config.time_share * static_cast<double>(config.burst_ns)),
      bytes_(config.bandwidth_share * config.device_bandwidth / kNanoseconds,
             config.bandwidth_share * config.device_bandwidth / kNanoseconds *
                 static_cast<double>(config.burst_ns)) {
    check(config);
}

// Held work gets queue_ahead_ns of device time after max_hold_ns, so that nobody starves.
bool Pacer::hold_is_over(std::int64_t now_ns, std::int64_t expected_ns) noexcept {
    if (held_since_ns_ < 0) held_since_ns_ = now_ns;
    if (credit_ns_ <= 0 && now_ns - held_since_ns_ >= config_.max_hold_ns)
        credit_ns_ = config_.queue_ahead_ns;
    if (credit_ns_ <= 0) return false;
    credit_ns_ -= expected_ns;
    if (credit_ns_ <= 0) held_since_ns_ = now_ns;
    return true;
}

std::int64_t Pacer::admit(std::int64_t now_ns, std::int64_t expected_ns, double bytes,
                          const Situation& situation) {
    const std::int64_t ready = std::max(time_.ready_at(now_ns), bytes_.ready_at(now_ns));
    if (ready > now_ns) return ready;
    if (situation.guarded && !config_.is_protected) {
        const std::int64_t ahead = outstanding_ns(now_ns);
        // Work longer than the bound goes one by one.
        if (ahead > kRefillNs && ahead + expected_ns > config_.queue_ahead_ns) {
            const std::int64_t room = config_.queue_ahead_ns - expected_ns;
            return now_ns + std::max(ahead - std::max(room, kRefillNs), std::int64_t{1});
        }
        if (situation.held) {
            if (!hold_is_over(now_ns, expected_ns)) return now_ns + kAskAgainNs;
        } else {
            held_since_ns_ = -1;
            credit_ns_ = 0;
        }
    }
    time_.take(now_ns, static_cast<double>(expected_ns));
    bytes_.take(now_ns, bytes);
    issued_ns_ += expected_ns;
    busy_until_ns_ = std::max(busy_until_ns_, now_ns) + expected_ns;
    return 0;
}

void Pacer::undo(std::int64_t now_ns, std::int64_t expected_ns, double bytes) noexcept {
    time_.take(now_ns, -static_cast<double>(expected_ns));
    bytes_.take(now_ns, -bytes);
    issued_ns_ -= expected_ns;
    busy_until_ns_ -= expected_ns;
}

void Pacer::seen(std::int64_t now_ns, std::int64_t place, bool reached) noexcept {
    const std::int64_t behind = now_ns + (issued_ns_ - place);  // what was queued after the marker
    busy_until_ns_ = reached ? std::min(busy_until_ns_, behind) : std::max(busy_until_ns_, behind);
}

std::int64_t Pacer::outstanding_ns(std::int64_t now_ns) const noexcept {
    return std::max<std::int64_t>(busy_until_ns_ - now_ns, 0);
}

}  // namespace gpk
