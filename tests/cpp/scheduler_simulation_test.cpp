// The production policy code on a virtual clock: a day of 100,000 tasks of 50 tenants, and shares by weight.
#include <algorithm>
#include <chrono>
#include <map>
#include <queue>
#include <set>

#include "scheduler_support.hpp"

using namespace gpk;
using namespace sched;

namespace {

constexpr std::size_t kGiB = std::size_t{1} << 30;
constexpr std::size_t kCapacity = 80 * kGiB;
constexpr int kTenants = 50;
constexpr std::int64_t kDay = 86'400 * kSecond;

class Hash {
   public:
    void add(std::uint64_t value) {
        for (int i = 0; i < 8; ++i, value >>= 8) state_ = (state_ ^ (value & 0xff)) * 0x100000001B3u;
    }
    std::uint64_t value() const { return state_; }

   private:
    std::uint64_t state_ = 0xCBF29CE484222325u;
};

// What happens at a time. Among equals the one that was planned first.
struct Happening {
    std::int64_t time_ns;
    std::uint64_t number;
    TaskId finishes;  // 0: a task arrives
    bool operator>(const Happening& other) const {
        return time_ns != other.time_ns ? time_ns > other.time_ns : number > other.number;
    }
};

// Memory as it is really used, by a device that evicts when it is full: BestEffort first, then what Burstable
// uses above its request. What is promised cannot be taken, so more promised than there is would show as a
// use that finds no room.
class UsedMemory {
   public:
    std::uint64_t out_of_memory = 0;
    std::map<QosClass, std::uint64_t> evictions;
    std::size_t peak = 0, wanted_peak = 0;

    void start(TaskId id, const QosTaskMeta& qos, std::size_t wanted) {
        use_[id] = {qos, wanted, wanted};
        resident_ += wanted;
        wanted_ += wanted;
        wanted_peak = std::max(wanted_peak, wanted_);
        for (const QosClass from : {QosClass::best_effort, QosClass::burstable, QosClass::guaranteed}) {
            for (auto& [task, each] : use_) {
                if (resident_ <= kCapacity) break;
                if (each.qos.qos != from) continue;
                const std::size_t spare = each.resident - std::min(each.resident, each.qos.memory_request);
                const std::size_t taken = std::min(spare, resident_ - kCapacity);
                each.resident -= taken;
                resident_ -= taken;
                evictions[from] += taken != 0;
            }
        }
        out_of_memory += resident_ > kCapacity;
        peak = std::max(peak, resident_);
    }
    void end(TaskId id) {
        resident_ -= use_.at(id).resident;
        wanted_ -= use_.at(id).wanted;
        use_.erase(id);
    }

   private:
    struct Use {
        QosTaskMeta qos;
        std::size_t wanted = 0, resident = 0;
    };
    std::map<TaskId, Use> use_;
    std::size_t resident_ = 0, wanted_ = 0;
};

struct Day {
    std::uint64_t hash = 0;
    std::map<TaskState, int> ended;
    std::map<QosClass, int> throttles;
    UsedMemory memory;
    std::size_t most_reserved = 0;
    std::int64_t longest_guaranteed_wait_ns = 0;
    std::uint64_t transitions = 0;
    std::int64_t length_ns = 0;
    std::set<AccountId> served;  // tenants of which a task completed
    std::string wrong;
};

class Simulation {
   public:
    Simulation(std::uint64_t seed, int tasks) : random_(seed), tasks_(tasks), core_(make(), clock_) {
        // The tenants' limits together are four times what there is, and so are the tasks'.
        for (int i = 0; i < kTenants; ++i) {
            accounts_.push_back(core_.add_account(str("tenant ", i),
                                                  {.memory = 4 * kCapacity / kTenants, .max_queued = 2000},
                                                  kDeviceAccount, 1 + i % 4));
        }
        plan(0, 0);
    }

    Day run() {
        while (!happenings_.empty()) {
            const std::int64_t timer = core_.next_time_ns();
            if (timer < happenings_.top().time_ns) {
                clock_.advance_to(timer);
            } else {
                const Happening next = happenings_.top();
                happenings_.pop();
                clock_.advance_to(next.time_ns);
                if (next.finishes == 0) {
                    arrive();
                } else {
                    finish(next.finishes);
                }
            }
            core_.tick();
            while (const auto id = core_.start_next()) start(*id);
            note();
        }
        day_.hash = hash_.value();
        day_.length_ns = clock_.now_ns();
        if (core_.waiting() + core_.running() != 0) day_.wrong += "tasks were left; ";
        day_.wrong += core_.admission().audit();
        return day_;
    }

   private:
    static CoreConfig make() {
        CoreConfig made = config(kCapacity, PolicyKind::fair, 64);
        made.policy.patience_ns = 30 * kSecond;
        return made;
    }

    void plan(std::int64_t time_ns, TaskId finishes) { happenings_.push({time_ns, number_++, finishes}); }

    void arrive() {
        TaskSpec spec;
        spec.request.account = accounts_[random_.below(kTenants)];
        const auto request = static_cast<std::size_t>(static_cast<double>(6 * kGiB) * random_.unit());
        const double bandwidth = 0.06 * random_.unit();
        switch (random_.below(3)) {
            case 0: spec.request.qos = QosTaskMeta::guaranteed(request, bandwidth); break;
            case 1: spec.request.qos = QosTaskMeta::burstable(request, 4 * request, bandwidth); break;
            case 2: spec.request.qos = QosTaskMeta::best_effort(4 * request, bandwidth); break;
        }
        spec.request.qos.priority = static_cast<int>(random_.below(5)) - 2;
        spec.request.compute = 0.06 * random_.unit();
        if (random_.below(2) == 0) spec.request.expected_ns = duration();
        if (random_.below(20) == 0) spec.deadline_ns = clock_.now_ns() + 60 * kSecond;
        if (last_ != 0 && core_.knows(last_) && random_.below(10) == 0) spec.after = {last_};
        last_ = core_.submit(std::move(spec));
        if (random_.below(50) == 0) core_.cancel(last_);
        if (++arrived_ == tasks_) return;
        // Twice as many at noon as on average, next to none at midnight.
        const double hour = static_cast<double>(clock_.now_ns()) / static_cast<double>(kDay);
        const double rate = std::max(0.05, 2 - std::abs(4 * hour - 2));
        plan(clock_.now_ns() +
                 static_cast<std::int64_t>(static_cast<double>(kDay / tasks_) * 2 * random_.unit() / rate),
             0);
    }

    std::int64_t duration() { return static_cast<std::int64_t>(30e9 * random_.unit()) + kMs; }

    void start(TaskId id) {
        const TaskRequest& request = core_.spec(id).request;
        const QosTaskMeta& qos = request.qos;
        started_[id] = clock_.now_ns();
        if (qos.qos == QosClass::guaranteed && core_.decision(id).factor != 1)
            day_.wrong += "cut guaranteed; ";
        const double most = static_cast<double>(std::min(qos.memory_limit, 4 * kCapacity / kTenants));
        const double least = static_cast<double>(qos.memory_request);
        day_.memory.start(id, qos, static_cast<std::size_t>(least + (most - least) * random_.unit()));
        plan(clock_.now_ns() + (request.expected_ns != 0 ? request.expected_ns : duration()), id);
    }

    void finish(TaskId id) {
        day_.memory.end(id);
        const bool fails = random_.below(40) == 0;
        core_.finish(id, fails ? TaskState::failed : TaskState::completed,
                     fails ? TaskFault::raised : TaskFault::none, clock_.now_ns() - started_[id]);
        started_.erase(id);
    }

    void note() {
        const auto& device = core_.admission().account(kDeviceAccount);
        day_.most_reserved = std::max(day_.most_reserved, device.supply.memory_reserved);
        if (device.supply.memory_reserved > kCapacity) day_.wrong += "over-reserved; ";
        if (++notes_ % 256 == 0) day_.wrong += core_.admission().audit();
        core_.take_answers();
        for (const Transition& each : core_.take_transitions()) {
            ++day_.transitions;
            hash_.add(static_cast<std::uint64_t>(each.time_ns));
            hash_.add(each.task);
            hash_.add(static_cast<std::uint64_t>(each.to) * 16 + static_cast<std::uint64_t>(each.fault));
            hash_.add(each.cause);
            if (each.to == TaskState::running &&
                core_.spec(each.task).request.qos.qos == QosClass::guaranteed) {
                const std::int64_t waited = each.time_ns - queued_[each.task];
                day_.longest_guaranteed_wait_ns = std::max(day_.longest_guaranteed_wait_ns, waited);
            }
            if (each.to == TaskState::queued) {
                queued_[each.task] = each.time_ns;
                const Decision now = core_.explain(each.task).decision;
                day_.throttles[core_.spec(each.task).request.qos.qos] += now.verdict == Verdict::throttled;
            }
            if (is_final(each.to)) {
                queued_.erase(each.task);
                ++day_.ended[each.to];
                if (each.to == TaskState::completed) {
                    day_.served.insert(core_.spec(each.task).request.account);
                }
                if (each.task != last_) core_.forget(each.task);
            }
        }
    }

    Random random_;
    int tasks_, arrived_ = 0;
    VirtualClock clock_;
    SchedulerCore core_;
    std::vector<AccountId> accounts_;
    std::priority_queue<Happening, std::vector<Happening>, std::greater<>> happenings_;
    std::map<TaskId, std::int64_t> started_, queued_;
    std::uint64_t number_ = 0, notes_ = 0;
    TaskId last_ = 0;
    Hash hash_;
    Day day_;
};

}  // namespace

TEST(SchedulerSimulation, ADayOf100000Tasks) {
    const auto begin = std::chrono::steady_clock::now();
    const Day day = Simulation(1, 100'000).run();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    EXPECT_EQ(day.wrong, "");
    EXPECT_GT(day.length_ns, kDay * 9 / 10);
    EXPECT_EQ(day.served.size(), static_cast<std::size_t>(kTenants));
    EXPECT_LE(day.most_reserved, kCapacity);
    EXPECT_GT(day.most_reserved, kCapacity * 9 / 10);  // there was something to share
    EXPECT_GT(day.memory.wanted_peak, kCapacity);      // more than there is was wanted,
    EXPECT_EQ(day.memory.out_of_memory, 0u);           // and found its place,
    EXPECT_EQ(day.memory.evictions.count(QosClass::guaranteed) != 0
                  ? day.memory.evictions.at(QosClass::guaranteed)
                  : 0,
              0u);  // not at the cost of what was promised in full,
    EXPECT_GT(day.memory.evictions.at(QosClass::best_effort), 100u);  // but of this
    EXPECT_GT(day.throttles.at(QosClass::best_effort), 0);
    EXPECT_EQ(day.throttles.at(QosClass::guaranteed), 0);
    EXPECT_EQ(day.throttles.at(QosClass::burstable), 0);
    EXPECT_LT(day.longest_guaranteed_wait_ns, 300 * kSecond);  // tasks run for 15 s on average
    int all = 0;
    for (const auto& [state, count] : day.ended) all += count;
    EXPECT_EQ(all, 100'000);
    EXPECT_GT(day.ended.at(TaskState::completed), 80'000);
    EXPECT_LT(took.count(), 60);
    RecordProperty("seconds", str(took.count()));
}

TEST(SchedulerSimulation, TheSeedDecidesTheTrace) {
    const std::uint64_t once = Simulation(7, 5000).run().hash;
    EXPECT_EQ(Simulation(7, 5000).run().hash, once);
    EXPECT_NE(Simulation(8, 5000).run().hash, once);
}

// Five tenants that always have work, with weights of 1 to 5 on four workers; tasks of up to 1 ms whose
// lengths half of the tenants declare.
TEST(SchedulerSimulation, SharesFollowTheWeightsWithin2PercentOfEverySecond) {
    constexpr int kCount = 5, kSlots = 4, kSeconds = 20;
    Random random(3);
    VirtualClock clock;
    SchedulerCore core(config(kGiB, PolicyKind::fair, kSlots), clock);
    std::vector<AccountId> accounts;
    for (int i = 0; i < kCount; ++i) {
        accounts.push_back(core.add_account(str("tenant ", i), {}, kDeviceAccount, i + 1));
    }
    std::priority_queue<Happening, std::vector<Happening>, std::greater<>> ends;
    std::vector<std::vector<double>> used(kSeconds, std::vector<double>(kCount));
    std::map<TaskId, std::pair<int, std::int64_t>> running;
    std::uint64_t number = 0;
    const auto submit = [&](int tenant) {
        TaskSpec spec;
        spec.request.account = accounts[static_cast<std::size_t>(tenant)];
        const auto length = static_cast<std::int64_t>(1e5 + 9e5 * random.unit());
        if (tenant % 2 == 0) spec.request.expected_ns = length;
        core.submit(spec);
    };
    for (int i = 0; i < 3 * kSlots; ++i) {
        for (int tenant = 0; tenant < kCount; ++tenant) submit(tenant);
    }
    for (;;) {
        while (const auto id = core.start_next()) {
            const TaskRequest& request = core.spec(*id).request;
            const int tenant = static_cast<int>(request.account) - 1;
            const auto length = request.expected_ns != 0
                                    ? request.expected_ns
                                    : static_cast<std::int64_t>(1e5 + 9e5 * random.unit());
            running[*id] = {tenant, clock.now_ns()};
            ends.push({clock.now_ns() + length, number++, *id});
        }
        const Happening next = ends.top();
        ends.pop();
        clock.advance_to(next.time_ns);
        const auto [tenant, begin] = running.at(next.finishes);
        running.erase(next.finishes);
        for (std::int64_t at = begin; at < next.time_ns;) {
            const std::int64_t window = at / kSecond;
            const std::int64_t until = std::min((window + 1) * kSecond, next.time_ns);
            if (window < kSeconds) {
                used[static_cast<std::size_t>(window)][static_cast<std::size_t>(tenant)] +=
                    static_cast<double>(until - at);
            }
            at = until;
        }
        core.finish(next.finishes, TaskState::completed, TaskFault::none, next.time_ns - begin);
        core.forget(next.finishes);
        core.take_transitions();
        core.take_answers();
        if (clock.now_ns() > (kSeconds + 1) * kSecond) break;
        submit(tenant);
    }
    for (const auto& window : used) {
        for (int tenant = 0; tenant < kCount; ++tenant) {
            const double share = window[static_cast<std::size_t>(tenant)] / (kSlots * 1e9);
            const double expected = (tenant + 1) / 15.0;
            EXPECT_NEAR(share / expected, 1, 0.02) << "tenant " << tenant;
        }
    }
}
