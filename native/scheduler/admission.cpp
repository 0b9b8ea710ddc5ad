#include "scheduler/admission.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "base/error.hpp"

namespace gpk {

namespace {

constexpr std::array<std::string_view, 4> kVerdicts{"admitted", "queued", "throttled", "rejected"};
constexpr std::array<std::string_view, 12> kReasons{
    "none",     "dependencies", "memory",         "bandwidth",         "compute",         "running_limit",
    "pressure", "queue_full",   "exceeds_memory", "exceeds_bandwidth", "exceeds_compute", "shut_down"};

void check_share(const char* call, const char* argument, double share) {
    if (share >= 0 && share <= 1) return;
    throw error(ErrorKind::value,
                {.call = call, .argument = argument, .expected = "a share from 0 to 1", .got = str(share)});
}

void check_limits(const char* call, const AccountLimits& limits) {
    check_share(call, "bandwidth", limits.bandwidth);
    check_share(call, "compute", limits.compute);
}

void apply(const AccountLimits& limits, AdmissionController::Account& account) {
    account.limits = limits;
    account.supply.memory_total = limits.memory;
    account.supply.bandwidth_total = to_parts(limits.bandwidth, 1);
    account.compute_total = to_parts(limits.compute, 1);
}

// What is free; a limit may have been set below what is reserved.
template <class Number>
Number left(Number total, Number reserved) {
    return total > reserved ? total - reserved : 0;
}

Decision waiting(Reason reason, AccountId account, double needed, double available) {
    return {.verdict = Verdict::queued,
            .reason = reason,
            .account = account,
            .needed = needed,
            .available = available};
}

Parts compute_of(const TaskRequest& request) {
    return request.qos.qos == QosClass::best_effort ? 0 : to_parts(request.compute, 1);
}

// The least that a task's bandwidth may be cut to.
Parts least_bandwidth(const TaskRequest& request) {
    const Parts asked = to_parts(request.qos.bandwidth, 1);
    if (request.qos.qos == QosClass::best_effort) return 0;
    if (request.qos.qos == QosClass::guaranteed) return asked;
    return static_cast<Parts>(std::ceil(static_cast<double>(asked) * kLeastFactor));
}

}  // namespace

std::string_view to_string(Verdict verdict) noexcept { return kVerdicts[static_cast<std::size_t>(verdict)]; }
std::string_view to_string(Reason reason) noexcept { return kReasons[static_cast<std::size_t>(reason)]; }

AdmissionController::AdmissionController(const AdmissionConfig& config)
    : config_(config), last_best_effort_ns_(std::numeric_limits<std::int64_t>::min() / 2) {
    constexpr const char* kCall = "AdmissionController";
    check_limits(kCall, config.device);
    if (config.device.memory == 0 || config.device.memory == kUnlimited) {
        throw error(ErrorKind::value, {.call = kCall,
                                       .argument = "memory",
                                       .expected = "the device's memory in bytes",
                                       .got = config.device.memory == 0 ? "0" : "none"});
    }
    if (config.throttle_ns < 0 || config.retry_ns < 1) {
        throw error(ErrorKind::value, {.call = kCall,
                                       .expected = "times that are not negative",
                                       .got = str(std::min(config.throttle_ns, config.retry_ns), " ns")});
    }
    accounts_.push_back({.name = "device"});
    apply(config.device, accounts_.front());
}

AccountId AdmissionController::add_account(std::string name, const AccountLimits& limits, AccountId parent) {
    check_account("AdmissionController.add_account", parent);
    check_limits("AdmissionController.add_account", limits);
    accounts_.push_back({.name = std::move(name), .parent = parent});
    apply(limits, accounts_.back());
    return accounts_.size() - 1;
}

void AdmissionController::set_limits(AccountId account, const AccountLimits& limits) {
    check_account("AdmissionController.set_limits", account);
    check_limits("AdmissionController.set_limits", limits);
    apply(limits, accounts_[account]);
}

template <class Do>
void AdmissionController::up_from(AccountId account, Do&& each) {
    for (;; account = accounts_[account].parent) {
        each(accounts_[account]);
        if (account == kDeviceAccount) return;
    }
}

Decision AdmissionController::enqueue(TaskId task, const TaskRequest& request, std::size_t dependencies,
                                      std::int64_t now_ns) {
    if (entries_.contains(task)) {
        throw error(ErrorKind::value, {.call = "AdmissionController.enqueue",
                                       .argument = "task",
                                       .expected = "one that is not known yet",
                                       .got = str(task)});
    }
    Decision answer = rejection(request);
    if (answer.verdict != Verdict::rejected) answer = full_queue(request.account, now_ns);
    if (answer.verdict == Verdict::rejected) return answer;
    entries_.emplace(task, Entry{.request = request, .dependencies = dependencies});
    up_from(request.account, [](Account& account) { ++account.queued; });
    return waiting(dependencies != 0 ? Reason::dependencies : Reason::none, request.account,
                   static_cast<double>(dependencies), 0);
}

void AdmissionController::dependency_done(TaskId task) {
    Entry& known = entry("AdmissionController.dependency_done", task, false);
    if (known.dependencies == 0) {
        throw error(ErrorKind::value, {.call = "AdmissionController.dependency_done",
                                       .expected = "a task that waits for another",
                                       .got = str("task ", task)});
    }
    --known.dependencies;
}

// What no release can mend.
Decision AdmissionController::rejection(const TaskRequest& request) const {
    constexpr const char* kCall = "AdmissionController.enqueue";
    check_account(kCall, request.account);
    request.qos.check(kCall);
    check_share(kCall, "bandwidth", request.qos.bandwidth);
    check_share(kCall, "compute", request.compute);
    if (request.expected_ns < 0) {
        throw error(ErrorKind::value, {.call = kCall,
                                       .argument = "expected",
                                       .expected = "a time that is not negative",
                                       .got = str(request.expected_ns, " ns")});
    }
    const auto never = [](Reason reason, AccountId id, double needed, double available) {
        return Decision{.verdict = Verdict::rejected,
                        .reason = reason,
                        .account = id,
                        .needed = needed,
                        .available = available};
    };
    for (AccountId id = request.account;; id = accounts_[id].parent) {
        const Account& each = accounts_[id];
        if (request.qos.memory_request > each.supply.memory_total) {
            return never(Reason::exceeds_memory, id, static_cast<double>(request.qos.memory_request),
                         static_cast<double>(each.supply.memory_total));
        }
        if (least_bandwidth(request) > each.supply.bandwidth_total) {
            return never(Reason::exceeds_bandwidth, id, request.qos.bandwidth, each.limits.bandwidth);
        }
        if (compute_of(request) > each.compute_total) {
            return never(Reason::exceeds_compute, id, request.compute, each.limits.compute);
        }
        if (id == kDeviceAccount) return {};
    }
}

Decision AdmissionController::full_queue(AccountId account, std::int64_t now_ns) const {
    for (AccountId id = account;; id = accounts_[id].parent) {
        const Account& each = accounts_[id];
        if (each.queued >= each.limits.max_queued) {
            return {.verdict = Verdict::rejected,
                    .reason = Reason::queue_full,
                    .account = id,
                    .needed = static_cast<double>(each.queued) + 1,
                    .available = static_cast<double>(each.limits.max_queued),
                    .retry_after_ns = retry_after(now_ns)};
        }
        if (id == kDeviceAccount) return {};
    }
}

// Until the first running task that declared its length is expected to end.
std::int64_t AdmissionController::retry_after(std::int64_t now_ns) const {
    std::int64_t soonest = std::numeric_limits<std::int64_t>::max();
    for (const auto& [task, each] : entries_) {
        if (each.admitted && each.expected_end_ns > now_ns) soonest = std::min(soonest, each.expected_end_ns);
    }
    return soonest == std::numeric_limits<std::int64_t>::max() ? config_.retry_ns : soonest - now_ns;
}

Decision AdmissionController::decide(const TaskRequest& request, std::int64_t now_ns, bool in_place,
                                     Parts* bandwidth) const {
    const Parts asked = to_parts(request.qos.bandwidth, 1);
    const Parts compute = compute_of(request);
    Parts granted = asked;
    Decision answer;
    for (AccountId id = request.account;; id = accounts_[id].parent) {
        const Account& each = accounts_[id];
        if (!in_place && each.running >= each.limits.max_running) {
            return waiting(Reason::running_limit, id, static_cast<double>(each.running) + 1,
                           static_cast<double>(each.limits.max_running));
        }
        const Parts compute_free = left(each.compute_total, each.compute_reserved);
        if (compute > compute_free) {
            return waiting(Reason::compute, id, to_share(compute), to_share(compute_free));
        }
        // As if what is over a lowered limit were not there: nothing is free then.
        const Supply supply{each.supply.memory_total,
                            std::min(each.supply.memory_reserved, each.supply.memory_total),
                            each.supply.bandwidth_total,
                            std::min(each.supply.bandwidth_reserved, each.supply.bandwidth_total)};
        if (request.qos.qos != QosClass::best_effort) {
            const QosEvaluation qos = judge(request.qos, granted, supply);
            switch (qos.reason) {
                case QosReason::memory_total:
                case QosReason::memory_in_use: return waiting(Reason::memory, id, qos.needed, qos.available);
                case QosReason::bandwidth_total:
                    // Burstable takes what there is; of Guaranteed, rejection() has let none pass.
                    granted = std::min(granted, supply.bandwidth_free());
                    break;
                case QosReason::bandwidth_in_use: granted = qos.bandwidth; break;
                default: break;
            }
        } else if (id == kDeviceAccount && !in_place) {
            const double reserved_compute = to_share(each.compute_reserved);
            const double pressure = std::max(supply.pressure(), reserved_compute);
            if (pressure > kPressure) {
                const double excess = std::min(1.0, (pressure - kPressure) / (1 - kPressure));
                const auto spacing =
                    static_cast<std::int64_t>(static_cast<double>(config_.throttle_ns) * excess);
                answer.factor = std::max(kLeastFactor, 1 - excess);
                answer.reason = Reason::pressure;
                if (now_ns - last_best_effort_ns_ < spacing) {
                    return {.verdict = Verdict::throttled,
                            .reason = Reason::pressure,
                            .account = id,
                            .needed = kPressure,
                            .available = pressure,
                            .retry_after_ns = last_best_effort_ns_ + spacing - now_ns,
                            .factor = answer.factor};
                }
            }
        }
        if (granted < least_bandwidth(request)) {
            return waiting(Reason::bandwidth, id, to_share(asked),
                           to_share(left(each.supply.bandwidth_total, each.supply.bandwidth_reserved)));
        }
        if (id == kDeviceAccount) break;
    }
    if (request.qos.qos != QosClass::best_effort) {
        *bandwidth = granted;
        if (granted < asked) {
            answer.reason = Reason::bandwidth;
            answer.factor = static_cast<double>(granted) / static_cast<double>(asked);
        }
    }
    return answer;
}

Decision AdmissionController::admit(TaskId task, std::int64_t now_ns, bool in_place) {
    Entry& known = entry("AdmissionController.admit", task, false);
    if (known.dependencies != 0) return evaluate(task, now_ns, in_place);
    Parts bandwidth = 0;
    const Decision answer = decide(known.request, now_ns, in_place, &bandwidth);
    if (answer.verdict != Verdict::admitted) return answer;
    const TaskRequest& request = known.request;
    known.admitted = true;
    known.in_place = in_place;
    known.bandwidth = bandwidth;
    known.compute = compute_of(request);
    if (request.expected_ns > 0) known.expected_end_ns = now_ns + request.expected_ns;
    up_from(request.account, [&](Account& account) {
        --account.queued;
        account.running += !in_place;
        account.supply.memory_reserved += request.qos.memory_request;
        account.supply.bandwidth_reserved += known.bandwidth;
        account.compute_reserved += known.compute;
    });
    if (request.qos.qos == QosClass::best_effort) last_best_effort_ns_ = now_ns;
    return answer;
}

Decision AdmissionController::evaluate(TaskId task, std::int64_t now_ns, bool in_place) const {
    const Entry& known = entry("AdmissionController.evaluate", task, false);
    if (known.dependencies != 0) {
        return waiting(Reason::dependencies, known.request.account, static_cast<double>(known.dependencies),
                       0);
    }
    Parts bandwidth = 0;
    return decide(known.request, now_ns, in_place, &bandwidth);
}

Decision AdmissionController::evaluate(const TaskRequest& request, std::int64_t now_ns) const {
    if (const Decision never = rejection(request); never.verdict == Verdict::rejected) return never;
    Parts bandwidth = 0;
    const Decision answer = decide(request, now_ns, false, &bandwidth);
    if (answer.verdict == Verdict::admitted) return answer;
    const Decision full = full_queue(request.account, now_ns);
    return full.verdict == Verdict::rejected ? full : answer;
}

void AdmissionController::withdraw(TaskId task) {
    const AccountId account = entry("AdmissionController.withdraw", task, false).request.account;
    up_from(account, [](Account& each) { --each.queued; });
    entries_.erase(task);
}

void AdmissionController::release(TaskId task) {
    const Entry& known = entry("AdmissionController.release", task, true);
    up_from(known.request.account, [&](Account& each) {
        each.running -= !known.in_place;
        each.supply.memory_reserved -= known.request.qos.memory_request;
        each.supply.bandwidth_reserved -= known.bandwidth;
        each.compute_reserved -= known.compute;
    });
    entries_.erase(task);
}

const AdmissionController::Account& AdmissionController::account(AccountId id) const {
    check_account("AdmissionController.account", id);
    return accounts_[id];
}

bool AdmissionController::holds(TaskId task) const {
    const auto known = entries_.find(task);
    return known != entries_.end() && known->second.admitted;
}

std::vector<AdmissionController::Held> AdmissionController::holders(AccountId account, Reason reason) const {
    const auto amount = [&](const Held& held) -> double {
        switch (reason) {
            case Reason::memory: return static_cast<double>(held.memory);
            case Reason::bandwidth: return to_share(held.bandwidth);
            case Reason::compute: return to_share(held.compute);
            case Reason::running_limit: return 1;
            default: return 0;
        }
    };
    std::vector<Held> out;
    for (const auto& [task, each] : entries_) {
        if (!each.admitted || !is_below(each.request.account, account)) continue;
        const Held held{task, each.request.qos.memory_request, each.bandwidth, each.compute};
        if (amount(held) > 0) out.push_back(held);
    }
    std::stable_sort(out.begin(), out.end(),
                     [&](const Held& a, const Held& b) { return amount(a) > amount(b); });
    return out;
}

bool AdmissionController::is_below(AccountId account, AccountId ancestor) const {
    for (;; account = accounts_[account].parent) {
        if (account == ancestor) return true;
        if (account == kDeviceAccount) return false;
    }
}

bool AdmissionController::fits_beside(const TaskRequest& request, const std::vector<TaskId>& running) const {
    for (AccountId id = request.account;; id = accounts_[id].parent) {
        const Account& each = accounts_[id];
        std::size_t memory = 0;
        Parts bandwidth = 0, compute = 0;
        for (const TaskId task : running) {
            const auto found = entries_.find(task);
            if (found == entries_.end() || !found->second.admitted) continue;
            const Entry& held = found->second;
            if (!is_below(held.request.account, id)) continue;
            memory += held.request.qos.memory_request;
            bandwidth += held.bandwidth;
            compute += held.compute;
        }
        if (request.qos.memory_request > left(each.supply.memory_total, memory) ||
            least_bandwidth(request) > left(each.supply.bandwidth_total, bandwidth) ||
            compute_of(request) > left(each.compute_total, compute)) {
            return false;
        }
        if (id == kDeviceAccount) return true;
    }
}

std::string AdmissionController::audit() const {
    std::vector<Account> counted(accounts_.size());
    for (const auto& [task, each] : entries_) {
        for (AccountId id = each.request.account;; id = accounts_[id].parent) {
            Account& sum = counted[id];
            sum.queued += !each.admitted;
            if (each.admitted) {
                sum.running += !each.in_place;
                sum.supply.memory_reserved += each.request.qos.memory_request;
                sum.supply.bandwidth_reserved += each.bandwidth;
                sum.compute_reserved += each.compute;
            }
            if (id == kDeviceAccount) break;
        }
    }
    std::string wrong;
    for (AccountId id = 0; id < accounts_.size(); ++id) {
        const Account& kept = accounts_[id];
        const Account& sum = counted[id];
        if (kept.queued != sum.queued || kept.running != sum.running ||
            kept.supply.memory_reserved != sum.supply.memory_reserved ||
            kept.supply.bandwidth_reserved != sum.supply.bandwidth_reserved ||
            kept.compute_reserved != sum.compute_reserved) {
            wrong += str("account ", kept.name, ": its sums are not those of its tasks; ");
        }
        if (kept.supply.memory_reserved > kept.supply.memory_total ||
            kept.supply.bandwidth_reserved > kept.supply.bandwidth_total ||
            kept.compute_reserved > kept.compute_total) {
            wrong += str("account ", kept.name, ": more is reserved than there is; ");
        }
    }
    return wrong;
}

AdmissionController::Entry& AdmissionController::entry(const char* call, TaskId task, bool admitted) {
    return const_cast<Entry&>(std::as_const(*this).entry(call, task, admitted));
}

const AdmissionController::Entry& AdmissionController::entry(const char* call, TaskId task,
                                                             bool admitted) const {
    const auto known = entries_.find(task);
    if (known != entries_.end() && known->second.admitted == admitted) return known->second;
    throw error(ErrorKind::value, {.call = call,
                                   .argument = "task",
                                   .expected = admitted ? "one that was admitted and not yet released"
                                                        : "one that is in the queue",
                                   .got = str("task ", task)});
}

void AdmissionController::check_account(const char* call, AccountId account) const {
    if (account < accounts_.size()) return;
    throw error(ErrorKind::value, {.call = call,
                                   .argument = "account",
                                   .expected = str("one of ", accounts_.size()),
                                   .got = str(account)});
}

}  // namespace gpk
