// The threaded scheduler: tasks on their own streams and tenants, waiting inside tasks, faults, and its end.
#include "scheduler/scheduler.hpp"

#include <algorithm>
#include <future>
#include <thread>

#include "array/array.hpp"
#include "memory/pool.hpp"
#include "runtime/kernel.hpp"
#include "scheduler_support.hpp"
#include "sim_support.hpp"
#include "support.hpp"

using namespace gpk;
using namespace sched;
using namespace std::chrono_literals;
using sim::TestDevice;

namespace {

const Kernel affine_kernel{sim::kAffine};
constexpr auto kLong = 60s;  // no test waits for it: where it passes, something hangs

SchedulerOptions options(std::size_t memory = 0, int workers = 2, PolicyKind kind = PolicyKind::fifo) {
    SchedulerOptions out{.workers = workers};
    out.core.admission.device.memory = memory;
    out.core.policy.kind = kind;
    return out;
}

TaskOptions asks(std::size_t memory, std::vector<TaskPtr> after = {}) {
    return {.name = {}, .qos = QosTaskMeta::guaranteed(memory), .after = std::move(after)};
}

void nothing(TaskContext&) {}

// A task that runs until it is opened.
class Gate {
   public:
    std::function<void(TaskContext&)> task() {
        return [this](TaskContext&) {
            entered_.fetch_add(1);
            opened_.wait();
        };
    }
    void open() { promise_.set_value(); }
    int entered() const { return entered_.load(); }
    void wait_entered(int count) const {
        while (entered_.load() < count) std::this_thread::yield();
    }

   private:
    std::promise<void> promise_;
    std::shared_future<void> opened_ = promise_.get_future().share();
    std::atomic<int> entered_{0};
};

TaskFault fault_of(const TaskPtr& task) {
    EXPECT_TRUE(task->wait(kLong));
    try {
        task->check();
    } catch (const TaskError& failure) {
        EXPECT_EQ(failure.task(), task->id());
        return failure.fault();
    } catch (const Error&) {
        return TaskFault::raised;
    }
    return TaskFault::none;
}

}  // namespace

TEST(Scheduler, ATaskRunsOnAStreamAndATenantOfItsOwn) {
    Device& device = test_device();
    Scheduler scheduler(device, options());
    const auto partition = Tenant::create({.name = "partition"});
    std::uint64_t streams[2] = {};
    std::vector<TaskPtr> tasks;
    for (int i = 0; i < 2; ++i) {
        TaskOptions asked = asks(4 * kMiB);
        asked.name = "mine";
        asked.tenant = partition;
        asked.qos.priority = -i;
        tasks.push_back(scheduler.submit(asked, [&, i](TaskContext& context) {
            const auto& stream = current_stream(device);
            streams[i] = stream->id();
            EXPECT_EQ(TaskContext::current(), &context);
            EXPECT_EQ(stream->tenant()->name(), "mine");
            EXPECT_EQ(stream->tenant()->qos(), QosClass::guaranteed);
            EXPECT_EQ(stream->tenant()->parent(), partition.get());
            EXPECT_EQ(stream->tenant()->memory_limit(), 4 * kMiB);
            const Array fits = Array::empty(device, {static_cast<std::int64_t>(3 * kMiB)}, DType::uint8);
            EXPECT_GE(partition->memory_used(), 3 * kMiB);
            Array::empty(device, {static_cast<std::int64_t>(3 * kMiB)}, DType::uint8);  // does not
        }));
    }
    for (const TaskPtr& each : tasks) {
        EXPECT_TRUE(each->wait(kLong));
        EXPECT_EQ(each->state(), TaskState::failed);
        message_of(ErrorKind::memory, [&] { each->check(); });
    }
    EXPECT_NE(streams[0], streams[1]);
    EXPECT_EQ(partition->memory_used(), 0u);
    MemoryPool::of(device).trim();  // a free block keeps the stream that it was used on
    EXPECT_EQ(partition->live_streams(), 0);
    EXPECT_EQ(TaskContext::current(), nullptr);
}

// The simulated device runs nothing until somebody asks, so a task that ended too early would show.
TEST(Scheduler, ATaskIsCompletedWhenItsDeviceWorkIs) {
    for (std::uint64_t seed = 0; seed < 8; ++seed) {
        TestDevice target({.interleaved = true, .seed = seed});
        Scheduler scheduler(target.device, options(0, 1));
        std::vector<Array> arrays;
        for (int i = 0; i < 4; ++i) {
            arrays.push_back(Array::empty(target.device, {1}, DType::int64));
            *arrays.back().as<std::int64_t>() = 0;
        }
        std::vector<TaskPtr> tasks;
        for (const Array& each : arrays) {
            tasks.push_back(scheduler.submit(asks(1), [&each](TaskContext&) {
                const auto& stream = current_stream(each.device());
                for (int n = 0; n < 3; ++n) {
                    each.storage()->before_write(stream);
                    each.device().launcher().launch(*stream, affine_kernel, {},
                                                    sim::AffineParams{each.as<std::int64_t>(), 10, n, 1}, {});
                }
            }));
        }
        for (std::size_t i = 0; i < tasks.size(); ++i) {
            EXPECT_TRUE(tasks[i]->wait(kLong));
            EXPECT_EQ(tasks[i]->state(), TaskState::completed);
            EXPECT_EQ(*arrays[i].as<std::int64_t>(), 12);
        }
        EXPECT_EQ(scheduler.stats().memory_reserved, 0u);
    }
}

TEST(Scheduler, TasksOfAKindShareAStreamAndItsMemory) {
    TestDevice target;
    Scheduler scheduler(target.device, options(0, 1));
    std::vector<std::uint64_t> streams;
    for (int i = 0; i < 10; ++i) {
        const TaskPtr task =
            scheduler.submit(asks(kMiB * static_cast<std::size_t>(1 + i)), [&](TaskContext&) {
                const auto& stream = current_stream(target.device);
                EXPECT_EQ(stream->tenant()->memory_limit(), kMiB * static_cast<std::size_t>(1 + i));
                Array::empty(target.device, {1000}, DType::uint8);
                streams.push_back(stream->id());
            });
        EXPECT_EQ(fault_of(task), TaskFault::none);
    }
    EXPECT_EQ(std::count(streams.begin(), streams.end(), streams[0]), 10);
    EXPECT_EQ(MemoryPool::of(target.device).stats().driver_allocations, 1u);
    scheduler.shutdown();
    MemoryPool::of(target.device).trim();
    EXPECT_EQ(target.driver.live_streams(), 1u);
}

TEST(Scheduler, DependenciesRunInOrderAndFailuresNameThemselves) {
    Scheduler scheduler(test_device(), options(100, 3));
    std::vector<int> order;
    const auto note = [&](int i) { return [&order, i](TaskContext&) { order.push_back(i); }; };
    const TaskPtr one = scheduler.submit(asks(1), note(1));
    const TaskPtr two = scheduler.submit(asks(1, {one}), note(2));
    const TaskPtr three = scheduler.submit(asks(1, {one, two}), note(3));
    EXPECT_EQ(fault_of(three), TaskFault::none);
    EXPECT_EQ(order, (std::vector<int>{1, 2, 3}));
    const TaskPtr bad = scheduler.submit(asks(1), [](TaskContext&) { throw std::runtime_error("mine"); });
    const TaskPtr after = scheduler.submit(asks(1, {bad}), note(4));
    const TaskPtr later = scheduler.submit(asks(1, {after}), note(5));
    EXPECT_EQ(fault_of(later), TaskFault::dependency);
    EXPECT_EQ(later->state(), TaskState::cancelled);
    try {
        after->check();
        ADD_FAILURE();
    } catch (const TaskError& failure) {
        EXPECT_EQ(failure.cause(), bad->id());
    }
    EXPECT_THROW(bad->check(), std::runtime_error);
    EXPECT_EQ(order.size(), 3u);
    const TaskPtr never = scheduler.submit(asks(101), nothing);
    EXPECT_EQ(never->state(), TaskState::rejected);
    EXPECT_EQ(fault_of(never), TaskFault::rejected);
    Scheduler other(test_device(), options());
    message_of(ErrorKind::value, [&] { other.submit(asks(1, {one}), nothing); });
    message_of(ErrorKind::value, [&] { other.submit(asks(1), nullptr); });
    message_of(ErrorKind::value, [] { Scheduler(test_device(), options(0, 0)); });
}

TEST(Scheduler, CancelAndCallbacks) {
    Scheduler scheduler(test_device(), options(100, 1));
    Gate gate;
    std::atomic<int> called{0};
    const TaskPtr running = scheduler.submit(asks(100), gate.task());
    gate.wait_entered(1);
    const TaskPtr queued = scheduler.submit(asks(1), nothing);
    const TaskPtr pending = scheduler.submit(asks(1, {queued}), nothing);
    EXPECT_NE(queued->explain().find("is queued"), std::string::npos) << queued->explain();
    EXPECT_NE(pending->explain().find("waits for task 2"), std::string::npos) << pending->explain();
    for (const TaskPtr& each : {running, queued, pending}) {
        each->add_done_callback([&] { ++called; });
    }
    EXPECT_TRUE(queued->cancel());
    EXPECT_FALSE(queued->cancel());
    EXPECT_EQ(fault_of(queued), TaskFault::cancelled);
    EXPECT_EQ(fault_of(pending), TaskFault::dependency);
    EXPECT_EQ(called, 2);
    EXPECT_FALSE(running->wait(1ms));
    EXPECT_FALSE(running->cancel());
    EXPECT_TRUE(running->cancel_requested());
    gate.open();
    EXPECT_EQ(fault_of(running), TaskFault::none);  // it did not ask
    const TaskPtr asking = scheduler.submit(asks(1), [](TaskContext& context) {
        while (true) context.check_cancelled();
    });
    while (asking->state() != TaskState::running) std::this_thread::yield();
    asking->cancel();
    EXPECT_EQ(fault_of(asking), TaskFault::cancelled);
    EXPECT_EQ(asking->state(), TaskState::cancelled);
    bool here = false;
    asking->add_done_callback([&] { here = true; });
    EXPECT_TRUE(here);
    while (called != 3) std::this_thread::yield();
}

TEST(Scheduler, TimePassesForDeadlinesAndThrottledTasks) {
    SchedulerOptions made = options(100, 1);
    made.core.admission.throttle_ns = 2 * kMs;
    Gate gate, other;  // outlive what waits for them
    Scheduler scheduler(test_device(), made);
    const TaskPtr running = scheduler.submit(asks(100), gate.task());
    gate.wait_entered(1);
    TaskOptions late = asks(1);
    late.start_within_ns = kMs;
    EXPECT_EQ(fault_of(scheduler.submit(late, nothing)), TaskFault::deadline);  // while the worker is busy
    gate.open();
    EXPECT_TRUE(running->wait(kLong));
    made.workers = 2;
    Scheduler pressed(test_device(), made);
    pressed.submit(asks(100), other.task());
    other.wait_entered(1);
    std::vector<TaskPtr> tasks;
    for (int i = 0; i < 3; ++i) {
        tasks.push_back(pressed.submit({.name = {}, .qos = QosTaskMeta::best_effort()}, nothing));
    }
    for (const TaskPtr& each : tasks) EXPECT_EQ(fault_of(each), TaskFault::none);
    other.open();
}

TEST(Scheduler, TasksMayWaitForTasks) {
    Scheduler scheduler(test_device(), options(1000, 1));
    // Sixty deep, with one worker.
    std::function<int(int)> depth = [&](int left) {
        if (left == 0) return 0;
        int below = -1;
        const TaskPtr inner = scheduler.submit(asks(1), [&](TaskContext&) { below = depth(left - 1); });
        inner->wait();
        inner->check();
        return below + 1;
    };
    int reached = 0;
    const TaskPtr outer = scheduler.submit(asks(1), [&](TaskContext&) { reached = depth(60); });
    EXPECT_EQ(fault_of(outer), TaskFault::none);
    EXPECT_EQ(reached, 60);
    // The threads that helped go again.
    while (scheduler.stats().threads > 1) std::this_thread::yield();
}

TEST(Scheduler, AWaitThatCouldNeverEndIsRefused) {
    Scheduler scheduler(test_device(), options(100, 2));
    const auto wait_for = [&](std::size_t memory) {
        return [&scheduler, memory](TaskContext&) {
            const TaskPtr inner = scheduler.submit(asks(memory), nothing);
            inner->wait();
            inner->check();
        };
    };
    const TaskPtr refused = scheduler.submit(asks(60), wait_for(60));
    ASSERT_TRUE(refused->wait(kLong));
    EXPECT_NE(message_of(ErrorKind::unsupported, [&] { refused->check(); }).find("deadlock"),
              std::string::npos);
    // Two that could each go on if the other ended: one is refused, and so the other is not.
    const TaskPtr pair[] = {scheduler.submit(asks(30), wait_for(60)),
                            scheduler.submit(asks(30), wait_for(60))};
    int failed = 0;
    for (const TaskPtr& each : pair) {
        ASSERT_TRUE(each->wait(kLong));
        failed += each->state() == TaskState::failed;
    }
    EXPECT_LE(failed, 1);
    TaskPtr self;
    std::promise<void> known;
    self = scheduler.submit(asks(1), [&](TaskContext&) {
        known.get_future().wait();
        self->wait();
    });
    known.set_value();
    EXPECT_TRUE(self->wait(kLong));
    EXPECT_EQ(self->state(), TaskState::failed);
    // Nor may a done callback wait: it would keep others from ending.
    Gate gate;
    const TaskPtr other = scheduler.submit(asks(1), gate.task());
    std::atomic<bool> thrown{false};
    Gate second;
    const TaskPtr called = scheduler.submit(asks(1), second.task());
    gate.wait_entered(1);
    called->add_done_callback([&] {
        try {
            other->wait();
        } catch (const TaskError&) {
            thrown = true;
        }
    });
    second.open();
    while (!thrown) std::this_thread::yield();
    gate.open();
    EXPECT_TRUE(other->wait(kLong));
}

TEST(Scheduler, AStickyFaultFailsTheTasksByName) {
    TestDevice target({.interleaved = true, .seed = 1});
    {
        Scheduler scheduler(target.device, options(0, 3));
        const Array array = Array::empty(target.device, {1}, DType::int64);
        Gate gate;
        std::vector<TaskPtr> tasks;
        for (int i = 0; i < 3; ++i) {
            tasks.push_back(scheduler.submit(asks(1), [&](TaskContext& context) {
                gate.task()(context);
                const auto& stream = current_stream(target.device);
                target.device.launcher().launch(*stream, affine_kernel, {},
                                                sim::AffineParams{array.as<std::int64_t>(), 1, 0, 1}, {});
            }));
        }
        gate.wait_entered(3);
        tasks.push_back(scheduler.submit(asks(1), nothing));
        target.driver.set_faults({{.call = "launch",
                                   .nth = 1,
                                   .code = 700,
                                   .code_name = "CUDA_ERROR_ILLEGAL_ADDRESS",
                                   .sticky = true}});
        gate.open();
        for (const TaskPtr& each : tasks) {
            ASSERT_TRUE(each->wait(kLong));
            EXPECT_EQ(each->state(), TaskState::failed);
            sim::expect_code("CUDA_ERROR_ILLEGAL_ADDRESS", [&] { each->check(); });
        }
        EXPECT_EQ(scheduler.stats().memory_reserved, 0u);
        target.driver.set_faults({});
        EXPECT_EQ(fault_of(scheduler.submit(asks(1), nothing)), TaskFault::none);
    }
    EXPECT_EQ(target.driver.live_streams(), 1u);
}

TEST(Scheduler, EndsInEveryWay) {
    for (const bool cancel : {false, true}) {
        std::atomic<int> ran{0};
        std::vector<TaskPtr> tasks;
        {
            Scheduler scheduler(test_device(), options(100, 2));
            Gate gate;
            tasks.push_back(scheduler.submit(asks(100), gate.task()));
            gate.wait_entered(1);
            for (int i = 0; i < 5; ++i)
                tasks.push_back(scheduler.submit(asks(30), [&](TaskContext&) { ++ran; }));
            EXPECT_FALSE(scheduler.shutdown(true, cancel, 1ms));
            const TaskPtr late = scheduler.submit(asks(1), nothing);
            EXPECT_EQ(fault_of(late), TaskFault::rejected);
            gate.open();
            EXPECT_TRUE(scheduler.shutdown());
            EXPECT_TRUE(scheduler.shutdown());
        }
        EXPECT_EQ(ran, cancel ? 0 : 5);
        for (std::size_t i = 1; i < tasks.size(); ++i) {
            EXPECT_EQ(fault_of(tasks[i]), cancel ? TaskFault::shutdown : TaskFault::none);
        }
        EXPECT_FALSE(tasks[0]->cancel());
        EXPECT_NE(tasks[0]->explain().find("completed"), std::string::npos);  // outlives its scheduler
    }
    // Abandoned, it still runs what it has.
    std::vector<TaskPtr> tasks;
    {
        auto scheduler = std::make_unique<Scheduler>(test_device(), options());
        for (int i = 0; i < 20; ++i) tasks.push_back(scheduler->submit(asks(1), nothing));
        scheduler->abandon();
    }
    for (const TaskPtr& each : tasks) EXPECT_EQ(fault_of(each), TaskFault::none);
    Scheduler inside(test_device(), options());
    const TaskPtr self = inside.submit(asks(1), [&](TaskContext&) { inside.shutdown(true); });
    EXPECT_EQ(fault_of(self), TaskFault::raised);
}

// Threads that submit, wait, cancel and ask at once; what one submits is all accounted for.
TEST(Scheduler, ManyThreadsAtOnce) {
    SchedulerOptions made = options(1000, 4, PolicyKind::fair);
    made.core.policy.patience_ns = 100'000;
    Scheduler scheduler(test_device(), made);
    const std::shared_ptr<Tenant> tenants[] = {Tenant::create({.name = "a", .memory_limit = 900}),
                                               Tenant::create({.name = "b"}), nullptr};
    scheduler.set_tenant(tenants[1], {.memory = 500, .max_running = 2}, 3);
    constexpr int kThreads = 4, kTasks = 250;
    std::atomic<int> ran{0}, over{0};
    std::atomic<std::int64_t> held{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
        threads.emplace_back([&, t] {
            Random random(static_cast<std::uint64_t>(t));
            std::vector<TaskPtr> mine;
            for (int i = 0; i < kTasks; ++i) {
                const auto bytes = static_cast<std::int64_t>(random.below(400));
                TaskOptions asked = asks(static_cast<std::size_t>(bytes));
                asked.tenant = tenants[random.below(3)];
                if (!mine.empty() && random.below(3) == 0) asked.after = {mine[random.below(mine.size())]};
                const bool nests = random.below(10) == 0;
                mine.push_back(scheduler.submit(asked, [&, bytes, nests](TaskContext&) {
                    EXPECT_LE(held += bytes, 1000);
                    if (nests) scheduler.submit(asks(0), nothing)->wait();
                    held -= bytes;
                    ++ran;
                }));
                mine.back()->add_done_callback([&] { ++over; });
                if (random.below(8) == 0) mine[random.below(mine.size())]->cancel();
                if (random.below(8) == 0) mine[random.below(mine.size())]->explain();
                if (random.below(16) == 0) mine[random.below(mine.size())]->wait(kLong);
                if (random.below(8) == 0) scheduler.evaluate(asked);
            }
            for (const TaskPtr& each : mine) EXPECT_TRUE(each->wait(kLong));
        });
    }
    for (std::thread& each : threads) each.join();
    scheduler.shutdown();
    const Scheduler::Stats stats = scheduler.stats();
    EXPECT_EQ(over, kThreads * kTasks);
    EXPECT_GT(ran, kThreads * kTasks / 4);
    EXPECT_EQ(stats.memory_reserved, 0u);
    EXPECT_EQ(stats.waiting + stats.running + stats.threads, 0u);
    std::uint64_t ended = 0;
    for (const std::uint64_t each : stats.ended) ended += each;
    EXPECT_GE(ended, static_cast<std::uint64_t>(kThreads * kTasks));
}
