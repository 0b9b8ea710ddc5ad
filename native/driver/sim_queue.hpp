// What a simulated device has queued, what runs it, and the seeded scheduler that runs it in any order which
// streams and events allow.
#pragma once

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
struct SimStream;

// One recording of an event: a place in a stream's order. Recording the event again makes a new one.
struct SimPoint {
    bool reached = false;
    std::int64_t time_ns = 0;
    std::vector<std::weak_ptr<SimStream>> waiting = {};  // on a timeline
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
    bool under_way = false;                   // on a timeline: the first operation has begun, or waits
    std::size_t place = 0;                    // on a timeline: among the streams with work
    std::shared_ptr<SimCapture> capture;      // under way here, or null
    std::vector<int> tail;                    // the captured nodes that the next one follows
};

struct SimEvent {
    bool timing = false;
    std::shared_ptr<SimPoint> point;      // of the last record; null when never recorded
    std::shared_ptr<SimCapture> capture;  // set where the last record was captured
    std::vector<int> nodes;               // what it stands for in that capture
};

// Runs what is queued, whenever somebody waits. Not thread-safe: its owner locks.
class SimQueue {
   public:
    virtual ~SimQueue() = default;
    virtual void push(const std::shared_ptr<SimStream>& stream, SimOperation operation) = 0;
    // Runs the next operation. False where none can run.
    virtual bool step() = 0;
    // What a device has got on with while its host only looked.
    virtual void run_some() = 0;
    virtual bool idle() const noexcept = 0;
    // Lets go of what is queued, as a device that broke does; whoever waits for it goes on.
    virtual void discard() { drain(); }

    // Runs operations until `done`. Throws what a host twin threw since the last call, and DriverError
    // (CUDA_ERROR_UNKNOWN) where `done` can never come.
    void run_until(const char* call, const std::function<bool()>& done);
    // Runs all; what twins threw stays for the next wait. False at a deadlock.
    bool drain();

   protected:
    void guard(const SimWork& work);
    void forget_failure() noexcept { failure_ = nullptr; }

   private:
    std::exception_ptr failure_;  // the first one of a twin, for the next wait
};

class SimScheduler final : public SimQueue {
   public:
    explicit SimScheduler(std::uint64_t seed) : random_(seed) {}

    void push(const std::shared_ptr<SimStream>& stream, SimOperation operation) override;
    // One picked at random among those that may run.
    bool step() override;
    void run_some() override;
    bool idle() const noexcept override { return busy_.empty(); }
    void discard() override;

   private:
    static bool may_run(const SimOperation& operation);
    // True when the operation is finished and leaves the queue.
    bool run(SimOperation& operation);
    std::size_t below(std::size_t limit) { return static_cast<std::size_t>(random_() % limit); }
    std::size_t pick(const std::vector<std::size_t>& candidates);

    std::mt19937_64 random_;
    std::vector<std::shared_ptr<SimStream>> busy_;  // those with work, destroyed ones too
    std::vector<std::size_t> candidates_;
};

}  // namespace gpk
