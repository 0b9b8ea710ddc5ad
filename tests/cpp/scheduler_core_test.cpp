// The state machine of tasks: states, order, deadlines, dependencies, waiting inside tasks, and why.
#include <algorithm>
#include <map>

#include "scheduler_support.hpp"

using namespace gpk;
using namespace sched;

namespace {

using Ids = std::vector<TaskId>;

void complete(SchedulerCore& core, TaskId id) { core.finish(id, TaskState::completed, TaskFault::none, kMs); }

}  // namespace

TEST(SchedulerCore, TasksGoThroughTheirStates) {
    VirtualClock clock;
    SchedulerCore core(config(100), clock);
    const TaskId one = core.submit(memory_task(60));
    const TaskId two = core.submit(memory_task(60));
    const TaskId three = core.submit(memory_task(10, kDeviceAccount, {one, two, two}));
    EXPECT_EQ(core.state(three), TaskState::pending);
    EXPECT_EQ(start_all(core), Ids{one});
    EXPECT_EQ(core.state(two), TaskState::queued);
    complete(core, one);
    EXPECT_EQ(start_all(core), Ids{two});
    complete(core, two);
    EXPECT_EQ(start_all(core), Ids{three});
    complete(core, three);
    EXPECT_EQ(core.state(three), TaskState::completed);
    message_of(ErrorKind::value, [&] { complete(core, three); });
    EXPECT_EQ(core.take_transitions().size(), 9u);
    EXPECT_EQ(core.admission().account(kDeviceAccount).supply.memory_reserved, 0u);
    core.forget(one);
    message_of(ErrorKind::value, [&] { core.state(one); });
    message_of(ErrorKind::value, [&] { core.submit(memory_task(1, kDeviceAccount, {one})); });
    message_of(ErrorKind::value, [&] { core.submit(memory_task(1, kDeviceAccount, {99})); });
}

TEST(SchedulerCore, AFailureCancelsDependantsAndNamesItself) {
    VirtualClock clock;
    SchedulerCore core(config(100), clock);
    const TaskId one = core.submit(memory_task(1));
    const TaskId two = core.submit(memory_task(1, kDeviceAccount, {one}));
    const TaskId three = core.submit(memory_task(1, kDeviceAccount, {two}));
    start_all(core);
    core.finish(one, TaskState::failed, TaskFault::raised, 0);
    EXPECT_EQ(core.state(two), TaskState::cancelled);
    EXPECT_EQ(core.fault(three), TaskFault::dependency);
    EXPECT_EQ(core.cause(two), one);
    EXPECT_EQ(core.cause(three), two);
    const TaskId late = core.submit(memory_task(1, kDeviceAccount, {one}));
    EXPECT_EQ(core.state(late), TaskState::cancelled);
    EXPECT_EQ(core.cause(late), one);
    EXPECT_EQ(core.waiting(), 0u);
    EXPECT_EQ(core.admission().audit(), "");
}

// A chain so long that settling it by recursion would overflow the stack.
TEST(SchedulerCore, LongChainsAreSettled) {
    VirtualClock clock;
    SchedulerCore core(config(100), clock);
    const TaskId first = core.submit(memory_task(1));
    TaskId last = first;
    for (int i = 0; i < 100'000; ++i) last = core.submit(memory_task(1, kDeviceAccount, {last}));
    core.cancel(first);
    EXPECT_EQ(core.state(last), TaskState::cancelled);
    EXPECT_EQ(core.waiting(), 0u);
}

TEST(SchedulerCore, CancelInEveryState) {
    VirtualClock clock;
    SchedulerCore core(config(100), clock);
    const TaskId running = core.submit(memory_task(100));
    start_all(core);
    const TaskId queued = core.submit(memory_task(1));
    const TaskId pending = core.submit(memory_task(1, kDeviceAccount, {running}));
    const TaskId rejected = core.submit(memory_task(101));
    EXPECT_TRUE(core.cancel(queued));
    EXPECT_TRUE(core.cancel(pending));
    EXPECT_FALSE(core.cancel(queued));
    EXPECT_FALSE(core.cancel(rejected));
    EXPECT_EQ(core.state(rejected), TaskState::rejected);
    EXPECT_FALSE(core.cancel(running));
    EXPECT_TRUE(core.cancel_requested(running));
    core.finish(running, TaskState::cancelled, TaskFault::cancelled, 0);
    EXPECT_EQ(core.state(running), TaskState::cancelled);
    EXPECT_EQ(core.waiting() + core.running(), 0u);
    EXPECT_EQ(core.admission().audit(), "");
}

TEST(SchedulerCore, DeadlinesEndWhatHasNotStarted) {
    VirtualClock clock;
    SchedulerCore core(config(100), clock);
    const TaskId running = core.submit(memory_task(100));
    TaskSpec spec = memory_task(1);
    spec.deadline_ns = 50;
    const TaskId late = core.submit(spec);
    const TaskId after = core.submit(memory_task(1, kDeviceAccount, {late}));
    start_all(core);
    EXPECT_EQ(core.next_time_ns(), 51);
    clock.advance_to(50);
    core.tick();
    EXPECT_EQ(core.state(late), TaskState::queued);
    clock.advance_to(51);
    core.tick();
    EXPECT_EQ(core.state(late), TaskState::failed);
    EXPECT_EQ(core.fault(late), TaskFault::deadline);
    EXPECT_EQ(core.state(after), TaskState::cancelled);
    EXPECT_EQ(core.state(running), TaskState::running);
    EXPECT_EQ(core.next_time_ns(), kNever);
}

TEST(SchedulerCore, PoliciesOrder) {
    struct Row {
        const char* policy;
        Ids order;
    };
    //          expected  priority  deadline
    // task 1   30        0         none
    // task 2   10        -1        300
    // task 3   unknown   2         100
    // task 4   20        -1        200
    for (const Row& row : {Row{"fifo", {1, 2, 3, 4}}, Row{"shortest_job_first", {2, 4, 1, 3}},
                           Row{"priority", {2, 4, 1, 3}}, Row{"deadline", {3, 4, 2, 1}}}) {
        VirtualClock clock;
        SchedulerCore core(config(100, policy_named(row.policy), 1), clock);
        const std::int64_t expected[] = {30, 10, 0, 20}, deadline[] = {kNever, 300, 100, 200};
        const int priority[] = {0, -1, 2, -1};
        for (int i = 0; i < 4; ++i) {
            TaskSpec spec = memory_task(1);
            spec.request.expected_ns = expected[i];
            spec.request.qos.priority = priority[i];
            spec.deadline_ns = deadline[i];
            core.submit(spec);
        }
        Ids order;
        while (const auto id = core.start_next()) {
            order.push_back(*id);
            complete(core, *id);
        }
        EXPECT_EQ(order, row.order) << row.policy;
    }
    message_of(ErrorKind::value, [] { policy_named("lifo"); });
}

// The bound of policy.hpp: never passed by a task that became ready later than (p - q) * ageing after it.
TEST(SchedulerCore, AgeingBoundsStarvation) {
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
        Random random(seed);
        VirtualClock clock;
        CoreConfig made = config(100, PolicyKind::priority, 1);
        made.policy.ageing_ns = 10;
        SchedulerCore core(made, clock);
        std::map<TaskId, std::pair<std::int64_t, int>> facts;  // ready, priority
        const auto submit = [&](int priority) {
            TaskSpec spec = memory_task(1);
            spec.request.qos.priority = priority;
            facts[core.submit(spec)] = {clock.now_ns(), priority};
        };
        submit(5);  // behind a stream of more urgent ones, more than can be served
        std::int64_t started = -1;
        for (int i = 0; i < 400; ++i) {
            submit(-static_cast<int>(random.below(6)));
            submit(-static_cast<int>(random.below(6)));
            const TaskId next = core.start_next().value();
            if (next == 1) started = clock.now_ns();
            for (const auto& [id, each] : facts) {
                if (core.state(id) != TaskState::queued) continue;
                const auto bound = each.first + (each.second - facts[next].second) * made.policy.ageing_ns;
                EXPECT_LE(facts[next].first, bound) << "task " << next << " passed task " << id;
            }
            complete(core, next);
            clock.advance(1);
        }
        // Two are submitted for each that is served: those of the first 100 ticks are served within 200.
        EXPECT_GT(started, 0);
        EXPECT_LE(started, 210);
    }
}

TEST(SchedulerCore, WhatDoesNotFitIsPassedOnlyAsLongAsItsPatience) {
    VirtualClock clock;
    CoreConfig made = config(100);
    made.policy.patience_ns = 1000;
    SchedulerCore core(made, clock);
    const AccountId tenant = core.add_account("tenant", {.memory = 30});
    core.submit(memory_task(60));
    start_all(core);
    const TaskId big = core.submit(memory_task(80));
    const TaskId small = core.submit(memory_task(10));
    EXPECT_EQ(start_all(core), Ids{small});
    clock.advance(1000);
    const TaskId late = core.submit(memory_task(10));
    EXPECT_EQ(start_all(core), Ids{});
    EXPECT_EQ(core.explain(late).behind, big);
    complete(core, 1);
    EXPECT_EQ(start_all(core), (Ids{big, late}));
    complete(core, big);
    complete(core, late);
    complete(core, small);
    // What only its own account holds back keeps nothing from others.
    core.submit(memory_task(30, tenant));
    const TaskId own = core.submit(memory_task(20, tenant));
    EXPECT_EQ(start_all(core).size(), 1u);
    clock.advance(5000);
    const TaskId other = core.submit(memory_task(60));
    const TaskId same = core.submit(memory_task(1, tenant));
    EXPECT_EQ(start_all(core), Ids{other});
    EXPECT_EQ(core.state(own), TaskState::queued);
    EXPECT_EQ(core.state(same), TaskState::queued);
}

TEST(SchedulerCore, ThrottledTasksStartWhenTheirTimeComesOrThePressureGoes) {
    VirtualClock clock;
    SchedulerCore core(config(100), clock);
    const TaskId full = core.submit(memory_task(100));
    const TaskId one = core.submit(task(QosTaskMeta::best_effort()));
    const TaskId two = core.submit(task(QosTaskMeta::best_effort()));
    const TaskId three = core.submit(task(QosTaskMeta::best_effort()));
    EXPECT_EQ(start_all(core), (Ids{full, one}));
    EXPECT_EQ(core.next_time_ns(), 100 * kMs);
    EXPECT_NE(core.explain_text(two).find("throttled"), std::string::npos) << core.explain_text(two);
    clock.advance_to(100 * kMs);
    EXPECT_EQ(start_all(core), Ids{two});
    EXPECT_EQ(core.next_time_ns(), 200 * kMs);
    complete(core, full);
    EXPECT_EQ(start_all(core), Ids{three});
    EXPECT_EQ(core.next_time_ns(), kNever);
}

TEST(SchedulerCore, AWaitingTaskLendsItsPlace) {
    VirtualClock clock;
    SchedulerCore core(config(100, PolicyKind::fifo, 1), clock);
    const TaskId outer = core.submit(memory_task(10));
    const TaskId other = core.submit(memory_task(10));
    const TaskId base = core.submit(memory_task(10));
    const TaskId inner = core.submit(memory_task(10, kDeviceAccount, {base}));
    EXPECT_EQ(start_all(core), Ids{outer});
    core.begin_wait(outer, inner);
    message_of(ErrorKind::value, [&] { core.begin_wait(outer, base); });
    EXPECT_FALSE(core.is_deadlocked(outer));
    EXPECT_EQ(start_all(core), Ids{base});
    complete(core, base);
    EXPECT_EQ(start_all(core), Ids{inner});
    EXPECT_EQ(core.admission().account(kDeviceAccount).running, 1u);
    complete(core, inner);
    core.end_wait(outer);
    EXPECT_EQ(start_all(core), Ids{});
    complete(core, outer);
    EXPECT_EQ(start_all(core), Ids{other});
}

TEST(SchedulerCore, DeadlocksByWaitingAreSeen) {
    VirtualClock clock;
    SchedulerCore core(config(100), clock);
    const TaskId one = core.submit(memory_task(40));
    const TaskId two = core.submit(memory_task(40));
    const TaskId needs_both = core.submit(memory_task(80));
    const TaskId after = core.submit(memory_task(1, kDeviceAccount, {needs_both}));
    start_all(core);
    core.begin_wait(one, after);
    EXPECT_TRUE(core.is_deadlocked(one));  // 80 beside its own 40 never fit
    core.end_wait(one);
    const TaskId fits = core.submit(memory_task(60));
    core.begin_wait(one, fits);
    EXPECT_FALSE(core.is_deadlocked(one));  // when the other ends, there are 60
    core.begin_wait(two, fits);
    EXPECT_TRUE(core.is_deadlocked(one));  // but now that waits too
    core.end_wait(two);
    EXPECT_FALSE(core.is_deadlocked(one));
    core.begin_wait(two, one);
    EXPECT_TRUE(core.is_deadlocked(two));  // through the first
    core.end_wait(two);
    core.end_wait(one);
    core.begin_wait(one, one);
    EXPECT_TRUE(core.is_deadlocked(one));  // for itself
}

TEST(SchedulerCore, ExplainSaysWhatIsMissingAndWhoHasIt) {
    VirtualClock clock;
    SchedulerCore core(config(4096 * kMiB), clock);
    TaskSpec spec = memory_task(3072 * kMiB);
    spec.name = "train";
    const TaskId train = core.submit(spec);
    const TaskId big = core.submit(memory_task(3072 * kMiB));
    const TaskId dependant = core.submit(memory_task(1, kDeviceAccount, {train, big}));
    start_all(core);
    EXPECT_EQ(
        core.explain_text(big),
        "task 2 is queued, number 1 in its order: needs 3 GiB of which 1 GiB is free in device; held by "
        "task 1 'train' (3 GiB)");
    EXPECT_EQ(core.explain_text(dependant),
              "task 3 is pending: waits for task 1 'train' (running), task 2 (queued)");
    EXPECT_EQ(core.explain(big).held_by.at(0).memory, 3072 * kMiB);
    EXPECT_EQ(core.explain(dependant).waits_for, (Ids{train, big}));
    const TaskId never = core.submit(memory_task(5000 * kMiB));
    EXPECT_EQ(core.explain_text(never),
              "task 4 is rejected: needs 4.88281 GiB, and there is never more than 4 GiB in device");
    core.finish(train, TaskState::failed, TaskFault::device, 0);
    EXPECT_EQ(core.explain_text(train), "task 1 'train' is failed: device");
    EXPECT_EQ(core.explain_text(dependant), "task 3 is cancelled: task 1 'train' did not complete");
}

TEST(SchedulerCore, ShutdownAtEveryStepLeavesNothing) {
    for (const bool cancel : {false, true}) {
        for (int stop = 0; stop < 40; ++stop) {
            Random random(5);
            VirtualClock clock;
            SchedulerCore core(config(100, PolicyKind::priority), clock);
            Ids running, all;
            for (int step = 0;; ++step) {
                if (step == stop) {
                    core.shutdown(cancel);
                    const TaskId late = core.submit(memory_task(1));
                    EXPECT_EQ(core.state(late), TaskState::rejected);
                    EXPECT_EQ(core.decision(late).reason, Reason::shut_down);
                    EXPECT_TRUE(!cancel || core.waiting() == 0);
                }
                if (step < stop && random.below(2) == 0) {
                    Ids after;
                    if (!all.empty() && random.below(2) == 0) after = {all[random.below(all.size())]};
                    all.push_back(core.submit(memory_task(random.below(110), kDeviceAccount, after)));
                }
                if (random.below(2) == 0 && !running.empty()) {
                    core.finish(running.back(),
                                random.below(4) == 0 ? TaskState::failed : TaskState::completed,
                                TaskFault::none, 1);
                    running.pop_back();
                }
                for (const TaskId id : start_all(core)) running.push_back(id);
                if (step >= stop && running.empty()) break;
            }
            EXPECT_EQ(core.waiting() + core.running(), 0u);
            EXPECT_EQ(core.admission().audit(), "");
            EXPECT_EQ(core.admission().account(kDeviceAccount).supply.memory_reserved, 0u);
            for (const TaskId id : all) EXPECT_TRUE(is_final(core.state(id)));
        }
    }
}

// A million random steps of the whole machine: everything ends, and what must hold holds on the way.
TEST(SchedulerCore, RandomWalks) {
    std::size_t ended = 0, steps = 0;
    for (std::uint64_t seed = 0; seed < 50; ++seed) {
        Random random(seed);
        VirtualClock clock;
        CoreConfig made = config(1000, static_cast<PolicyKind>(seed % 5), 8);
        made.policy.patience_ns = 200;
        made.policy.backfill = static_cast<int>(random.below(6));
        made.admission.throttle_ns = 50;
        SchedulerCore core(made, clock);
        std::vector<AccountId> accounts{kDeviceAccount};
        for (int i = 0; i < 4; ++i) {
            accounts.push_back(core.add_account(
                str(i), {.memory = 300 + random.below(700), .max_queued = 10, .max_running = 4},
                accounts[random.below(accounts.size())], 1 + random.unit()));
        }
        Ids open, running;
        for (int step = 0; step < 20'000; ++step, ++steps) {
            clock.advance(static_cast<std::int64_t>(random.below(5)));
            const std::uint64_t what = random.below(10);
            if (what < 4 && open.size() < 60) {
                const std::size_t bytes = random.below(320);
                const QosTaskMeta metas[] = {QosTaskMeta::guaranteed(bytes, 0.2 * random.unit()),
                                             QosTaskMeta::burstable(bytes, bytes * 2, random.unit()),
                                             QosTaskMeta::best_effort()};
                TaskSpec spec = task(metas[random.below(3)], accounts[random.below(accounts.size())]);
                spec.request.qos.priority = static_cast<int>(random.below(7)) - 3;
                spec.request.expected_ns = static_cast<std::int64_t>(random.below(3) * 10);
                if (random.below(6) == 0)
                    spec.deadline_ns = clock.now_ns() + static_cast<std::int64_t>(random.below(300));
                while (!open.empty() && random.below(3) == 0)
                    spec.after.push_back(open[random.below(open.size())]);
                open.push_back(core.submit(spec));
            } else if (what < 8 && !running.empty()) {
                const std::size_t at = random.below(running.size());
                const TaskState ends[] = {TaskState::completed, TaskState::completed, TaskState::failed,
                                          TaskState::cancelled};
                core.finish(running[at], ends[random.below(4)], TaskFault::none,
                            static_cast<std::int64_t>(random.below(40)));
                running.erase(running.begin() + static_cast<std::ptrdiff_t>(at));
            } else if (what == 8 && !open.empty() && random.below(3) == 0) {
                core.cancel(open[random.below(open.size())]);
            }
            for (const TaskId id : start_all(core)) running.push_back(id);
            for (const Transition& each : core.take_transitions()) {
                ASSERT_FALSE(is_final(each.from));
                ASSERT_TRUE(each.from < each.to || each.to == TaskState::rejected);
            }
            if (step % 32 == 0) {
                ASSERT_EQ(core.admission().audit(), "") << "seed " << seed << ", step " << step;
                for (const TaskId id : open) core.explain_text(id);
                std::erase_if(open, [&](TaskId id) {
                    if (!is_final(core.state(id))) return false;
                    core.forget(id);
                    ++ended;
                    return true;
                });
            }
        }
        // Nobody is left behind: with the running ones ended again and again, all start.
        for (int round = 0; core.waiting() + core.running() != 0; ++round) {
            ASSERT_LT(round, 500) << "seed " << seed;
            for (const TaskId id : running) complete(core, id);
            running = start_all(core);
            clock.advance(60);
        }
    }
    EXPECT_EQ(steps, 1'000'000u);
    EXPECT_GT(ended, 100'000u);
}
