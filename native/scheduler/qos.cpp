#include "scheduler/qos.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.hpp"

namespace gpk {

namespace {

constexpr std::array<std::string_view, 3> kVerdicts{"admit", "throttle", "reject"};
constexpr std::array<std::string_view, 6> kReasons{
    "none", "memory_total", "memory_in_use", "bandwidth_total", "bandwidth_in_use", "pressure"};

double part_of(double used, double total) noexcept { return total > 0 ? used / total : 1; }

void check_amount(const char* call, const char* argument, double amount) {
    if (std::isfinite(amount) && amount >= 0) return;
    throw error(ErrorKind::value, {.call = call,
                                   .argument = argument,
                                   .expected = "a number that is not negative",
                                   .got = str(amount)});
}

}  // namespace

std::string_view to_string(QosVerdict verdict) noexcept {
    return kVerdicts[static_cast<std::size_t>(verdict)];
}
std::string_view to_string(QosReason reason) noexcept { return kReasons[static_cast<std::size_t>(reason)]; }

QosTaskMeta QosTaskMeta::guaranteed(std::size_t memory, double bandwidth, int priority) {
    const QosTaskMeta meta{QosClass::guaranteed, memory, memory, bandwidth, priority};
    meta.check("QosTaskMeta.guaranteed");
    return meta;
}

QosTaskMeta QosTaskMeta::burstable(std::size_t request, std::size_t limit, double bandwidth, int priority) {
    const QosTaskMeta meta{QosClass::burstable, request, limit, bandwidth, priority};
    meta.check("QosTaskMeta.burstable");
    return meta;
}

QosTaskMeta QosTaskMeta::best_effort(std::size_t limit, double bandwidth, int priority) {
    const QosTaskMeta meta{QosClass::best_effort, 0, limit, bandwidth, priority};
    meta.check("QosTaskMeta.best_effort");
    return meta;
}

void QosTaskMeta::check(const char* call) const {
    check_amount(call, "bandwidth", bandwidth);
    if (priority < -kMaxPriority || priority > kMaxPriority) {
        throw error(ErrorKind::value, {.call = call,
                                       .argument = "priority",
                                       .expected = str(-kMaxPriority, " (most urgent) to ", kMaxPriority),
                                       .got = str(priority)});
    }
    if (memory_request > memory_limit) {
        throw error(ErrorKind::value, {.call = call,
                                       .argument = "limit",
                                       .expected = str("at least the request of ", memory_request, " bytes"),
                                       .got = str(memory_limit)});
    }
    if (qos == QosClass::guaranteed && memory_request != memory_limit) {
        throw error(ErrorKind::value, {.call = call,
                                       .argument = "limit",
                                       .expected = "a limit equal to the request, as Guaranteed means",
                                       .got = str("a request of ", memory_request)});
    }
    if (qos == QosClass::best_effort && memory_request != 0) {
        throw error(ErrorKind::value, {.call = call,
                                       .argument = "request",
                                       .expected = "none, as BestEffort means",
                                       .got = str(memory_request, " bytes"),
                                       .fix = "make it Burstable to have memory reserved"});
    }
}

Parts to_parts(double amount, double total) noexcept {
    if (!(amount > 0) || !(total > 0)) return 0;
    // Far more than everything stays that, and fits.
    return std::max<Parts>(1, std::llround(std::min(amount / total, 1e9) * kWhole));
}

double Supply::pressure() const noexcept {
    return std::max(part_of(static_cast<double>(memory_reserved), static_cast<double>(memory_total)),
                    part_of(static_cast<double>(bandwidth_reserved), static_cast<double>(bandwidth_total)));
}

QosEvaluation judge(const QosTaskMeta& meta, Parts bandwidth, const Supply& supply) noexcept {
    if (meta.qos == QosClass::best_effort) {
        const double pressure = supply.pressure();
        if (pressure <= kPressure) return {};
        return {.verdict = QosVerdict::throttle,
                .reason = QosReason::pressure,
                .factor = std::max(kLeastFactor, (1 - pressure) / (1 - kPressure)),
                .needed = kPressure,
                .available = pressure};
    }
    const auto refuse_memory = [&](QosReason reason, std::size_t available) {
        return QosEvaluation{.verdict = QosVerdict::reject,
                             .reason = reason,
                             .factor = 0,
                             .needed = static_cast<double>(meta.memory_request),
                             .available = static_cast<double>(available)};
    };
    const auto refuse_bandwidth = [&](QosReason reason, Parts available) {
        return QosEvaluation{.verdict = QosVerdict::reject,
                             .reason = reason,
                             .factor = 0,
                             .needed = to_share(bandwidth),
                             .available = to_share(available)};
    };
    if (meta.memory_request > supply.memory_total) {
        return refuse_memory(QosReason::memory_total, supply.memory_total);
    }
    if (bandwidth > supply.bandwidth_total) {
        return refuse_bandwidth(QosReason::bandwidth_total, supply.bandwidth_total);
    }
    if (meta.memory_request > supply.memory_free()) {
        return refuse_memory(QosReason::memory_in_use, supply.memory_free());
    }
    const Parts free = supply.bandwidth_free();
    if (bandwidth <= free) return {.bandwidth = bandwidth};
    const double factor = static_cast<double>(free) / static_cast<double>(bandwidth);
    if (meta.qos == QosClass::guaranteed || factor < kLeastFactor) {
        return refuse_bandwidth(QosReason::bandwidth_in_use, free);
    }
    return {.verdict = QosVerdict::throttle,
            .reason = QosReason::bandwidth_in_use,
            .factor = factor,
            .needed = to_share(bandwidth),
            .available = to_share(free),
            .bandwidth = free};
}

QosPolicyEvaluator::QosPolicyEvaluator(std::size_t total_memory, double total_bandwidth)
    : total_bandwidth_(total_bandwidth), supply_{.memory_total = total_memory} {
    if (total_memory > 0 && std::isfinite(total_bandwidth) && total_bandwidth > 0) return;
    throw error(ErrorKind::value, {.call = "QosPolicyEvaluator",
                                   .expected = "a memory and a bandwidth above 0",
                                   .got = str(total_memory, " bytes and a bandwidth of ", total_bandwidth)});
}

QosEvaluation QosPolicyEvaluator::evaluate(const QosTaskMeta& meta) const {
    meta.check("QosPolicyEvaluator.evaluate");
    return judge(meta, to_parts(meta.bandwidth, total_bandwidth_), supply_);
}

QosPolicyEvaluator::Ticket QosPolicyEvaluator::reserve(const QosTaskMeta& meta) {
    const QosEvaluation answer = evaluate(meta);
    if (answer.verdict == QosVerdict::reject) {
        throw error(ErrorKind::value, {.call = "QosPolicyEvaluator.reserve",
                                       .expected = str(answer.needed, " of the supply to be free"),
                                       .got = str(answer.available, " (", to_string(answer.reason), ")"),
                                       .fix = "ask evaluate() first, and release what is done"});
    }
    const Ticket ticket = next_++;
    held_.emplace(ticket, Held{meta.memory_request, answer.bandwidth});
    supply_.memory_reserved += meta.memory_request;
    supply_.bandwidth_reserved += answer.bandwidth;
    return ticket;
}

void QosPolicyEvaluator::release(Ticket ticket) {
    const auto held = held_.find(ticket);
    if (held == held_.end()) {
        throw error(ErrorKind::value, {.call = "QosPolicyEvaluator.release",
                                       .argument = "reservation",
                                       .expected = "one that is held",
                                       .got = str(ticket, ", which was released or never given")});
    }
    supply_.memory_reserved -= held->second.memory;
    supply_.bandwidth_reserved -= held->second.bandwidth;
    held_.erase(held);
}

}  // namespace gpk
