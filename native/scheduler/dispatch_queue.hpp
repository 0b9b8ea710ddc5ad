// DispatchQueue: what a KernelDispatcher does, without its thread.
//
// How far the device is, events tell. They cost more than a launch, so short launches of a known length share
// one: about every 50 us, and often enough for the limits. Lengths are measured in the first runs of each
// name and one in 64.
#pragma once

#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "scheduler/dispatch.hpp"

namespace gpk {

// One launch. Used under its queue's lock.
class PendingLaunch {
   public:
    const std::string& name() const noexcept { return name_; }

   private:
    friend class DispatchQueue;
    // Of all launches of a name.
    struct Known {
        std::int64_t ns = 0;
        std::uint32_t launches = 0, measured = 0;
    };
    std::string name_;
    std::function<void()> work_;
    LaunchState state_ = LaunchState::queued;
    std::exception_ptr failure_;
    Known* known_ = nullptr;   // null where there are too many names
    std::uint64_t place_ = 0;  // in the order of the stream
    std::int64_t expected_ns_ = 0, launched_at_ns_ = 0, took_ns_ = -1;
    bool overdue_ = false;  // and told
};

class DispatchQueue {
   public:
    using Launch = std::shared_ptr<PendingLaunch>;

    DispatchQueue(Device& device, const DispatchConfig& config, const Clock& clock);
    ~DispatchQueue();

    struct Pass {
        bool unattended;  // there is something that somebody has to look after
        std::uint64_t issued;
    };

    // As KernelDispatcher's; *unattended as in Pass.
    Launch submit(std::string name, std::function<void()> work, bool* unattended);
    Pass poll();
    LaunchState state(const Launch& launch);
    std::int64_t took_ns(const Launch& launch) const;
    bool cancel(const Launch& launch);
    void cancel_all() noexcept;
    bool wait(const Launch& launch, std::int64_t timeout_ns);
    void synchronize();
    DispatchStats stats();
    const std::shared_ptr<Stream>& stream() const noexcept { return stream_; }
    Device& device() const noexcept { return device_; }

   private:
    using Lock = std::unique_lock<std::mutex>;
    // An event behind a launch, and one before it where it is measured.
    struct Marker {
        std::uint64_t place = 0;
        std::unique_ptr<Event> start, end;
        Launch measured;
    };

    void look_locked(std::int64_t now_ns);
    void look_at_markers_locked(std::int64_t now_ns);
    void complete_locked(std::uint64_t place, std::int64_t now_ns);
    void watch_locked(std::int64_t now_ns);
    void fail_locked(std::uint64_t up_to, const std::exception_ptr& failure);
    void finish_locked(PendingLaunch& launch, LaunchState state, std::exception_ptr failure);
    bool room_locked(const PendingLaunch& next) const;
    bool wants_measure(const PendingLaunch& next) const;
    bool wants_marker(const PendingLaunch& next) const;
    bool has_unmarked_locked() const;
    bool unattended_locked() const;
    void send(Lock& lock);
    void launch(Lock& lock, const Launch& next);
    std::unique_ptr<Event> event_locked(bool measures);
    void keep_locked(Marker marker) noexcept;

    Device& device_;
    const DispatchConfig config_;
    const Clock& clock_;
    const std::shared_ptr<Stream> stream_;
    mutable std::mutex mutex_;  // over all below; not held while `work` runs
    bool sending_ = false;
    std::thread::id sender_;  // who does
    std::deque<Launch> queued_, outstanding_;
    std::deque<Marker> markers_;                    // not yet reached, the oldest first
    std::vector<std::unique_ptr<Event>> spare_[2];  // those that do not measure, those that do
    std::uint64_t issued_ = 0;
    std::uint64_t unmarked_ = 0;  // launched since the last marker, and their expected time
    std::int64_t unmarked_ns_ = 0;
    std::int64_t outstanding_ns_ = 0;
    std::unordered_map<std::string, PendingLaunch::Known> times_;
    DispatchStats stats_;
};

}  // namespace gpk
