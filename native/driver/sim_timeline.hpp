// A simulated device in virtual time, for tests of what schedules, paces and transfers.
//
// A piece of work on the SMs takes a launch's latency, then as long as its flops and its bytes need. The SMs
// of a group are shared by the kernels that may run there, the most urgent streams first; memory bandwidth is
// shared by all, and who needs less than an equal part leaves the rest to others. Each direction has a copy
// engine, which serves one copy after the other in the order in which they became ready, beside the kernels.
// Host twins and copies take effect at the end of their time. Same calls, same times.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "base/clock.hpp"
#include "driver/sim_queue.hpp"

namespace gpk {

// Of the whole device, a second; 0: takes no time.
struct SimRates {
    double flops = 0;
    double bytes = 0;
    double bytes_to_device = 0;
    double bytes_to_host = 0;
    std::int64_t launch_ns = 0;  // before any piece of work, copies too; in a graph, once
};

class SimTimeline final : public SimQueue {
   public:
    // Moves `clock` on when somebody waits, and follows it when somebody else moved it.
    SimTimeline(std::shared_ptr<VirtualClock> clock, const SimRates& rates, int sm_groups);

    void push(const std::shared_ptr<SimStream>& stream, SimOperation operation) override;
    // To the end of what ends next.
    bool step() override;
    // To the clock's time.
    void run_some() override;
    bool idle() const noexcept override { return busy_.empty(); }

    std::int64_t now_ns() const noexcept { return now_ns_; }
    // When something ends next if nothing is added; none where nothing runs.
    std::optional<std::int64_t> next_end_ns();

   private:
    struct Task {
        std::shared_ptr<SimStream> stream;
        const SimWork* work = nullptr;
        int node = -1;          // of the graph that runs on the stream
        double latency_ns = 0;  // what is left of it
        double left = 1;        // the part of the work
        double speed = 0;       // parts a nanosecond; infinity where it takes no time
    };

    void begin(const std::shared_ptr<SimStream>& stream, const SimWork& work, int node, bool latency);
    void settle();                                               // begins what may begin now
    bool begin_first(const std::shared_ptr<SimStream>& stream);  // true: the first operation is done already
    void finish(const Task& task);
    void reach(SimPoint& point);
    void pop(SimStream& stream);  // the first operation, which is done
    void set_speeds();
    void share_sms();
    void share_bandwidth();
    double wait_ns(const Task& task) const noexcept;  // until it ends, or its latency does
    double next_wait_ns();
    void advance(std::int64_t by_ns);

    std::shared_ptr<VirtualClock> clock_;
    const SimRates rates_;
    std::int64_t now_ns_;
    std::vector<Task> running_;                     // on the SMs
    std::array<std::deque<Task>, 2> copies_;        // an engine's first one runs
    std::vector<std::shared_ptr<SimStream>> open_;  // whose first operation may begin
    std::vector<std::shared_ptr<SimStream>> busy_;  // those with work, destroyed ones too
    bool speeds_stale_ = true;

    struct Group {
        int priority;
        int kernels;
    };
    std::vector<Group> groups_;
    std::vector<int> all_groups_;
    std::vector<std::size_t> by_demand_;
    std::vector<Task> ended_;
};

}  // namespace gpk
