// An exhaustive check of the admission and reservation protocol: every interleaving of submit, start,
// complete, fail, cancel and shutdown of three tasks in two tenants, on the production code. And the inverse:
// systems with a bug planted in them, which the same checker must find.
#include <algorithm>
#include <deque>
#include <functional>
#include <optional>
#include <unordered_map>
#include <utility>

#include "scheduler_support.hpp"

using namespace gpk;
using namespace sched;

namespace {

struct Step {
    std::string name;
    int event = 0;
    TaskId task = 0;
};

// A system under check: a value that can be copied, the steps that are possible in it, and what holds in it.
class System {
   public:
    virtual ~System() = default;
    virtual std::unique_ptr<System> copy() const = 0;
    virtual std::vector<Step> steps() const = 0;
    virtual void take(const Step& step) = 0;
    virtual std::string key() const = 0;        // equal keys: equal states
    virtual std::string violation() const = 0;  // empty: none
    virtual bool is_over() const = 0;           // all is final, and everything given back
};

struct Outcome {
    std::size_t states = 0, ends = 0, transitions = 0;
    std::string violation;  // the first, with the steps that lead there
};

// Breadth first, so that the steps to a violation are as few as can be.
Outcome explore(std::unique_ptr<System> initial) {
    struct Node {
        std::unique_ptr<System> system;
        std::size_t from;
        std::string step;
    };
    std::vector<Node> nodes;
    std::unordered_map<std::string, std::size_t> seen;
    const auto path = [&](std::size_t at) {
        std::string text;
        for (; at != 0; at = nodes[at].from) text = nodes[at].step + "; " + text;
        return text;
    };
    seen.emplace(initial->key(), 0);
    nodes.push_back({std::move(initial), 0, {}});
    Outcome out;
    // From which states an end can be reached: asked backwards when all are known.
    std::vector<std::vector<std::size_t>> before(1);
    std::vector<std::size_t> ends;
    for (std::size_t at = 0; at < nodes.size(); ++at) {
        const std::vector<Step> steps = nodes[at].system->steps();
        if (nodes[at].system->is_over()) ends.push_back(at);
        if (steps.empty() && !nodes[at].system->is_over()) {
            out.violation = "deadlock after: " + path(at);
            return out;
        }
        for (const Step& step : steps) {
            auto next = nodes[at].system->copy();
            std::string wrong;
            try {
                next->take(step);
                wrong = next->violation();
            } catch (const Error& failure) {
                wrong = failure.what();
            }
            if (!wrong.empty()) {
                out.violation = wrong + " after: " + path(at) + step.name;
                return out;
            }
            ++out.transitions;
            const auto [known, fresh] = seen.emplace(next->key(), nodes.size());
            if (fresh) {
                nodes.push_back({std::move(next), at, step.name});
                before.emplace_back();
            }
            before[known->second].push_back(at);
        }
    }
    out.states = nodes.size();
    out.ends = ends.size();
    std::vector<bool> reaches(nodes.size());
    for (const std::size_t end : ends) reaches[end] = true;
    while (!ends.empty()) {
        const std::size_t at = ends.back();
        ends.pop_back();
        for (const std::size_t each : before[at]) {
            if (!reaches[each]) {
                reaches[each] = true;
                ends.push_back(each);
            }
        }
    }
    for (std::size_t at = 0; at < nodes.size(); ++at) {
        if (!reaches[at]) {
            out.violation = "no end can be reached after: " + path(at);
            return out;
        }
    }
    return out;
}

enum Event {
    kSubmit,
    kStart,
    kComplete,
    kFail,
    kDeviceFault,
    kCancel,
    kCancelRunning,
    kWait,
    kShutdown,
    kDrain
};

enum class Bug { none, fails_without_release, finishes_twice };

struct Scenario {
    const char* name;
    std::size_t memory;
    std::size_t max_running;
    PolicyKind policy;
    std::vector<TaskSpec> tasks;  // dependencies by position, from 1
    bool waits = false;           // the first task may wait for the second
};

// The core with its admission: what the threaded scheduler drives.
class Protocol final : public System {
   public:
    Protocol(const Scenario& scenario, Bug bug)
        : scenario_(scenario), bug_(bug), core_(make(scenario)), ids_(scenario.tasks.size(), 0) {
        for (const char* name : {"one", "two"}) {
            core_.add_account(name, {.memory = scenario.memory * 3 / 4, .compute = 0.75});
        }
    }

    std::unique_ptr<System> copy() const override { return std::make_unique<Protocol>(*this); }

    std::vector<Step> steps() const override {
        std::vector<Step> out;
        const auto add = [&](Event event, const char* name, TaskId task) {
            out.push_back({str(name, " ", task), event, task});
        };
        for (std::size_t i = 0; i < ids_.size(); ++i) {
            const TaskId n = i + 1;
            if (ids_[i] == 0) {
                const auto& after = scenario_.tasks[i].after;
                if (std::all_of(after.begin(), after.end(),
                                [&](TaskId each) { return ids_[each - 1] != 0; })) {
                    add(kSubmit, "submit", n);
                }
                continue;
            }
            const TaskState state = core_.state(ids_[i]);
            if (is_final(state) || lost_ == ids_[i]) continue;
            if (state == TaskState::running) {
                if (waiting_ == n && !is_final(core_.state(ids_[1]))) {
                    // It goes on when the other is over, or is refused where that cannot be.
                    if (core_.is_deadlocked(ids_[i])) add(kFail, "refuse", n);
                    continue;
                }
                add(kComplete, "complete", n);
                add(kFail, "fail", n);
                add(kDeviceFault, "device fault", n);
                if (!core_.cancel_requested(ids_[i])) {
                    add(kCancel, "ask to cancel", n);
                } else {
                    add(kCancelRunning, "stop", n);
                }
                if (scenario_.waits && n == 1 && ids_[1] != 0 && waiting_ == 0) add(kWait, "wait in", n);
            } else {
                add(kCancel, "cancel", n);
            }
        }
        SchedulerCore probe = core_;
        if (probe.start_next()) add(kStart, "start", 0);
        if (!core_.is_shut_down()) {
            add(kShutdown, "shutdown", 0);
            add(kDrain, "shutdown and drain", 0);
        }
        return out;
    }

    void take(const Step& step) override {
        const TaskId id = step.task != 0 ? ids_[step.task - 1] : 0;
        switch (static_cast<Event>(step.event)) {
            case kSubmit: {
                TaskSpec spec = scenario_.tasks[step.task - 1];
                for (TaskId& each : spec.after) each = ids_[each - 1];
                ids_[step.task - 1] = core_.submit(spec);
                break;
            }
            case kStart: core_.start_next(); break;
            case kComplete: finish(id, TaskState::completed, TaskFault::none); break;
            case kFail:
                if (bug_ == Bug::fails_without_release) {
                    lost_ = id;  // as a handler would that returns without telling anybody
                } else {
                    finish(id, TaskState::failed, TaskFault::raised);
                }
                break;
            case kDeviceFault: finish(id, TaskState::failed, TaskFault::device); break;
            case kCancel: core_.cancel(id); break;
            case kCancelRunning: finish(id, TaskState::cancelled, TaskFault::cancelled); break;
            case kWait:
                waiting_ = step.task;
                core_.begin_wait(id, ids_[1]);
                break;
            case kShutdown: core_.shutdown(true); break;
            case kDrain: core_.shutdown(false); break;
        }
        if (bug_ == Bug::finishes_twice && step.event == kDeviceFault) {
            core_.finish(id, TaskState::failed, TaskFault::device, 1);
        }
        note_transitions();
    }

    std::string key() const override {
        std::string out = str(core_.is_shut_down(), waiting_, lost_);
        for (const TaskId id : ids_) {
            out += id == 0 ? "-"
                           : str(static_cast<int>(core_.state(id)), static_cast<int>(core_.fault(id)),
                                 core_.cancel_requested(id), core_.admission().holds(id), ",");
        }
        // The order of submission is part of the state: among equals it decides.
        for (const TaskId id : ids_) out += str(id, ".");
        // And of two tasks that wait for more, what each was granted; the sums tell.
        for (AccountId id = 0; id < core_.admission().accounts(); ++id) {
            const auto& account = core_.admission().account(id);
            out += str("|", account.supply.memory_reserved, ",", account.supply.bandwidth_reserved, ",",
                       account.compute_reserved, ",", core_.charged(id));
        }
        return out + str("|", core_.turn_now());
    }

    std::string violation() const override {
        if (!wrong_.empty()) return wrong_;
        if (std::string wrong = core_.admission().audit(); !wrong.empty()) return wrong;
        for (const TaskId id : ids_) {
            // A reservation is held exactly while its task runs.
            if (id != 0 && core_.admission().holds(id) != (core_.state(id) == TaskState::running)) {
                return str("task ", id, " is ", to_string(core_.state(id)), " and its reservation is not");
            }
        }
        return {};
    }

    bool is_over() const override {
        for (const TaskId id : ids_) {
            if (id == 0 || !is_final(core_.state(id))) return false;
        }
        const auto& device = core_.admission().account(kDeviceAccount);
        return device.supply.memory_reserved == 0 && device.supply.bandwidth_reserved == 0 &&
               device.compute_reserved == 0 && device.queued == 0 && device.running == 0;
    }

   private:
    static SchedulerCore make(const Scenario& scenario) {
        static const VirtualClock clock;  // time stands still: steps alone decide
        CoreConfig made = config(scenario.memory, scenario.policy, scenario.max_running);
        made.policy.patience_ns = 0;
        return SchedulerCore(made, clock);
    }
    void finish(TaskId id, TaskState state, TaskFault fault) {
        core_.finish(id, state, fault, 1);
        if (waiting_ != 0 && ids_[waiting_ - 1] == id) waiting_ = 0;
    }
    // Every task goes forward through its states, and only once into each.
    void note_transitions() {
        for (const Transition& each : core_.take_transitions()) {
            const bool fine =
                each.from < each.to || (each.from == TaskState::pending && each.to == each.from);
            if (!fine || is_final(each.from)) {
                wrong_ =
                    str("task ", each.task, " went from ", to_string(each.from), " to ", to_string(each.to));
            }
        }
    }

    const Scenario& scenario_;
    Bug bug_;
    SchedulerCore core_;
    std::vector<TaskId> ids_;
    TaskId waiting_ = 0, lost_ = 0;
    std::string wrong_;
};

TaskSpec with(QosTaskMeta qos, AccountId account, double compute, std::vector<TaskId> after = {}) {
    TaskSpec out = task(qos, account, std::move(after));
    out.request.expected_ns = 1;
    out.request.compute = compute;
    return out;
}

const std::vector<Scenario>& scenarios() {
    using Q = QosTaskMeta;
    static const std::vector<Scenario> all{
        {"three for half",
         8,
         kUnlimited,
         PolicyKind::fifo,
         {with(Q::guaranteed(5), 1, 0.5), with(Q::burstable(5, 8), 2, 0.5), with(Q::guaranteed(3), 1, 0.5)}},
        {"memory and compute crosswise",
         8,
         kUnlimited,
         PolicyKind::fifo,
         {with(Q::guaranteed(6), 1, 0.25), with(Q::guaranteed(2), 2, 0.75), with(Q::guaranteed(4), 2, 0.5)}},
        {"a chain",
         8,
         kUnlimited,
         PolicyKind::priority,
         {with(Q::guaranteed(6), 1, 0), with(Q::burstable(6), 2, 0, {1}),
          with(Q::best_effort(), 1, 0, {1, 2})}},
        {"one at a time, by turns",
         8,
         1,
         PolicyKind::fair,
         {with(Q::burstable(2, 4, 0.5), 1, 0.1), with(Q::best_effort(), 2, 0),
          with(Q::guaranteed(2, 0.75), 2, 0)}},
        {"bandwidth",
         8,
         2,
         PolicyKind::deadline,
         {with(Q::burstable(1, 2, 0.75), 1, 0), with(Q::burstable(1, 2, 0.75), 2, 0),
          with(Q::guaranteed(1, 0.5), 1, 0)}},
        {"waiting inside a task",
         8,
         1,
         PolicyKind::fifo,
         {with(Q::guaranteed(4), 1, 0), with(Q::guaranteed(4), 2, 0), with(Q::guaranteed(6), 2, 0)},
         true},
        {"waiting for what one's own memory keeps away",
         8,
         2,
         PolicyKind::fifo,
         {with(Q::guaranteed(5), 1, 0), with(Q::guaranteed(5), 2, 0, {3}), with(Q::guaranteed(2), 2, 0)},
         true},
    };
    return all;
}

// What the all-or-nothing rule is for: each task asks two controllers, one for memory and one for compute,
// and keeps what the first gave while it waits for the second.
class InParts final : public System {
   public:
    InParts() : parts_{controller(), controller()} {
        for (TaskId n = 1; n <= 2; ++n) {
            TaskRequest request;
            request.qos = QosTaskMeta::guaranteed(5);
            for (AdmissionController& each : parts_) each.enqueue(n, request, 0, 0);
        }
    }
    std::unique_ptr<System> copy() const override { return std::make_unique<InParts>(*this); }
    std::vector<Step> steps() const override {
        std::vector<Step> out;
        for (TaskId n = 1; n <= 2; ++n) {
            const int has = taken_[n - 1];
            if (has == 2) out.push_back({str("finish ", n), 2, n});
            if (has < 2 && parts_[part(n, has)].evaluate(n, 0).verdict == Verdict::admitted) {
                out.push_back({str("take part ", part(n, has), " for ", n), has, n});
            }
        }
        return out;
    }
    void take(const Step& step) override {
        if (step.event == 2) {
            for (AdmissionController& each : parts_) each.release(step.task);
            taken_[step.task - 1] = 3;
        } else {
            parts_[part(step.task, step.event)].admit(step.task, 0);
            ++taken_[step.task - 1];
        }
    }
    std::string key() const override { return str(taken_[0], taken_[1]); }
    std::string violation() const override { return parts_[0].audit() + parts_[1].audit(); }
    bool is_over() const override { return taken_[0] == 3 && taken_[1] == 3; }

   private:
    static AdmissionController controller() { return AdmissionController(config(8).admission); }
    static std::size_t part(TaskId task, int has) { return (task == 1) == (has == 0) ? 0 : 1; }
    AdmissionController parts_[2];
    int taken_[2] = {0, 0};
};

// Two workers that each keep a ledger of the whole device: what each promises is there, both together not.
class TwoLedgers final : public System {
   public:
    TwoLedgers()
        : ledgers_{AdmissionController(config(8).admission), AdmissionController(config(8).admission)} {
        TaskRequest request;
        request.qos = QosTaskMeta::guaranteed(5);
        for (AdmissionController& each : ledgers_) each.enqueue(1, request, 0, 0);
    }
    std::unique_ptr<System> copy() const override { return std::make_unique<TwoLedgers>(*this); }
    std::vector<Step> steps() const override {
        std::vector<Step> out;
        for (int i = 0; i < 2; ++i) {
            if (state_[i] < 2) out.push_back({str(state_[i] == 0 ? "start on " : "finish on ", i), i, 1});
        }
        return out;
    }
    void take(const Step& step) override {
        AdmissionController& ledger = ledgers_[step.event];
        if (state_[step.event]++ == 0) {
            ledger.admit(1, 0);
        } else {
            ledger.release(1);
        }
    }
    std::string key() const override { return str(state_[0], state_[1]); }
    std::string violation() const override {
        std::size_t sum = 0;
        for (const AdmissionController& each : ledgers_) sum += each.account(0).supply.memory_reserved;
        return sum > 8 ? str("over-reservation: ", sum, " of 8") : "";
    }
    bool is_over() const override { return state_[0] == 2 && state_[1] == 2; }

   private:
    AdmissionController ledgers_[2];
    int state_[2] = {0, 0};
};

}  // namespace

class SchedulerModel : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Scenarios, SchedulerModel,
                         ::testing::Range(0, static_cast<int>(scenarios().size())));

TEST_P(SchedulerModel, EveryInterleavingEndsWithEverythingGivenBack) {
    const Scenario& scenario = scenarios()[static_cast<std::size_t>(GetParam())];
    const Outcome outcome = explore(std::make_unique<Protocol>(scenario, Bug::none));
    EXPECT_EQ(outcome.violation, "") << scenario.name;
    EXPECT_GT(outcome.states, 300u) << scenario.name;
    EXPECT_GT(outcome.ends, 10u) << scenario.name;
    RecordProperty("states", static_cast<int>(outcome.states));
    RecordProperty("transitions", static_cast<int>(outcome.transitions));
}

TEST(SchedulerModelBugs, AFailureThatReleasesNothingIsFound) {
    const Outcome outcome = explore(std::make_unique<Protocol>(scenarios()[0], Bug::fails_without_release));
    EXPECT_NE(outcome.violation, "");
}

TEST(SchedulerModelBugs, ASecondReleaseIsFound) {
    const Outcome outcome = explore(std::make_unique<Protocol>(scenarios()[0], Bug::finishes_twice));
    EXPECT_NE(outcome.violation.find("device fault"), std::string::npos) << outcome.violation;
}

TEST(SchedulerModelBugs, HoldingAPartIsFoundToDeadlock) {
    const Outcome outcome = explore(std::make_unique<InParts>());
    EXPECT_EQ(outcome.violation.substr(0, 14), "deadlock after") << outcome.violation;
}

TEST(SchedulerModelBugs, TwoLedgersAreFoundToReserveTooMuch) {
    const Outcome outcome = explore(std::make_unique<TwoLedgers>());
    EXPECT_EQ(outcome.violation.substr(0, 24), "over-reservation: 10 of ") << outcome.violation;
}
