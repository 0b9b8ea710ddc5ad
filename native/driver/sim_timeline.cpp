#include "driver/sim_timeline.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

namespace gpk {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNanoseconds = 1e9;
constexpr double kLongest = 1e18;  // a wait of more is none: 30 years

// Parts a nanosecond, of work that needs `amount` at `rate` a second.
double speed_of(double amount, double rate) noexcept {
    return amount <= 0 || rate <= 0 ? kInfinity : rate / amount / kNanoseconds;
}

}  // namespace

SimTimeline::SimTimeline(std::shared_ptr<VirtualClock> clock, const SimRates& rates, int sm_groups)
    : clock_(std::move(clock)),
      rates_(rates),
      now_ns_(clock_->now_ns()),
      groups_(static_cast<std::size_t>(std::max(sm_groups, 1))),
      all_groups_(groups_.size()) {
    std::iota(all_groups_.begin(), all_groups_.end(), 0);
}

void SimTimeline::push(const std::shared_ptr<SimStream>& stream, SimOperation operation) {
    if (clock_->now_ns() != now_ns_) run_some();
    if (stream->queue.empty()) {
        stream->place = busy_.size();
        busy_.push_back(stream);
        open_.push_back(stream);
    }
    stream->queue.push_back(std::move(operation));
    settle();
}

void SimTimeline::pop(SimStream& stream) {
    stream.queue.pop_front();
    stream.under_way = false;
    if (!stream.queue.empty()) return;
    busy_.back()->place = stream.place;
    std::swap(busy_[stream.place], busy_.back());
    busy_.pop_back();
}

void SimTimeline::reach(SimPoint& point) {
    point.time_ns = now_ns_;
    point.reached = true;
    for (const auto& waiting : point.waiting) {
        if (auto stream = waiting.lock()) open_.push_back(std::move(stream));
    }
    point.waiting.clear();
}

void SimTimeline::begin(const std::shared_ptr<SimStream>& stream, const SimWork& work, int node,
                        bool latency) {
    Task task{.stream = stream, .work = &work, .node = node};
    if (latency) task.latency_ns = static_cast<double>(rates_.launch_ns);
    switch (work.engine) {
        case SimWork::Engine::sms: running_.push_back(std::move(task)); break;
        case SimWork::Engine::to_device: copies_[0].push_back(std::move(task)); break;
        case SimWork::Engine::to_host: copies_[1].push_back(std::move(task)); break;
    }
    speeds_stale_ = true;
}

bool SimTimeline::begin_first(const std::shared_ptr<SimStream>& stream) {
    SimOperation& operation = stream->queue.front();
    if (const auto* work = std::get_if<SimWork>(&operation)) {
        stream->under_way = true;
        begin(stream, *work, -1, true);
        return false;
    }
    if (auto* record = std::get_if<SimRecord>(&operation)) {
        reach(*record->point);
        return true;
    }
    if (auto* wait = std::get_if<SimWait>(&operation)) {
        if (wait->point->reached) return true;
        stream->under_way = true;  // until the point opens the stream again
        wait->point->waiting.push_back(stream);
        return false;
    }
    auto& launch = std::get<SimGraphRun>(operation);
    if (launch.left == 0) return true;
    stream->under_way = true;
    for (const int node : launch.ready) {
        begin(stream, launch.graph->nodes[static_cast<std::size_t>(node)].work, node, true);
    }
    launch.ready.clear();
    return false;
}

void SimTimeline::settle() {
    for (std::size_t i = 0; i < open_.size(); ++i) {
        const auto stream = open_[i];
        stream->under_way = false;
        while (!stream->queue.empty() && !stream->under_way && begin_first(stream)) pop(*stream);
    }
    open_.clear();
}

// Its effect, and what may begin after it.
void SimTimeline::finish(const Task& task) {
    guard(*task.work);
    const auto& stream = task.stream;
    if (task.node >= 0) {
        auto& launch = std::get<SimGraphRun>(stream->queue.front());
        for (const int follower : launch.graph->followers[static_cast<std::size_t>(task.node)]) {
            const auto index = static_cast<std::size_t>(follower);
            if (--launch.waits_for[index] == 0)
                begin(stream, launch.graph->nodes[index].work, follower, false);
        }
        if (--launch.left != 0) return;
    }
    pop(*stream);
    if (!stream->queue.empty()) open_.push_back(stream);
}

// As blocks are handed out: what is less urgent gets no SM while more urgent work wants it.
void SimTimeline::share_sms() {
    const auto groups_of = [this](const Task& task) -> const std::vector<int>& {
        return task.work->partition ? task.work->partition->groups : all_groups_;
    };
    groups_.assign(groups_.size(), {std::numeric_limits<int>::max(), 0});
    for (const Task& task : running_) {
        if (task.latency_ns > 0) continue;
        for (const int index : groups_of(task)) {
            Group& group = groups_[static_cast<std::size_t>(index)];
            if (task.stream->priority < group.priority) group = {task.stream->priority, 0};
            if (task.stream->priority == group.priority) ++group.kernels;
        }
    }
    for (Task& task : running_) {
        double share = 0;
        if (task.latency_ns <= 0) {
            for (const int index : groups_of(task)) {
                const Group& group = groups_[static_cast<std::size_t>(index)];
                if (task.stream->priority == group.priority) share += 1.0 / group.kernels;
            }
        }
        share /= static_cast<double>(groups_.size());
        task.speed = share > 0 ? speed_of(task.work->cost.flops, rates_.flops * share) : 0;
    }
}

// The smallest demand first: each takes at most an equal part of what is left.
void SimTimeline::share_bandwidth() {
    if (rates_.bytes <= 0) return;
    by_demand_.clear();
    for (std::size_t i = 0; i < running_.size(); ++i) {
        if (running_[i].speed > 0 && running_[i].work->cost.bytes > 0) by_demand_.push_back(i);
    }
    const auto demand = [this](std::size_t i) { return running_[i].speed * running_[i].work->cost.bytes; };
    std::stable_sort(by_demand_.begin(), by_demand_.end(),
                     [&](std::size_t a, std::size_t b) { return demand(a) < demand(b); });
    double left = rates_.bytes / kNanoseconds;
    std::size_t sharers = by_demand_.size();
    for (const std::size_t i : by_demand_) {
        const double part = std::min(demand(i), left / static_cast<double>(sharers--));
        running_[i].speed = part / running_[i].work->cost.bytes;
        left -= part;
    }
}

void SimTimeline::set_speeds() {
    if (!std::exchange(speeds_stale_, false)) return;
    share_sms();
    share_bandwidth();
    const double rates[] = {rates_.bytes_to_device, rates_.bytes_to_host};
    for (std::size_t engine = 0; engine < copies_.size(); ++engine) {
        if (copies_[engine].empty()) continue;
        Task& first = copies_[engine].front();
        first.speed = speed_of(first.work->cost.bytes, rates[engine]);
    }
}

double SimTimeline::wait_ns(const Task& task) const noexcept {
    if (task.latency_ns > 0) return task.latency_ns;
    if (task.left <= 0 || task.speed == kInfinity) return 0;
    return task.speed > 0 ? task.left / task.speed : kInfinity;
}

double SimTimeline::next_wait_ns() {
    set_speeds();
    double wait = kInfinity;
    for (const Task& task : running_) wait = std::min(wait, wait_ns(task));
    for (const auto& engine : copies_) {
        if (!engine.empty()) wait = std::min(wait, wait_ns(engine.front()));
    }
    return wait;
}

// No further than to the next end. Times are whole nanoseconds; what is left below half of one is done.
void SimTimeline::advance(std::int64_t by_ns) {
    now_ns_ += by_ns;
    const auto by = static_cast<double>(by_ns);
    const auto move_on = [&](Task& task) {
        if (task.latency_ns > 0) {
            task.latency_ns -= by;
            if (task.latency_ns < 0.5) {
                task.latency_ns = 0;
                speeds_stale_ = true;
            }
            return false;
        }
        if (task.speed == kInfinity) return true;
        task.left -= task.speed * by;
        return task.speed > 0 && task.left < 0.5 * task.speed;
    };
    for (std::size_t i = 0; i < running_.size();) {
        if (!move_on(running_[i])) {
            ++i;
            continue;
        }
        ended_.push_back(std::move(running_[i]));
        running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(i));
    }
    for (auto& engine : copies_) {
        if (engine.empty() || !move_on(engine.front())) continue;
        ended_.push_back(std::move(engine.front()));
        engine.pop_front();
    }
    if (ended_.empty()) return;
    speeds_stale_ = true;
    for (const Task& task : ended_) finish(task);
    ended_.clear();
    settle();
}

bool SimTimeline::step() {
    if (clock_->now_ns() > now_ns_) {
        run_some();
        return true;
    }
    const auto end = next_end_ns();
    if (!end) return false;
    advance(*end - now_ns_);
    clock_->advance_to(now_ns_);
    return true;
}

void SimTimeline::run_some() {
    const std::int64_t until = clock_->now_ns();
    while (true) {
        const double wait = next_wait_ns();
        if (wait > static_cast<double>(until - now_ns_)) break;
        advance(static_cast<std::int64_t>(std::llround(wait)));
    }
    if (until > now_ns_) advance(until - now_ns_);
}

std::optional<std::int64_t> SimTimeline::next_end_ns() {
    const double wait = next_wait_ns();
    if (wait > kLongest) return std::nullopt;
    return now_ns_ + static_cast<std::int64_t>(std::llround(wait));
}

}  // namespace gpk
