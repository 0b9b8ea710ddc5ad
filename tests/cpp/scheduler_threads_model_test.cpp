// The threaded scheduler against what must hold, whatever several threads do to it at once: random submits
// with dependencies, cancels, waits inside and outside of tasks, and a shutdown in the middle. A witness
// looks at every task all the while.
#include <algorithm>
#include <deque>
#include <mutex>
#include <thread>

#include "fault_support.hpp"
#include "scheduler/scheduler.hpp"
#include "scheduler_support.hpp"

using namespace gpk;
using namespace sched;
using namespace std::chrono_literals;

namespace {

constexpr auto kLong = 50s;
constexpr std::size_t kMemory = 1000;
constexpr int kWorkers = 3, kMostOfTenant = 2;

// What is known of one task.
struct Seen {
    TaskPtr task;
    std::vector<TaskPtr> after;
    std::atomic<int> ran{0}, ended{0};
    std::atomic<bool> told{false};        // to end
    TaskState last = TaskState::pending;  // as the witness saw it
};

bool allowed(TaskState from, TaskState to) {
    if (from == to) return true;
    switch (from) {
        case TaskState::pending: return true;  // the witness may have missed what lies between
        case TaskState::queued: return to != TaskState::pending && to != TaskState::rejected;
        case TaskState::running:
            return to == TaskState::completed || to == TaskState::failed || to == TaskState::cancelled;
        default: return false;  // an end is for good
    }
}

class Model {
   public:
    Model(std::uint64_t seed, PolicyKind policy)
        : seed_(seed),
          tenant_(Tenant::create({.name = "limited"})),
          scheduler_(device_.device, options(policy)) {
        scheduler_.set_tenant(tenant_, {.memory = kMemory / 2, .max_running = kMostOfTenant}, 2);
    }

    std::atomic<std::uint64_t> steps{0};
    std::uint64_t states[7] = {};

    void run(int threads, int each) {
        std::atomic<bool> over{false};
        std::thread witness([&] {
            while (!over) look();
        });
        std::vector<std::thread> clients;
        for (int t = 0; t < threads; ++t) {
            clients.emplace_back([&, t] { client(seed_ * 31 + static_cast<std::uint64_t>(t), each); });
        }
        for (std::thread& client : clients) client.join();
        EXPECT_TRUE(scheduler_.shutdown(true, false, kLong));
        over = true;
        witness.join();
        look();
        check_end();
    }

   private:
    static SchedulerOptions options(PolicyKind policy) {
        SchedulerOptions out{.workers = kWorkers};
        out.core.admission.device.memory = kMemory;
        out.core.admission.throttle_ns = 20'000;
        out.core.policy.kind = policy;
        out.core.policy.patience_ns = 100'000;
        return out;
    }

    void client(std::uint64_t seed, int each) {
        Random random(seed);
        std::vector<Seen*> mine;
        const auto any = [&] { return mine[random.below(mine.size())]; };
        for (int step = 0; step < each; ++step, ++steps) {
            const std::uint64_t what = mine.empty() ? 0 : random.below(10);
            if (what < 5) {
                mine.push_back(submit(random, mine));
            } else if (what == 5) {
                Seen& one = *any();
                one.told = true;
                const bool cancelled = one.task->cancel();
                EXPECT_TRUE(!cancelled || one.task->state() == TaskState::cancelled);
                EXPECT_FALSE(cancelled && one.task->cancel());
            } else if (what == 6) {
                EXPECT_TRUE(any()->task->wait(kLong));
            } else if (what == 7) {
                any()->task->wait(std::chrono::microseconds(random.below(50)));
            } else if (what == 8) {
                EXPECT_FALSE(any()->task->explain().empty());
            } else {
                const Scheduler::Stats now = scheduler_.stats();
                EXPECT_LE(now.memory_reserved, kMemory);
                // One more for each that waited inside, until it has ended.
                EXPECT_LE(now.threads, static_cast<std::size_t>(kWorkers + nesting_));
            }
            if (step == each * 3 / 4 && seed % 5 == 0) scheduler_.shutdown(false, random.below(2) == 0);
        }
    }

    Seen* submit(Random& random, const std::vector<Seen*>& mine) {
        const std::size_t bytes = random.below(kMemory * 6 / 10);
        const QosTaskMeta metas[] = {QosTaskMeta::guaranteed(bytes), QosTaskMeta::burstable(bytes),
                                     QosTaskMeta::best_effort()};
        TaskOptions asked{.name = {}, .qos = metas[random.below(3)]};
        asked.qos.priority = static_cast<int>(random.below(5)) - 2;
        const bool limited = random.below(2) == 0;
        if (limited) asked.tenant = tenant_;
        if (random.below(30) == 0) asked.start_within_ns = static_cast<std::int64_t>(random.below(100'000));
        Seen* const seen = add();
        while (!mine.empty() && random.below(3) == 0)
            seen->after.push_back(mine[random.below(mine.size())]->task);
        asked.after = seen->after;
        const auto reserved = static_cast<std::int64_t>(asked.qos.memory_request);
        const std::uint64_t kind = random.below(12);
        const TaskPtr task =
            scheduler_.submit(asked, [this, seen, reserved, limited, kind](TaskContext& context) {
                EXPECT_EQ(++seen->ran, 1);
                for (const TaskPtr& each : seen->after) EXPECT_EQ(each->state(), TaskState::completed);
                EXPECT_LE(held_ += reserved, static_cast<std::int64_t>(kMemory));
                const int beside = limited ? ++running_ : 0;
                EXPECT_LE(beside, kMostOfTenant + nesting_);
                struct Left {
                    Model& model;
                    std::int64_t bytes;
                    bool limited;
                    ~Left() {
                        model.held_ -= bytes;
                        model.running_ -= limited;
                    }
                } left{*this, reserved, limited};
                if (kind == 0) throw std::runtime_error("its own");
                if (kind == 1) nest();
                if (kind == 2) {
                    for (int i = 0; i < 20 && !context.cancel_requested(); ++i) std::this_thread::yield();
                    context.check_cancelled();
                }
            });
        task->add_done_callback([seen, raw = task.get()] {
            EXPECT_TRUE(raw->is_done());
            ++seen->ended;
        });
        const std::lock_guard lock(mutex_);
        seen->task = task;
        return seen;
    }

    // A task that waits for another lends its place, and so more of its tenant's may run.
    void nest() {
        ++nesting_;
        try {
            scheduler_.submit({.name = {}, .qos = QosTaskMeta::best_effort()}, [](TaskContext&) {})
                ->wait(kLong);
        } catch (const TaskError&) {
        }
    }

    Seen* add() {
        const std::lock_guard lock(mutex_);
        return &all_.emplace_back();
    }

    void look() {
        std::size_t count;
        {
            const std::lock_guard lock(mutex_);
            count = all_.size();
        }
        for (std::size_t i = 0; i < count; ++i) {
            Seen* seen = nullptr;
            TaskPtr task;
            {
                const std::lock_guard lock(mutex_);
                seen = &all_[i];
                task = seen->task;
            }
            if (!task) continue;
            const TaskState now = task->state();
            EXPECT_TRUE(allowed(seen->last, now))
                << task->id() << " went from " << to_string(seen->last) << " to " << to_string(now);
            seen->last = now;
        }
        std::this_thread::yield();
    }

    void check_end() {
        for (Seen& each : all_) {
            const TaskState state = each.task->state();
            EXPECT_TRUE(is_final(state));
            EXPECT_EQ(each.ended, 1) << each.task->explain();
            const bool ran = each.ran == 1;
            EXPECT_TRUE(!ran || state != TaskState::rejected);
            EXPECT_TRUE(ran || state != TaskState::completed);
            EXPECT_TRUE(state != TaskState::cancelled || !ran || each.told) << each.task->explain();
            for (const TaskPtr& before : each.after) {
                EXPECT_TRUE(before->state() == TaskState::completed || !ran);
            }
            ++states[static_cast<std::size_t>(state)];
        }
        EXPECT_EQ(held_, 0);
        EXPECT_EQ(running_, 0);
        const Scheduler::Stats stats = scheduler_.stats();
        EXPECT_EQ(stats.memory_reserved, 0u);
        EXPECT_EQ(stats.bandwidth_reserved + stats.compute_reserved, 0);
        EXPECT_EQ(stats.waiting + stats.running + stats.threads + stats.blocked, 0u);
        std::uint64_t ended = 0;
        for (const std::uint64_t each : stats.ended) ended += each;
        EXPECT_GE(ended, all_.size());
        EXPECT_EQ(tenant_->live_streams(), 0);
    }

    const std::uint64_t seed_;
    sim::TestDevice device_;
    std::shared_ptr<Tenant> tenant_;
    std::mutex mutex_;
    std::deque<Seen> all_;
    std::atomic<std::int64_t> held_{0};
    std::atomic<int> running_{0}, nesting_{0};
    Scheduler scheduler_;
};

}  // namespace

TEST(SchedulerThreadsModel, WhateverThreadsDoEveryTaskEndsOnceAndAllComesBack) {
    constexpr int kRounds = 20, kThreads = 4, kEach = 500;
    std::uint64_t steps = 0, states[7] = {};
    faults::Watchdog watchdog;
    for (int round = 0; round < kRounds && !::testing::Test::HasFailure(); ++round) {
        SCOPED_TRACE(round);
        watchdog.next(str("round ", round));
        Model model(static_cast<std::uint64_t>(round), static_cast<PolicyKind>(round % 5));
        model.run(kThreads, kEach);
        steps += model.steps;
        for (int i = 0; i < 7; ++i) states[i] += model.states[i];
    }
    EXPECT_EQ(steps, static_cast<std::uint64_t>(kRounds * kThreads * kEach));
    for (const TaskState each :
         {TaskState::completed, TaskState::failed, TaskState::cancelled, TaskState::rejected}) {
        EXPECT_GT(states[static_cast<int>(each)], 20u) << to_string(each);
    }
    EXPECT_GT(states[static_cast<int>(TaskState::completed)], steps / 8);
}

// With one worker, which is busy until all are there, tasks of several threads start in the order of the
// policy.
TEST(SchedulerThreadsModel, TasksStartInTheOrderOfThePolicy) {
    constexpr int kThreads = 3, kEach = 40;
    faults::Watchdog watchdog;
    for (const char* name : {"fifo", "shortest_job_first", "priority", "deadline"}) {
        watchdog.next(name);
        SchedulerOptions made{.workers = 1};
        made.core.admission.device.memory = kMemory;
        made.core.policy.kind = policy_named(name);
        made.core.policy.ageing_ns = kSecond * 3000;
        sim::TestDevice target;
        Scheduler scheduler(target.device, made);
        std::atomic<bool> entered{false}, go{false};
        const TaskPtr first = scheduler.submit({.name = {}, .qos = {}}, [&](TaskContext&) {
            entered = true;
            while (!go) std::this_thread::yield();
        });
        while (!entered) std::this_thread::yield();
        struct Asked {
            std::int64_t key;
            TaskPtr task;
        };
        std::mutex mutex;
        std::vector<Asked> asked;
        std::vector<TaskId> started;  // by the one worker
        std::vector<std::thread> threads;
        for (int t = 0; t < kThreads; ++t) {
            threads.emplace_back([&, t] {
                Random random(static_cast<std::uint64_t>(t) + 77);
                for (int i = 0; i < kEach; ++i) {
                    const auto level = static_cast<std::int64_t>(random.below(6));
                    TaskOptions options{.name = {}, .qos = {}};
                    const std::string_view policy = name;
                    if (policy == "shortest_job_first") options.expected_ns = level * kMs;
                    if (policy == "priority") options.qos.priority = static_cast<int>(level) - 3;
                    // Far apart, so that the moment of the submit does not count.
                    if (policy == "deadline") options.start_within_ns = (1 + level) * 1000 * kSecond;
                    std::int64_t key = policy == "fifo" ? 0 : level;
                    if (policy == "shortest_job_first" && level == 0) key = 100;  // unknown: last
                    const TaskPtr task = scheduler.submit(
                        options, [&](TaskContext& context) { started.push_back(context.task().id()); });
                    const std::lock_guard lock(mutex);
                    asked.push_back({key, task});
                }
            });
        }
        for (std::thread& each : threads) each.join();
        go = true;
        EXPECT_TRUE(scheduler.shutdown(true, false, kLong));
        std::sort(asked.begin(), asked.end(), [](const Asked& a, const Asked& b) {
            return std::pair(a.key, a.task->id()) < std::pair(b.key, b.task->id());
        });
        ASSERT_EQ(started.size(), asked.size());
        for (std::size_t i = 0; i < asked.size(); ++i) {
            EXPECT_EQ(started[i], asked[i].task->id()) << name << ", start " << i;
        }
    }
}
