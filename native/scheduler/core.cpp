#include "scheduler/core.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "base/error.hpp"

namespace gpk {

namespace {

constexpr std::array<std::string_view, 7> kStates{"pending", "queued",    "running", "completed",
                                                  "failed",  "cancelled", "rejected"};
constexpr std::array<std::string_view, 8> kFaults{"none",     "raised",    "device",   "dependency",
                                                  "deadline", "cancelled", "shutdown", "rejected"};

void check_weight(double weight) {
    if (weight > 0 && std::isfinite(weight)) return;
    throw error(
        ErrorKind::value,
        {.call = "Scheduler", .argument = "weight", .expected = "a number above 0", .got = str(weight)});
}

}  // namespace

std::string_view to_string(TaskState state) noexcept { return kStates[static_cast<std::size_t>(state)]; }
std::string_view to_string(TaskFault fault) noexcept { return kFaults[static_cast<std::size_t>(fault)]; }

SchedulerCore::SchedulerCore(const CoreConfig& config, const Clock& clock)
    : config_(config), clock_(&clock), admission_(config.admission), ready_(1), turns_(1) {
    check_policy(config.policy);
}

AccountId SchedulerCore::add_account(std::string name, const AccountLimits& limits, AccountId parent,
                                     double weight) {
    check_weight(weight);
    const AccountId account = admission_.add_account(std::move(name), limits, parent);
    ready_.emplace_back();
    turns_.push_back({.weight = weight});
    return account;
}

void SchedulerCore::set_weight(AccountId account, double weight) {
    check_weight(weight);
    // What it was charged keeps its place in the order.
    turns_.at(account).weight = weight;
}

const SchedulerCore::Task& SchedulerCore::find(const char* call, TaskId task) const {
    const auto known = tasks_.find(task);
    if (known != tasks_.end()) return known->second;
    throw error(ErrorKind::value, {.call = str("Scheduler.", call),
                                   .argument = "task",
                                   .expected = "a task of this scheduler",
                                   .got = str("task ", task, ", which is unknown or forgotten")});
}

SchedulerCore::Task& SchedulerCore::find(const char* call, TaskId task) {
    return const_cast<Task&>(std::as_const(*this).find(call, task));
}

// -- Changes of state -----------------------------------------------------------------------------

void SchedulerCore::move(TaskId id, Task& task, TaskState to, TaskFault fault, TaskId cause) {
    transitions_.push_back({clock_->now_ns(), id, task.state, to, fault, cause});
    task.state = to;
    task.fault = fault;
    task.cause = cause;
}

void SchedulerCore::note_answer(TaskId id, Task& task, const Decision& decision) {
    if (task.answered == decision.verdict) return;
    task.answered = decision.verdict;
    answers_.push_back({id, decision});
}

TaskId SchedulerCore::submit(TaskSpec spec) {
    TaskId failed = 0;
    std::sort(spec.after.begin(), spec.after.end());
    spec.after.erase(std::unique(spec.after.begin(), spec.after.end()), spec.after.end());
    std::vector<TaskId> open;
    for (const TaskId each : spec.after) {
        const TaskState state = find("submit", each).state;
        if (!is_final(state)) open.push_back(each);
        if (is_final(state) && state != TaskState::completed && failed == 0) failed = each;
    }
    const std::int64_t now = clock_->now_ns();
    const TaskId id = next_id_;
    Task task{.spec = std::move(spec), .submitted_ns = now};
    if (shut_down_) {
        task.decision = {.verdict = Verdict::rejected, .reason = Reason::shut_down};
    } else {
        task.decision = admission_.enqueue(id, task.spec.request, open.size(), now);
    }
    ++next_id_;
    Task& kept = tasks_.emplace(id, std::move(task)).first->second;
    if (kept.decision.verdict == Verdict::rejected) {
        note_answer(id, kept, kept.decision);
        move(id, kept, TaskState::rejected, TaskFault::rejected);
        return id;
    }
    ++waiting_;
    kept.unmet = open.size();
    for (const TaskId each : open) tasks_.at(each).dependants.push_back(id);
    if (kept.spec.deadline_ns != kNever) deadlines_.emplace(kept.spec.deadline_ns, id);
    if (failed != 0) {
        end_waiting(id, TaskState::cancelled, TaskFault::dependency, failed);
    } else if (kept.unmet == 0) {
        make_ready(id, kept);
    }
    return id;
}

void SchedulerCore::make_ready(TaskId id, Task& task) {
    const TaskRequest& request = task.spec.request;
    move(id, task, TaskState::queued);
    task.ready_ns = clock_->now_ns();
    task.key = {policy(config_.policy.kind)
                    .rank({.ready_ns = task.ready_ns,
                           .priority = request.qos.priority,
                           .expected_ns = request.expected_ns,
                           .deadline_ns = task.spec.deadline_ns},
                          config_.policy),
                id};
    ready_[request.account].insert(task.key);
    if (task.awaited != 0) awaited_ready_.insert(id);
    // An account that had nothing to do brings no credit for that time.
    Turn& turn = turns_[request.account];
    if (turn.active++ == 0) turn.charged = std::max(turn.charged, turn_now_);
}

void SchedulerCore::leave_ready(TaskId id, Task& task) {
    ready_[task.spec.request.account].erase(task.key);
    awaited_ready_.erase(id);
    throttled_.erase({task.throttled_until_ns, id});
}

// Ends a task that has not started. What depends on it is settled too.
void SchedulerCore::end_waiting(TaskId id, TaskState to, TaskFault fault, TaskId cause) {
    Task& task = tasks_.at(id);
    if (task.state == TaskState::queued) {
        leave_ready(id, task);
        --turns_[task.spec.request.account].active;
    }
    deadlines_.erase({task.spec.deadline_ns, id});
    admission_.withdraw(id);
    --waiting_;
    move(id, task, to, fault, cause);
    settle_dependants(id);
}

// A list instead of recursion: chains may be long.
void SchedulerCore::settle_dependants(TaskId id) {
    std::vector<TaskId> settled{id};
    while (!settled.empty()) {
        const TaskId done = settled.back();
        settled.pop_back();
        Task& task = tasks_.at(done);
        const bool completed = task.state == TaskState::completed;
        for (const TaskId each : std::exchange(task.dependants, {})) {
            const auto known = tasks_.find(each);
            // Cancelled before, perhaps forgotten.
            if (known == tasks_.end() || known->second.state != TaskState::pending) continue;
            Task& dependant = known->second;
            if (completed) {
                admission_.dependency_done(each);
                if (--dependant.unmet == 0) make_ready(each, dependant);
                continue;
            }
            deadlines_.erase({dependant.spec.deadline_ns, each});
            admission_.withdraw(each);
            --waiting_;
            move(each, dependant, TaskState::cancelled, TaskFault::dependency, done);
            settled.push_back(each);
        }
    }
}

void SchedulerCore::finish(TaskId id, TaskState outcome, TaskFault fault, std::int64_t used_ns) {
    Task& task = find("finish", id);
    if (task.state != TaskState::running) {
        throw error(ErrorKind::value, {.call = "Scheduler.finish",
                                       .argument = "task",
                                       .expected = "a running task",
                                       .got = str(label(id), ", which is ", to_string(task.state))});
    }
    const AccountId account = task.spec.request.account;
    admission_.release(id);
    end_wait(id);
    --running_;
    --turns_[account].active;
    charge(account, std::max<std::int64_t>(used_ns, 0) - task.estimate_ns);
    Turn& turn = turns_[account];
    turn.mean_ns += (static_cast<double>(used_ns) - turn.mean_ns) / (turn.mean_ns == 0 ? 1 : 8);
    move(id, task, outcome, fault);
    settle_dependants(id);
}

bool SchedulerCore::cancel(TaskId id) {
    Task& task = find("cancel", id);
    if (task.state == TaskState::running) task.cancel_requested = true;
    if (is_final(task.state) || task.state == TaskState::running) return false;
    end_waiting(id, TaskState::cancelled, TaskFault::cancelled, 0);
    return true;
}

void SchedulerCore::tick() {
    const std::int64_t now = clock_->now_ns();
    while (!deadlines_.empty() && deadlines_.begin()->first < now) {
        end_waiting(deadlines_.begin()->second, TaskState::failed, TaskFault::deadline, 0);
    }
}

std::int64_t SchedulerCore::next_time_ns() const {
    std::int64_t next = kNever;
    if (!deadlines_.empty()) next = deadlines_.begin()->first + 1;
    // Those whose time had come at the last asking were asked then, or stand too far behind to be.
    const auto timer = throttled_.upper_bound({asked_ns_, static_cast<TaskId>(kNever)});
    if (timer != throttled_.end()) next = std::min(next, timer->first);
    return next;
}

void SchedulerCore::shutdown(bool cancel_waiting) {
    shut_down_ = true;
    if (!cancel_waiting) return;
    std::vector<TaskId> waiting;
    for (const auto& [id, task] : tasks_) {
        if (task.state == TaskState::pending || task.state == TaskState::queued) waiting.push_back(id);
    }
    for (const TaskId each : waiting) {
        if (!is_final(tasks_.at(each).state)) end_waiting(each, TaskState::cancelled, TaskFault::shutdown, 0);
    }
}

void SchedulerCore::forget(TaskId id) {
    if (!is_final(find("forget", id).state)) {
        throw error(ErrorKind::value, {.call = "Scheduler.forget",
                                       .argument = "task",
                                       .expected = "a task that ended",
                                       .got = label(id)});
    }
    tasks_.erase(id);
}

std::vector<Transition> SchedulerCore::take_transitions() { return std::exchange(transitions_, {}); }

std::vector<Answer> SchedulerCore::take_answers() { return std::exchange(answers_, {}); }

// -- Starting -------------------------------------------------------------------------------------

// Where an account's tasks are being looked through.
struct SchedulerCore::Cursor {
    double turn;
    AccountId account;
    std::set<ReadyKey>::const_iterator next;
    int passed = 0;  // tasks that did not fit

    // For a heap with the one to ask first at its top.
    bool operator<(const Cursor& other) const {
        if (turn != other.turn) return turn > other.turn;
        return *next > *other.next;
    }
};

bool SchedulerCore::try_start(TaskId id, Task& task, bool in_place, Decision* said) {
    const std::int64_t now = clock_->now_ns();
    *said = admission_.admit(id, now, in_place);
    note_answer(id, task, *said);
    throttled_.erase({task.throttled_until_ns, id});
    if (said->verdict == Verdict::throttled) {
        task.throttled_until_ns = now + said->retry_after_ns;
        throttled_.emplace(task.throttled_until_ns, id);
    }
    if (said->verdict != Verdict::admitted) return false;
    leave_ready(id, task);
    deadlines_.erase({task.spec.deadline_ns, id});
    --waiting_;
    ++running_;
    task.decision = *said;
    const AccountId account = task.spec.request.account;
    Turn& turn = turns_[account];
    turn_now_ = std::max(turn_now_, turn.charged);
    task.estimate_ns = task.spec.request.expected_ns > 0 ? task.spec.request.expected_ns
                                                         : static_cast<std::int64_t>(turn.mean_ns);
    charge(account, task.estimate_ns);
    move(id, task, TaskState::running);
    return true;
}

void SchedulerCore::charge(AccountId account, std::int64_t used_ns) {
    turns_[account].charged += static_cast<double>(used_ns) / turns_[account].weight;
}

std::optional<TaskId> SchedulerCore::start_awaited() {
    for (const TaskId id : awaited_ready_) {
        Decision answer;
        if (try_start(id, tasks_.at(id), true, &answer)) return id;
    }
    return std::nullopt;
}

std::optional<TaskId> SchedulerCore::start_next() {
    asked_ns_ = clock_->now_ns();
    tick();
    if (const auto awaited = start_awaited()) return awaited;
    const bool by_account = policy(config_.policy.kind).by_account;
    std::vector<Cursor> heads;
    for (AccountId account = 0; account < ready_.size(); ++account) {
        if (ready_[account].empty()) continue;
        heads.push_back({by_account ? turns_[account].charged : 0, account, ready_[account].begin()});
    }
    std::make_heap(heads.begin(), heads.end());
    const std::int64_t now = clock_->now_ns();
    std::vector<AccountId> kept;  // accounts in which what is free is kept for a task that waited too long
    while (!heads.empty()) {
        std::pop_heap(heads.begin(), heads.end());
        Cursor& head = heads.back();
        const bool closed = std::any_of(kept.begin(), kept.end(), [&](AccountId each) {
            return admission_.is_below(head.account, each);
        });
        if (closed) {
            heads.pop_back();
            continue;
        }
        const TaskId id = head.next->task;
        Task& task = tasks_.at(id);
        Decision answer;
        if (try_start(id, task, false, &answer)) return id;
        const bool resource = answer.verdict == Verdict::queued;
        if (resource && now - task.ready_ns >= config_.policy.patience_ns) {
            if (answer.account == kDeviceAccount) return std::nullopt;
            kept.push_back(answer.account);
        }
        // No other task of this account can be better off than one that its own number holds back.
        const bool full = answer.reason == Reason::running_limit;
        if (full && answer.account == kDeviceAccount) return std::nullopt;
        if (full || ++head.passed > config_.policy.backfill || ++head.next == ready_[head.account].end()) {
            heads.pop_back();
        } else {
            std::push_heap(heads.begin(), heads.end());
        }
    }
    return std::nullopt;
}

}  // namespace gpk
