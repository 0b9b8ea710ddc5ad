// What a simulated device has queued, and the seeded scheduler that runs it in any order which streams
// and events allow.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <variant>
#include <vector>

#include "driver/sim_work.hpp"

namespace gpk {

class SimCapture;

// One recording of an event: a place in a stream's order. Recording the event again makes a new one.
struct SimPoint {
    bool reached = false;
    std::chrono::steady_clock::time_point time;
};

// Recorded work and what each piece must follow, earlier ones first.
struct SimGraph {
    struct Node {
        SimWork work;
        std::vector<int> after;
    };
    std::vector<Node> nodes;
    std::vector<std::vector<int>> followers;  // the reverse of Node::after, filled by finish()
    std::shared_ptr<SimPoint> last_launch;    // launches of one graph follow each other
    std::mutex running;                       // the same, in immediate mode

    void finish();
};

// A launch of a graph under way: what each node still waits for.
struct SimGraphRun {
    std::shared_ptr<SimGraph> graph;
    std::vector<int> waits_for;
    std::vector<int> ready;
    std::size_t left = 0;

    explicit SimGraphRun(std::shared_ptr<SimGraph> graph);
};

struct SimRecord {
    std::shared_ptr<SimPoint> point;
};
struct SimWait {
    std::shared_ptr<SimPoint> point;
};
using SimOperation = std::variant<SimWork, SimRecord, SimWait, SimGraphRun>;

struct SimStream {
    int priority = 0;
    std::shared_ptr<SimPartition> partition;  // null: all SMs
    std::mutex running;                       // immediate mode: held by the operation that runs
    std::deque<SimOperation> queue;           // interleaved mode
    std::uint32_t eagerness = 0;              // the scheduler's present liking for it
    std::shared_ptr<SimCapture> capture;      // under way here, or null
    std::vector<int> tail;                    // the captured nodes that the next one follows
};

struct SimEvent {
    bool timing = false;
    std::shared_ptr<SimPoint> point;      // of the last record; null when never recorded
    std::shared_ptr<SimCapture> capture;  // set where the last record was captured
    std::vector<int> nodes;               // what it stands for in that capture
};

// Not thread-safe: its owner locks.
class SimScheduler {
   public:
    explicit SimScheduler(std::uint64_t seed) : random_(seed) {}

    void push(const std::shared_ptr<SimStream>& stream, SimOperation operation);
    // Runs one operation, picked at random among those that may run. False where there is none.
    bool step();
    // Runs operations until `done`. Throws what a host twin threw since the last call, and DriverError
    // (CUDA_ERROR_UNKNOWN) where `done` can never come.
    void run_until(const char* call, const std::function<bool()>& done);
    // Runs all; what twins threw stays for the next wait. False at a deadlock.
    bool drain();
    // A few operations, as a device gets on with its work while its host only looks.
    void run_some();
    bool idle() const noexcept { return busy_.empty(); }

   private:
    static bool may_run(const SimOperation& operation);
    // True when the operation is finished and leaves the queue.
    bool run(SimOperation& operation);
    void guard(const SimWork& work);
    std::size_t below(std::size_t limit) { return static_cast<std::size_t>(random_() % limit); }
    std::size_t pick(const std::vector<std::size_t>& candidates);

    std::mt19937_64 random_;
    std::vector<std::shared_ptr<SimStream>> busy_;  // those with work, destroyed ones too
    std::vector<std::size_t> candidates_;
    std::exception_ptr failure_;  // the first one of a twin, for the next wait
};

}  // namespace gpk
