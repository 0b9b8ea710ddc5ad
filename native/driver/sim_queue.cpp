#include "driver/sim_queue.hpp"

#include <algorithm>
#include <utility>

#include "base/clock.hpp"
#include "driver/sim_error.hpp"

namespace gpk {

void SimGraph::finish() {
    followers.assign(nodes.size(), {});
    for (std::size_t i = 0; i < nodes.size(); ++i) {
        for (const int before : nodes[i].after) {
            followers[static_cast<std::size_t>(before)].push_back(static_cast<int>(i));
        }
    }
}

SimGraphRun::SimGraphRun(std::shared_ptr<SimGraph> launched)
    : graph(std::move(launched)), left(graph->nodes.size()) {
    waits_for.reserve(left);
    for (std::size_t i = 0; i < left; ++i) {
        waits_for.push_back(static_cast<int>(graph->nodes[i].after.size()));
        if (waits_for.back() == 0) ready.push_back(static_cast<int>(i));
    }
}

void SimScheduler::push(const std::shared_ptr<SimStream>& stream, SimOperation operation) {
    if (stream->queue.empty()) {
        busy_.push_back(stream);
        stream->eagerness = static_cast<std::uint32_t>(random_());
    }
    stream->queue.push_back(std::move(operation));
}

bool SimScheduler::may_run(const SimOperation& operation) {
    const auto* wait = std::get_if<SimWait>(&operation);
    return wait == nullptr || wait->point->reached;
}

void SimQueue::guard(const SimWork& work) {
    try {
        work.run();
    } catch (...) {
        if (!failure_) failure_ = std::current_exception();
    }
}

bool SimScheduler::run(SimOperation& operation) {
    if (auto* work = std::get_if<SimWork>(&operation)) {
        guard(*work);
    } else if (auto* record = std::get_if<SimRecord>(&operation)) {
        record->point->time_ns = steady_clock().now_ns();
        record->point->reached = true;
    } else if (auto* launch = std::get_if<SimGraphRun>(&operation); launch != nullptr && launch->left > 0) {
        const std::size_t place = below(launch->ready.size());
        const auto node = static_cast<std::size_t>(launch->ready[place]);
        launch->ready.erase(launch->ready.begin() + static_cast<std::ptrdiff_t>(place));
        guard(launch->graph->nodes[node].work);
        for (const int follower : launch->graph->followers[node]) {
            if (--launch->waits_for[static_cast<std::size_t>(follower)] == 0)
                launch->ready.push_back(follower);
        }
        return --launch->left == 0;
    }
    return true;
}

// Evenly random picks seldom let one stream run far ahead of another, which is what shows a missing
// wait. So streams have an eagerness that mostly decides and is drawn anew now and then (after
// Burckhardt et al., "A randomized scheduler with probabilistic guarantees of finding bugs", 2010).
std::size_t SimScheduler::pick(const std::vector<std::size_t>& candidates) {
    if (below(16) == 0) {
        for (const auto& stream : busy_) stream->eagerness = static_cast<std::uint32_t>(random_());
    }
    if (below(4) == 0) return candidates[below(candidates.size())];
    return *std::max_element(candidates.begin(), candidates.end(), [this](std::size_t a, std::size_t b) {
        return busy_[a]->eagerness < busy_[b]->eagerness;
    });
}

bool SimScheduler::step() {
    candidates_.clear();
    for (std::size_t i = 0; i < busy_.size(); ++i) {
        if (may_run(busy_[i]->queue.front())) candidates_.push_back(i);
    }
    if (candidates_.empty()) return false;
    const std::size_t chosen = pick(candidates_);
    auto& queue = busy_[chosen]->queue;
    if (run(queue.front())) queue.pop_front();
    if (queue.empty()) busy_.erase(busy_.begin() + static_cast<std::ptrdiff_t>(chosen));
    return true;
}

void SimQueue::run_until(const char* call, const std::function<bool()>& done) {
    while (!done()) {
        if (step()) continue;
        throw sim_error(call, sim_code::kUnknown, "deadlock: no stream that has work can go on");
    }
    if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

bool SimQueue::drain() {
    while (step()) {
    }
    return idle();
}

void SimScheduler::discard() {
    for (const auto& stream : busy_) {
        for (const SimOperation& operation : stream->queue) {
            if (const auto* record = std::get_if<SimRecord>(&operation)) record->point->reached = true;
        }
        stream->queue.clear();
    }
    busy_.clear();
    forget_failure();
}

void SimScheduler::run_some() {
    for (std::size_t steps = below(4); steps > 0 && step(); --steps) {
    }
}

}  // namespace gpk
