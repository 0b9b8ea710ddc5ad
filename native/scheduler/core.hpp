// SchedulerCore: the states of tasks, and which one starts next. A deterministic machine without threads:
// the threaded Scheduler, the simulation and the model checker drive this same code, and a copy of it is a
// complete state. It asks the time of a Clock, and nobody else.
//
//     pending --dependencies done--> queued --admitted--> running --> completed | failed | cancelled
//     pending, queued --> cancelled (asked for, a dependency failed, shutdown) | failed (deadline)
//     submit --> rejected (never fits, queue full, shut down)
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.hpp"
#include "scheduler/admission.hpp"
#include "scheduler/policy.hpp"

namespace gpk {

enum class TaskState : std::uint8_t { pending, queued, running, completed, failed, cancelled, rejected };
inline constexpr bool is_final(TaskState state) noexcept { return state >= TaskState::completed; }

// Why a task did not complete.
enum class TaskFault : std::uint8_t {
    none,
    raised,      // its own code failed
    device,      // its work on the device failed
    dependency,  // `cause` did not complete
    deadline,    // it could not start before its deadline
    cancelled,   // somebody asked for it
    shutdown,
    rejected,  // see the decision
};
std::string_view to_string(TaskState state) noexcept;
std::string_view to_string(TaskFault fault) noexcept;

struct TaskSpec {
    std::string name;
    TaskRequest request = {};
    std::vector<TaskId> after = {};     // tasks that must complete first
    std::int64_t deadline_ns = kNever;  // on the core's clock: to have started by
};

// A change of state, in the order in which they happened.
struct Transition {
    std::int64_t time_ns = 0;
    TaskId task = 0;
    TaskState from = TaskState::pending, to = TaskState::pending;
    TaskFault fault = TaskFault::none;
    TaskId cause = 0;  // of TaskFault::dependency
};

// What admission said to a task.
struct Answer {
    TaskId task = 0;
    Decision decision = {};
};

struct Explanation {
    TaskState state = TaskState::pending;
    TaskFault fault = TaskFault::none;
    TaskId cause = 0;
    Decision decision = {};                               // for a queued task: what admission says now
    std::vector<TaskId> waits_for = {};                   // of a pending task
    std::vector<AdmissionController::Held> held_by = {};  // who holds what a queued task needs
    std::size_t position = 0;                             // of a queued task, from 0 in its order
    TaskId behind = 0;  // an older task for which memory is being kept; 0 for none
    std::int64_t waited_ns = 0;
};

// A decision in words; `account` names the account that decided.
std::string describe(const Decision& decision, std::string_view account);

struct CoreConfig {
    AdmissionConfig admission;
    PolicyOptions policy;
};

class SchedulerCore {
   public:
    // `clock` must outlive it.
    SchedulerCore(const CoreConfig& config, const Clock& clock);

    // `weight`: the account's part under the policy `fair`. Throws Error (value) unless above 0.
    AccountId add_account(std::string name, const AccountLimits& limits, AccountId parent = kDeviceAccount,
                          double weight = 1);
    void set_limits(AccountId account, const AccountLimits& limits) {
        admission_.set_limits(account, limits);
    }
    void set_weight(AccountId account, double weight);

    // The new task is pending, queued, rejected, or already cancelled for a dependency that did not complete.
    // Throws Error (value) for a request that means nothing and for a dependency that is not known.
    TaskId submit(TaskSpec spec);
    // The next task that may start, now running with all it asked for reserved; nothing where none may.
    std::optional<TaskId> start_next();
    // A running task ended: completed, failed (raised or device) or cancelled. `used_ns`: what the policy
    // `fair` charges its account with.
    void finish(TaskId task, TaskState outcome, TaskFault fault, std::int64_t used_ns);
    // True where the task is cancelled now. A running one is only told (cancel_requested); false for it and
    // for one that ended.
    bool cancel(TaskId task);
    void tick();  // fails what cannot meet its deadline any more
    // When tick() or start_next() may next do something because time went by; kNever for never.
    std::int64_t next_time_ns() const;
    // Accepts nothing more. `cancel_waiting`: what has not started is cancelled.
    void shutdown(bool cancel_waiting);

    // A running task waits for another's end. The other, and all that it waits for, may then start in the
    // place of the waiting one: before all others, past limits of number. Each waiting task waits for one.
    void begin_wait(TaskId waiter, TaskId target);
    void end_wait(TaskId waiter);
    // Whether the waiting task can never go on: what it waits for needs what it, or others that wait as
    // hopelessly, hold. Whatever the rest of the tasks do.
    bool is_deadlocked(TaskId waiter) const;

    bool knows(TaskId task) const { return tasks_.contains(task); }
    TaskState state(TaskId task) const { return find("state", task).state; }
    TaskFault fault(TaskId task) const { return find("fault", task).fault; }
    TaskId cause(TaskId task) const { return find("cause", task).cause; }
    const TaskSpec& spec(TaskId task) const { return find("spec", task).spec; }
    // Of a rejected task why, of a running one what was granted.
    const Decision& decision(TaskId task) const { return find("decision", task).decision; }
    bool cancel_requested(TaskId task) const { return find("cancel_requested", task).cancel_requested; }
    Explanation explain(TaskId task) const;
    std::string explain_text(TaskId task) const;
    std::string label(TaskId task) const;  // "task 7 'train'"

    // Forgets a task that ended. It can no more be a dependency.
    void forget(TaskId task);
    // What happened since the last call.
    std::vector<Transition> take_transitions();
    // What admission decided since the last call. A task that is told the same verdict again is not in it.
    std::vector<Answer> take_answers();

    const AdmissionController& admission() const noexcept { return admission_; }
    const Clock& clock() const noexcept { return *clock_; }
    std::size_t waiting() const noexcept { return waiting_; }  // pending and queued
    std::size_t running() const noexcept { return running_; }
    bool is_shut_down() const noexcept { return shut_down_; }
    std::size_t active(AccountId account) const { return turns_.at(account).active; }  // queued and running
    // The running time that an account was charged, over its weight.
    double charged(AccountId account) const { return turns_.at(account).charged; }
    double turn_now() const noexcept { return turn_now_; }  // the same of the account served last

   private:
    struct Task {
        TaskSpec spec = {};
        TaskState state = TaskState::pending;
        TaskFault fault = TaskFault::none;
        TaskId cause = 0;
        Decision decision = {};
        std::size_t unmet = 0;
        std::vector<TaskId> dependants = {};
        std::int64_t submitted_ns = 0, ready_ns = 0, throttled_until_ns = 0;
        std::int64_t estimate_ns = 0;  // charged in advance
        int awaited = 0;               // by running tasks
        bool cancel_requested = false;
        std::optional<Verdict> answered = {};  // last
        ReadyKey key = {};
    };
    // An account's place in the order of the policy `fair`.
    struct Turn {
        double weight = 1;
        double charged = 0;
        double mean_ns = 0;      // of its tasks so far: the estimate where none is declared
        std::size_t active = 0;  // queued and running tasks
    };
    struct Cursor;

    const Task& find(const char* call, TaskId task) const;
    Task& find(const char* call, TaskId task);
    void move(TaskId id, Task& task, TaskState to, TaskFault fault = TaskFault::none, TaskId cause = 0);
    void note_answer(TaskId id, Task& task, const Decision& decision);
    void make_ready(TaskId id, Task& task);
    void leave_ready(TaskId id, Task& task);
    void end_waiting(TaskId id, TaskState to, TaskFault fault, TaskId cause);
    void settle_dependants(TaskId id);
    bool try_start(TaskId id, Task& task, bool in_place, Decision* said);
    std::optional<TaskId> start_awaited();
    void charge(AccountId account, std::int64_t used_ns);

    CoreConfig config_;
    const Clock* clock_;
    AdmissionController admission_;
    std::map<TaskId, Task> tasks_;
    std::vector<std::set<ReadyKey>> ready_;                // by account
    std::vector<Turn> turns_;                              // by account
    double turn_now_ = 0;                                  // `charged` of the account served last
    std::set<TaskId> awaited_ready_;                       // queued, and awaited by a running task
    std::map<TaskId, std::vector<TaskId>> waits_;          // waiter -> target and all below it
    std::set<std::pair<std::int64_t, TaskId>> deadlines_;  // of tasks that have not started
    std::set<std::pair<std::int64_t, TaskId>> throttled_;  // until when
    std::vector<Transition> transitions_;
    std::vector<Answer> answers_;
    std::int64_t asked_ns_ = 0;  // when start_next() last asked for all
    TaskId next_id_ = 1;
    std::size_t waiting_ = 0, running_ = 0;
    bool shut_down_ = false;
};

}  // namespace gpk
