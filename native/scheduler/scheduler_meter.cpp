// What a scheduler's tasks tell the metrics and the trace.
#include <iterator>

#include "runtime/meter.hpp"
#include "runtime/observe.hpp"
#include "scheduler/scheduler_threads.hpp"

namespace gpk {

namespace {

constexpr Count kAnswers[] = {Count::admitted, Count::queued, Count::throttled, Count::rejected};
constexpr Level kOpen[] = {Level::tasks_pending, Level::tasks_queued, Level::tasks_running};
constexpr Count kEnded[] = {Count::tasks_completed, Count::tasks_failed, Count::tasks_cancelled,
                            Count::tasks_rejected};

}  // namespace

void SchedulerThreads::count_new(const Task& task) noexcept { task.meter_->change(Level::tasks_pending, +1); }

void SchedulerThreads::count_move(const Task& task, TaskState from, TaskState to) noexcept {
    task.meter_->change(kOpen[static_cast<std::size_t>(from)], -1);
    const auto index = static_cast<std::size_t>(to);
    if (is_final(to)) {
        task.meter_->add(kEnded[index - std::size(kOpen)]);
    } else {
        task.meter_->change(kOpen[index], +1);
    }
}

// With the lock held.
void SchedulerThreads::tell_answers() {
    for (const auto& [id, decision] : core_.take_answers()) {
        const auto live = live_.find(id);
        if (live == live_.end()) continue;
        const Task& task = *live->second;
        task.meter_->add(kAnswers[static_cast<std::size_t>(decision.verdict)]);
        if (!observe::listening()) continue;
        const std::string& account = core_.admission().account(decision.account).name;
        observe::instant(observe::Topic::admission, to_string(decision.verdict),
                         {device_, task.options_.tenant.get()}, 0,
                         str(core_.label(id), ": ", describe(decision, account)));
    }
}

}  // namespace gpk
