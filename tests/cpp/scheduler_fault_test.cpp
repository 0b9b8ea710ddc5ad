// The scheduler under faults: every driver call of tasks that run, that are cancelled in each of their
// states, and that a shutdown meets, is made to fail with every error code. Every task ends, once; nothing
// stays reserved, charged or alive, and the next scheduler works.
#include <future>
#include <thread>

#include "array/array.hpp"
#include "fault_support.hpp"
#include "runtime/kernel.hpp"
#include "scheduler/scheduler.hpp"

using namespace gpk;
using namespace sim;
using namespace std::chrono_literals;

namespace {

const Kernel affine_kernel{kAffine};
constexpr auto kLong = 50s;  // no test waits for it: where it passes, something hangs

// Opened at the end of its scope if not before, so that no failure leaves a task waiting.
class Gate {
   public:
    ~Gate() { open(); }
    void open() {
        if (!std::exchange(opened_, true)) promise_.set_value();
    }
    // Entered by a task, or the task has ended without.
    void wait_entered(const Task& task) const {
        while (!entered_ && !task.is_done()) std::this_thread::yield();
    }
    void pass() {
        entered_ = true;
        future_.wait();
    }

   private:
    std::promise<void> promise_;
    std::shared_future<void> future_ = promise_.get_future().share();
    std::atomic<bool> entered_{false};
    bool opened_ = false;
};

// Memory, copies and kernels on the task's own stream.
void work_on(Device& device, int launches = 1) {
    const Array a = Array::empty(device, {16}, DType::int64);
    const std::vector<std::int64_t> host(16, 3);
    a.copy_from_host(host.data());
    const auto& stream = current_stream(device);
    for (int i = 0; i < launches; ++i) {
        a.storage()->before_write(stream);
        device.launcher().launch(*stream, affine_kernel, {}, AffineParams{a.as<std::int64_t>(), 2, 1, 16},
                                 {});
    }
}

// A scheduler of two workers and 100 bytes, the tasks that were given to it, and how often each ended.
class Tasks {
   public:
    explicit Tasks(Device& device)
        : device_(device), scheduler_(std::make_unique<Scheduler>(device, options())) {}

    Scheduler& scheduler() { return *scheduler_; }
    TaskPtr submit(std::size_t memory, std::function<void(TaskContext&)> run,
                   std::vector<TaskPtr> after = {}) {
        TaskOptions asked{.name = {}, .qos = QosTaskMeta::burstable(memory), .tenant = partition_};
        asked.after = std::move(after);
        const auto ends = std::make_shared<std::atomic<int>>(0);
        TaskPtr task = scheduler_->submit(std::move(asked), std::move(run));
        task->add_done_callback([ends] { ++*ends; });
        all_.push_back({task, ends});
        return task;
    }
    std::function<void(TaskContext&)> work(int launches = 1) {
        return [this, launches](TaskContext&) { work_on(device_, launches); };
    }
    // All ended, once, and nothing is left of them; then throws what the first failed one failed with.
    void finish() {
        for (const auto& [task, ends] : all_) EXPECT_TRUE(task->wait(kLong)) << task->explain();
        EXPECT_TRUE(scheduler_->shutdown(true, false, kLong));
        for (const auto& [task, ends] : all_) {
            EXPECT_TRUE(is_final(task->state()));
            EXPECT_EQ(*ends, 1) << task->explain();
            EXPECT_FALSE(task->cancel());
        }
        const Scheduler::Stats stats = scheduler_->stats();
        EXPECT_EQ(stats.memory_reserved, 0u);
        EXPECT_EQ(stats.waiting + stats.running + stats.threads + stats.blocked, 0u);
        EXPECT_EQ(partition_->memory_used(), 0u);
        MemoryPool::of(device_).trim();  // a free block keeps the stream that it was used on
        for (const auto& [task, ends] : all_) {
            try {
                task->check();
            } catch (const TaskError&) {
            }
        }
    }
    int states(TaskState state) const {
        return static_cast<int>(std::count_if(all_.begin(), all_.end(),
                                              [&](const auto& each) { return each.task->state() == state; }));
    }

   private:
    static SchedulerOptions options() {
        SchedulerOptions out{.workers = 2};
        out.core.admission.device.memory = 100;
        return out;
    }
    struct Each {
        TaskPtr task;
        std::shared_ptr<std::atomic<int>> ends;
    };
    Device& device_;
    std::shared_ptr<Tenant> partition_ = Tenant::create({.name = "partition"});
    std::vector<Each> all_;
    std::unique_ptr<Scheduler> scheduler_;
};

void run_three(faults::Run& run) {
    Tasks tasks(run.device);
    const TaskPtr one = tasks.submit(60, tasks.work());
    const TaskPtr two = tasks.submit(60, tasks.work());
    const TaskPtr three = tasks.submit(60, tasks.work(), {one});
    three->wait(kLong);
    EXPECT_EQ(three->state() == TaskState::cancelled, one->state() != TaskState::completed);
    tasks.finish();
    EXPECT_EQ(tasks.states(TaskState::completed), 3);
}

// One that holds all the memory keeps others queued and pending, in which they are cancelled; then it is told
// itself, and another when it is over.
void cancel_each(faults::Run& run) {
    Tasks tasks(run.device);
    Gate gate;
    const auto until_told = [&](TaskContext& context) {
        tasks.work()(context);
        gate.pass();
        context.check_cancelled();
    };
    const TaskPtr running = tasks.submit(100, until_told);
    gate.wait_entered(*running);
    const TaskPtr queued = tasks.submit(50, tasks.work());
    const TaskPtr pending = tasks.submit(50, tasks.work(), {queued});
    const TaskPtr after = tasks.submit(50, tasks.work(), {pending});
    const TaskPtr never = tasks.submit(101, tasks.work());
    EXPECT_EQ(never->state(), TaskState::rejected);
    EXPECT_FALSE(never->cancel());
    // A failure of the first lets the others start; then they can no longer be cancelled at once.
    const bool held = running->state() == TaskState::running;
    EXPECT_TRUE(pending->cancel() || pending->is_done() || !held);
    EXPECT_TRUE(queued->cancel() || queued->is_done() || !held);
    if (held) {
        EXPECT_EQ(pending->state(), TaskState::cancelled);
        EXPECT_EQ(queued->state(), TaskState::cancelled);
        EXPECT_EQ(after->state(), TaskState::cancelled);
        EXPECT_FALSE(running->cancel());
        EXPECT_EQ(running->state(), TaskState::running);
    }
    gate.open();
    EXPECT_TRUE(running->wait(kLong));
    const TaskPtr completed = tasks.submit(100, tasks.work());
    EXPECT_TRUE(completed->wait(kLong));
    EXPECT_FALSE(completed->cancel());
    tasks.finish();
    EXPECT_EQ(running->state(), TaskState::cancelled);
    EXPECT_EQ(completed->state(), TaskState::completed);
}

// Its function has returned, and its stream's work is under way.
void cancel_while_draining(faults::Run& run) {
    Tasks tasks(run.device);
    std::atomic<bool> queued_all{false};
    const TaskPtr task = tasks.submit(100, [&](TaskContext& context) {
        tasks.work(6)(context);
        queued_all = true;
    });
    const TaskPtr behind = tasks.submit(100, tasks.work());
    while (!queued_all && !task->is_done()) std::this_thread::yield();
    EXPECT_FALSE(task->cancel());
    tasks.finish();
    // It did not ask, so it ran to its end, and all of its work with it.
    EXPECT_EQ(task->state(), TaskState::completed);
    EXPECT_EQ(behind->state(), TaskState::completed);
}

void shut_down(faults::Run& run, bool cancel_waiting) {
    Tasks tasks(run.device);
    Gate gate;
    const TaskPtr running = tasks.submit(100, [&](TaskContext& context) {
        tasks.work()(context);
        gate.pass();
        tasks.work(4)(context);
    });
    gate.wait_entered(*running);
    const TaskPtr queued = tasks.submit(50, tasks.work());
    const TaskPtr pending = tasks.submit(50, tasks.work(), {queued});
    const bool held = running->state() == TaskState::running;
    EXPECT_EQ(tasks.scheduler().shutdown(true, cancel_waiting, held ? 1ms : 50s), !held);
    const TaskPtr late = tasks.submit(1, tasks.work());
    EXPECT_EQ(late->state(), TaskState::rejected);
    if (held && cancel_waiting) {
        EXPECT_EQ(queued->state(), TaskState::cancelled);
        EXPECT_EQ(pending->state(), TaskState::cancelled);
    }
    gate.open();
    EXPECT_TRUE(tasks.scheduler().shutdown(true, cancel_waiting, kLong));
    tasks.finish();
    EXPECT_EQ(tasks.states(TaskState::completed), cancel_waiting ? 1 : 3);
}

// Its end is that of the scheduler object.
void let_go(faults::Run& run) {
    TaskPtr running, queued;
    {
        Scheduler scheduler(run.device, {.workers = 1});
        std::atomic<bool> begun{false};
        running = scheduler.submit({.name = {}, .qos = {}}, [&](TaskContext&) {
            begun = true;
            work_on(run.device, 3);
        });
        while (!begun && !running->is_done()) std::this_thread::yield();
        queued = scheduler.submit({.name = {}, .qos = {}}, [](TaskContext&) {});
    }
    EXPECT_TRUE(running->is_done() && queued->is_done());
    MemoryPool::of(run.device).trim();
    running->check();
    EXPECT_EQ(running->state(), TaskState::completed);
}

faults::Scenario scenario(const char* name, std::function<void(faults::Run&)> program) {
    return {.name = name,
            .program = std::move(program),
            .options = {.seed = 3},
            .most_events = 3,
            .most_polls = 8,
            .threads = true};
}

const faults::Scenario kScenarios[] = {
    scenario("run three", run_three),
    scenario("cancel pending, queued, running, rejected and completed", cancel_each),
    scenario("cancel while draining", cancel_while_draining),
    scenario("shut down", [](faults::Run& run) { shut_down(run, false); }),
    scenario("shut down and cancel", [](faults::Run& run) { shut_down(run, true); }),
    scenario("let go", let_go),
};

class SchedulerFault : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Programs, SchedulerFault,
                         ::testing::Range(0, static_cast<int>(std::size(kScenarios))));

}  // namespace

TEST_P(SchedulerFault, EveryCallMayFailWithEveryCode) {
    faults::Watchdog watchdog;
    const faults::Swept swept = faults::sweep(kScenarios[GetParam()], watchdog);
    EXPECT_EQ(swept.codes.size(), faults::kCodesMet);
    EXPECT_GT(swept.planned, 100);
    EXPECT_GT(swept.thrown, swept.planned / 4);
}
