// What quality of service and admission promise, case by case and in random walks.
#include "scheduler/admission.hpp"

#include <cmath>
#include <limits>
#include <map>

#include "scheduler_support.hpp"

using namespace gpk;
using namespace sched;

namespace {

TaskRequest request(const QosTaskMeta& qos, AccountId account = kDeviceAccount, double compute = 0) {
    TaskRequest out;
    out.qos = qos;
    out.account = account;
    out.compute = compute;
    return out;
}

AdmissionController controller(std::size_t memory) { return AdmissionController(config(memory).admission); }

}  // namespace

TEST(Qos, ClassesAreCheckedAsInKubernetes) {
    EXPECT_EQ(QosTaskMeta::guaranteed(5).memory_limit, 5u);
    EXPECT_EQ(QosTaskMeta::burstable(5, 9).memory_request, 5u);
    EXPECT_EQ(QosTaskMeta::best_effort(9).memory_request, 0u);
    message_of(ErrorKind::value, [] { QosTaskMeta::burstable(6, 5); });
    message_of(ErrorKind::value, [] { QosTaskMeta::guaranteed(1, -0.1); });
    message_of(ErrorKind::value, [] { QosTaskMeta::guaranteed(1, std::nan("")); });
    message_of(ErrorKind::value, [] { QosTaskMeta::guaranteed(1, 0, kMaxPriority + 1); });
    QosTaskMeta mixed = QosTaskMeta::guaranteed(5);
    mixed.memory_limit = 6;
    message_of(ErrorKind::value, [&] { mixed.check("test"); });
    mixed.qos = QosClass::best_effort;
    message_of(ErrorKind::value, [&] { mixed.check("test"); });
}

TEST(Qos, BestEffortIsThrottledFirstAndGuaranteedNever) {
    QosPolicyEvaluator evaluator(100, 10);
    EXPECT_EQ(evaluator.evaluate(QosTaskMeta::best_effort()).factor, 1);
    evaluator.reserve(QosTaskMeta::guaranteed(90, 5));
    const QosEvaluation best = evaluator.evaluate(QosTaskMeta::best_effort());
    EXPECT_EQ(best.verdict, QosVerdict::throttle);
    EXPECT_EQ(best.reason, QosReason::pressure);
    EXPECT_NEAR(best.factor, 0.5, 1e-9);
    // Burstable is cut to the bandwidth that is left; Guaranteed gets what it asks for, or nothing.
    const QosEvaluation burst = evaluator.evaluate(QosTaskMeta::burstable(10, 20, 10));
    EXPECT_EQ(burst.verdict, QosVerdict::throttle);
    EXPECT_NEAR(burst.factor, 0.5, 1e-9);
    EXPECT_EQ(evaluator.evaluate(QosTaskMeta::burstable(10, 20, 5)).verdict, QosVerdict::admit);
    EXPECT_EQ(evaluator.evaluate(QosTaskMeta::guaranteed(10, 6)).reason, QosReason::bandwidth_in_use);
    EXPECT_EQ(evaluator.evaluate(QosTaskMeta::guaranteed(11)).reason, QosReason::memory_in_use);
    EXPECT_EQ(evaluator.evaluate(QosTaskMeta::guaranteed(101)).reason, QosReason::memory_total);
    EXPECT_EQ(evaluator.evaluate(QosTaskMeta::guaranteed(1, 11)).reason, QosReason::bandwidth_total);
    evaluator.reserve(QosTaskMeta::guaranteed(10, 5));
    EXPECT_EQ(evaluator.evaluate(QosTaskMeta::best_effort()).factor, kLeastFactor);
    EXPECT_EQ(evaluator.evaluate(QosTaskMeta::burstable(0, 20, 5)).verdict, QosVerdict::reject);
}

TEST(Qos, AReservationIsReleasedOnce) {
    QosPolicyEvaluator evaluator(100, 1);
    const auto one = evaluator.reserve(QosTaskMeta::guaranteed(60, 1.0 / 3));
    message_of(ErrorKind::value, [&] { evaluator.reserve(QosTaskMeta::guaranteed(41)); });
    evaluator.release(one);
    message_of(ErrorKind::value, [&] { evaluator.release(one); });
    message_of(ErrorKind::value, [&] { evaluator.release(99); });
    EXPECT_EQ(evaluator.supply().memory_reserved, 0u);
    EXPECT_EQ(evaluator.supply().bandwidth_reserved, 0);
    message_of(ErrorKind::value, [] { QosPolicyEvaluator(0, 1); });
    message_of(ErrorKind::value, [] { QosPolicyEvaluator(1, std::numeric_limits<double>::infinity()); });
}

TEST(Admission, TakesAllOrNothingAlongTheTree) {
    AdmissionController admission = controller(100);
    const AccountId partition = admission.add_account("partition", {.memory = 60, .compute = 0.5});
    const AccountId tenant = admission.add_account("tenant", {.memory = 50}, partition);
    admission.enqueue(1, request(QosTaskMeta::guaranteed(40), tenant, 0.5), 0, 0);
    admission.enqueue(2, request(QosTaskMeta::guaranteed(10), tenant, 0.1), 0, 0);
    EXPECT_EQ(admission.admit(1, 0).verdict, Verdict::admitted);
    for (const AccountId each : {kDeviceAccount, partition, tenant}) {
        EXPECT_EQ(admission.account(each).supply.memory_reserved, 40u);
        EXPECT_EQ(admission.account(each).running, 1u);
        EXPECT_EQ(admission.account(each).queued, 1u);
    }
    // The tenant has memory for it, the partition above no compute: nothing is taken anywhere.
    const Decision two = admission.admit(2, 0);
    EXPECT_EQ(two.verdict, Verdict::queued);
    EXPECT_EQ(two.reason, Reason::compute);
    EXPECT_EQ(two.account, partition);
    EXPECT_EQ(admission.account(tenant).supply.memory_reserved, 40u);
    EXPECT_EQ(admission.holders(partition, Reason::compute).at(0).task, 1u);
    admission.release(1);
    EXPECT_EQ(admission.admit(2, 0).verdict, Verdict::admitted);
    message_of(ErrorKind::value, [&] { admission.release(1); });
    message_of(ErrorKind::value, [&] { admission.withdraw(2); });
    message_of(ErrorKind::value, [&] { admission.admit(2, 0); });
    EXPECT_EQ(admission.audit(), "");
}

TEST(Admission, RejectsWhatCanNeverBe) {
    AdmissionController admission = controller(100);
    const AccountId tenant =
        admission.add_account("tenant", {.memory = 50, .bandwidth = 0.5, .compute = 0.5});
    const auto reason = [&](const QosTaskMeta& qos, double compute = 0) {
        const Decision decision = admission.enqueue(1, request(qos, tenant, compute), 0, 0);
        EXPECT_EQ(decision.verdict, Verdict::rejected);
        return decision.reason;
    };
    EXPECT_EQ(reason(QosTaskMeta::guaranteed(51)), Reason::exceeds_memory);
    EXPECT_EQ(reason(QosTaskMeta::guaranteed(kNoMemoryLimit)), Reason::exceeds_memory);
    EXPECT_EQ(reason(QosTaskMeta::guaranteed(std::size_t{1} << 63)), Reason::exceeds_memory);
    EXPECT_EQ(reason(QosTaskMeta::guaranteed(1, 0.6)), Reason::exceeds_bandwidth);
    EXPECT_EQ(reason(QosTaskMeta::guaranteed(1), 0.6), Reason::exceeds_compute);
    message_of(ErrorKind::value, [&] { reason(QosTaskMeta::guaranteed(1), std::nan("")); });
    message_of(ErrorKind::value, [&] { reason(QosTaskMeta::guaranteed(1), 1.5); });
    message_of(ErrorKind::value, [&] { reason(QosTaskMeta::guaranteed(1, 1.5)); });
    message_of(ErrorKind::value, [&] { admission.enqueue(1, request(QosTaskMeta::guaranteed(1), 7), 0, 0); });
    message_of(ErrorKind::value, [] { controller(0); });
    message_of(ErrorKind::value, [] { controller(kUnlimited); });
    EXPECT_EQ(admission.audit(), "");
}

TEST(Admission, AFullQueueSaysWhenToRetry) {
    AdmissionConfig made = config(100).admission;
    made.device.max_queued = 2;
    made.retry_ns = 77;
    AdmissionController admission(made);
    TaskRequest all = request(QosTaskMeta::guaranteed(100));
    all.expected_ns = 500;
    admission.enqueue(1, all, 0, 0);
    EXPECT_EQ(admission.enqueue(2, all, 0, 0).verdict, Verdict::queued);
    Decision full = admission.enqueue(3, all, 0, 0);
    EXPECT_EQ(full.reason, Reason::queue_full);
    EXPECT_EQ(full.retry_after_ns, 77);  // nothing runs
    admission.admit(1, 100);
    admission.enqueue(3, all, 0, 100);
    full = admission.enqueue(4, all, 0, 200);
    EXPECT_EQ(full.retry_after_ns, 400);  // until task 1 ends
    EXPECT_EQ(admission.evaluate(all, 200).reason, Reason::queue_full);
}

TEST(Admission, BestEffortStartsAreSpacedUnderPressure) {
    AdmissionController admission = controller(100);  // a spacing of 100 ms when everything is promised
    admission.enqueue(1, request(QosTaskMeta::guaranteed(90)), 0, 0);
    admission.admit(1, 0);
    for (TaskId id = 2; id < 5; ++id) admission.enqueue(id, request(QosTaskMeta::best_effort()), 0, 0);
    EXPECT_EQ(admission.admit(2, 0).verdict, Verdict::admitted);
    const Decision held = admission.admit(3, 20 * kMs);
    EXPECT_EQ(held.verdict, Verdict::throttled);
    EXPECT_NEAR(static_cast<double>(held.retry_after_ns), 30e6, 10);
    EXPECT_NEAR(held.factor, 0.5, 1e-9);
    EXPECT_EQ(admission.admit(3, 20 * kMs + held.retry_after_ns).verdict, Verdict::admitted);
    EXPECT_EQ(admission.admit(4, 60 * kMs).verdict, Verdict::throttled);
    admission.release(1);  // no pressure
    EXPECT_EQ(admission.admit(4, 60 * kMs).verdict, Verdict::admitted);
}

TEST(Admission, ALoweredLimitTakesNothingBack) {
    AdmissionController admission = controller(100);
    const AccountId tenant = admission.add_account("tenant", {.memory = 50});
    admission.enqueue(1, request(QosTaskMeta::guaranteed(50), tenant), 0, 0);
    admission.admit(1, 0);
    admission.set_limits(tenant, {.memory = 20, .bandwidth = 0.1, .compute = 0});
    admission.enqueue(2, request(QosTaskMeta::guaranteed(10), tenant), 0, 0);
    EXPECT_EQ(admission.admit(2, 0).reason, Reason::memory);
    EXPECT_EQ(admission.admit(2, 0).available, 0);
    admission.release(1);
    EXPECT_EQ(admission.admit(2, 0).verdict, Verdict::admitted);
    EXPECT_EQ(admission.audit(), "");
}

// Against a model that adds up what is held: 600,000 random steps of 60 walks, all requests and limits at
// random.
TEST(Admission, RandomStepsReserveWhatTheModelSays) {
    constexpr int kWalks = 60, kSteps = 10'000;
    std::size_t admitted = 0, refused = 0, steps = 0;
    for (int walk = 0; walk < kWalks; ++walk) {
        Random random(static_cast<std::uint64_t>(walk));
        AdmissionController admission = controller(1000);
        std::vector<AccountId> accounts{kDeviceAccount};
        for (int i = 0; i < 4; ++i) {
            accounts.push_back(admission.add_account(str(i),
                                                     {.memory = 200 + random.below(900),
                                                      .compute = 0.25 + 0.75 * random.unit(),
                                                      .max_running = 3 + random.below(8)},
                                                     accounts[random.below(accounts.size())]));
        }
        struct Known {
            TaskRequest request;
            bool held;
        };
        std::map<TaskId, Known> known;
        std::size_t memory = 0;
        TaskId next = 1;
        for (int step = 0; step < kSteps; ++step, ++steps) {
            const auto pick =
                known.empty()
                    ? known.end()
                    : std::next(known.begin(), static_cast<std::ptrdiff_t>(random.below(known.size())));
            if (pick == known.end() || (known.size() < 24 && random.below(3) == 0)) {
                const std::size_t bytes = random.below(400);
                const QosTaskMeta metas[] = {QosTaskMeta::guaranteed(bytes, 0.3 * random.unit()),
                                             QosTaskMeta::burstable(bytes, bytes * 4, random.unit()),
                                             QosTaskMeta::best_effort(bytes)};
                const TaskRequest made = request(
                    metas[random.below(3)], accounts[random.below(accounts.size())], 0.3 * random.unit());
                if (admission.enqueue(next, made, 0, step).verdict == Verdict::queued)
                    known[next] = {made, false};
                ++next;
            } else if (pick->second.held) {
                admission.release(pick->first);
                memory -= pick->second.request.qos.memory_request;
                known.erase(pick);
            } else if (random.below(8) == 0) {
                admission.withdraw(pick->first);
                known.erase(pick);
            } else {
                const Decision said = admission.evaluate(pick->first, step * kMs);
                const Decision done = admission.admit(pick->first, step * kMs);
                ASSERT_EQ(said.verdict, done.verdict);
                pick->second.held = done.verdict == Verdict::admitted;
                if (pick->second.held) memory += pick->second.request.qos.memory_request;
                (pick->second.held ? admitted : refused) += 1;
            }
            ASSERT_EQ(admission.account(kDeviceAccount).supply.memory_reserved, memory);
            if (step % 16 != 0) continue;
            ASSERT_EQ(admission.audit(), "") << "walk " << walk << ", step " << step;
        }
    }
    EXPECT_EQ(steps, 600'000u);
    EXPECT_GT(admitted, 100'000u);
    EXPECT_GT(refused, 50'000u);
}
