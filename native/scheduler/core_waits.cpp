// Tasks that wait for tasks, and why a task is not running.
#include <algorithm>
#include <set>
#include <utility>

#include "base/error.hpp"
#include "scheduler/core.hpp"

namespace gpk {

void SchedulerCore::begin_wait(TaskId waiter, TaskId target) {
    if (find("begin_wait", waiter).state != TaskState::running || waits_.contains(waiter)) {
        throw error(ErrorKind::value, {.call = "Scheduler.begin_wait",
                                       .argument = "waiter",
                                       .expected = "a running task that does not wait yet",
                                       .got = label(waiter)});
    }
    // The target and what it depends on, as far as it has not started.
    std::vector<TaskId> all{target};
    std::set<TaskId> seen{target};
    for (std::size_t i = 0; i < all.size(); ++i) {
        Task& task = find("begin_wait", all[i]);
        if (task.state == TaskState::pending) {
            for (const TaskId each : task.spec.after) {
                if (knows(each) && seen.insert(each).second) all.push_back(each);
            }
        }
    }
    for (const TaskId each : all) {
        Task& task = tasks_.at(each);
        ++task.awaited;
        if (task.state == TaskState::queued) awaited_ready_.insert(each);
    }
    waits_.emplace(waiter, std::move(all));
}

void SchedulerCore::end_wait(TaskId waiter) {
    const auto wait = waits_.find(waiter);
    if (wait == waits_.end()) return;
    for (const TaskId each : wait->second) {
        const auto known = tasks_.find(each);
        if (known != tasks_.end() && --known->second.awaited == 0) awaited_ready_.erase(each);
    }
    waits_.erase(wait);
}

// As in the banker's algorithm, from below: a running task that does not wait may end; one that waits may
// end if its target may; a queued one may if it fits beside those of which that is not (yet) known.
bool SchedulerCore::is_deadlocked(TaskId waiter) const {
    if (!waits_.contains(waiter)) return false;
    std::vector<TaskId> stuck;  // running, and not yet known to be able to end
    for (const auto& [each, targets] : waits_) stuck.push_back(each);
    std::set<TaskId> visiting;
    const auto may_end = [&](const auto& self, TaskId id) -> bool {
        const auto known = tasks_.find(id);
        if (known == tasks_.end() || is_final(known->second.state)) return true;
        const Task& task = known->second;
        if (task.state == TaskState::running) {
            return std::find(stuck.begin(), stuck.end(), id) == stuck.end();
        }
        if (!admission_.fits_beside(task.spec.request, stuck)) return false;
        if (task.state == TaskState::queued) return true;
        if (!visiting.insert(id).second) return true;  // asked for further up
        return std::all_of(task.spec.after.begin(), task.spec.after.end(),
                           [&](TaskId each) { return self(self, each); });
    };
    for (bool changed = true; changed;) {
        changed = false;
        for (auto each = stuck.begin(); each != stuck.end();) {
            visiting.clear();
            if (may_end(may_end, waits_.at(*each).front())) {
                each = stuck.erase(each);
                changed = true;
            } else {
                ++each;
            }
        }
    }
    return std::find(stuck.begin(), stuck.end(), waiter) != stuck.end();
}

// -- Why ------------------------------------------------------------------------------------------

Explanation SchedulerCore::explain(TaskId id) const {
    const Task& task = find("explain", id);
    const std::int64_t now = clock_->now_ns();
    Explanation out{.state = task.state, .fault = task.fault, .cause = task.cause, .decision = task.decision};
    if (task.state == TaskState::pending) {
        out.waited_ns = now - task.submitted_ns;
        for (const TaskId each : task.spec.after) {
            if (knows(each) && !is_final(state(each))) out.waits_for.push_back(each);
        }
    }
    if (task.state != TaskState::queued) return out;
    out.waited_ns = now - task.ready_ns;
    out.decision = admission_.evaluate(id, now, task.awaited != 0);
    out.held_by = admission_.holders(out.decision.account, out.decision.reason);
    const bool by_account = policy(config_.policy.kind).by_account;
    for (AccountId account = 0; account < ready_.size(); ++account) {
        if (by_account && account != task.spec.request.account) continue;
        for (const ReadyKey& each : ready_[account]) {
            if (!(each < task.key)) break;
            ++out.position;
            const Task& older = tasks_.at(each.task);
            if (out.behind != 0 || now - older.ready_ns < config_.policy.patience_ns) continue;
            const Decision answer = admission_.evaluate(each.task, now);
            if (answer.verdict == Verdict::queued &&
                admission_.is_below(task.spec.request.account, answer.account)) {
                out.behind = each.task;
            }
        }
    }
    return out;
}

std::string SchedulerCore::label(TaskId id) const {
    const auto known = tasks_.find(id);
    if (known == tasks_.end() || known->second.spec.name.empty()) return str("task ", id);
    return str("task ", id, " '", known->second.spec.name, "'");
}

namespace {

std::string bytes_text(double bytes) {
    static constexpr struct {
        double size;
        const char* name;
    } kUnits[] = {{1024. * 1024 * 1024, " GiB"}, {1024. * 1024, " MiB"}, {1024., " KiB"}};
    for (const auto& unit : kUnits) {
        if (bytes >= unit.size) return str(bytes / unit.size, unit.name);
    }
    return str(bytes, " bytes");
}

std::string amount_text(Reason reason, double amount) {
    switch (reason) {
        case Reason::memory:
        case Reason::exceeds_memory: return bytes_text(amount);
        case Reason::bandwidth:
        case Reason::exceeds_bandwidth: return str(amount, " of the bandwidth");
        case Reason::compute:
        case Reason::exceeds_compute: return str(amount, " of the compute");
        default: return str(amount);
    }
}

}  // namespace

std::string describe(const Decision& decision, std::string_view account) {
    const std::string in = str(" in ", account);
    switch (decision.reason) {
        case Reason::none: return "nothing is missing";
        case Reason::dependencies: return "waits for other tasks";
        case Reason::memory:
        case Reason::bandwidth:
        case Reason::compute:
            if (decision.verdict == Verdict::admitted) {
                return str("was granted ", decision.factor, " of the bandwidth that it asked for");
            }
            return str("needs ", amount_text(decision.reason, decision.needed), " of which ",
                       amount_text(decision.reason, decision.available), " is free", in);
        case Reason::running_limit: return str(decision.available, " tasks run", in, ", as many as may");
        case Reason::pressure:
            return str("throttled: ", decision.available * 100, " % is promised to others; again in ",
                       static_cast<double>(decision.retry_after_ns) / 1e9, " s");
        case Reason::queue_full:
            return str("the queue of ", account, " is full with ", decision.available,
                       " tasks; try again in ", static_cast<double>(decision.retry_after_ns) / 1e9, " s");
        case Reason::exceeds_memory:
        case Reason::exceeds_bandwidth:
        case Reason::exceeds_compute:
            return str("needs ", amount_text(decision.reason, decision.needed),
                       ", and there is never more than ", amount_text(decision.reason, decision.available),
                       in);
        case Reason::shut_down: return "the scheduler was shut down";
    }
    return {};
}

std::string SchedulerCore::explain_text(TaskId id) const {
    const Explanation why = explain(id);
    const std::string account = admission_.account(why.decision.account).name;
    std::string text = str(label(id), " is ", to_string(why.state));
    switch (why.state) {
        case TaskState::pending: {
            text += ": waits for ";
            for (std::size_t i = 0; i < why.waits_for.size(); ++i) {
                text += str(i == 0 ? "" : ", ", label(why.waits_for[i]), " (",
                            to_string(state(why.waits_for[i])), ")");
            }
            break;
        }
        case TaskState::queued: {
            text += str(", number ", why.position + 1, " in its order: ", describe(why.decision, account));
            constexpr std::size_t kShown = 3;
            for (std::size_t i = 0; i < std::min(kShown, why.held_by.size()); ++i) {
                const auto& held = why.held_by[i];
                text += str(i == 0 ? "; held by " : ", ", label(held.task));
                if (why.decision.reason == Reason::memory) {
                    text += str(" (", bytes_text(static_cast<double>(held.memory)), ")");
                }
            }
            if (why.held_by.size() > kShown) text += str(" and ", why.held_by.size() - kShown, " more");
            if (why.behind != 0) text += str("; what is free is kept for ", label(why.behind));
            break;
        }
        case TaskState::running:
            if (why.decision.factor < 1) text += str(": ", describe(why.decision, account));
            break;
        case TaskState::rejected: text += str(": ", describe(why.decision, account)); break;
        default:
            if (why.fault == TaskFault::dependency) {
                text += str(": ", label(why.cause), " did not complete");
            } else if (why.fault != TaskFault::none && why.fault != TaskFault::cancelled) {
                text += str(": ", to_string(why.fault));
            }
    }
    return text;
}

}  // namespace gpk
