// Stream and Event: the order of work on a device.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <utility>

#include "driver/driver.hpp"

namespace gpk {

class Device;
class Event;
class Graph;
class Meter;
class SmPartition;
class Tenant;

class Stream : public std::enable_shared_from_this<Stream> {
   public:
    // `priority` 0 is normal; smaller is more urgent. Outside the device's range: Error (value). It belongs
    // to the tenant of the calling thread's current stream.
    static std::shared_ptr<Stream> create(Device& device, int priority = 0);
    // For a tenant, or, with null, for none. Error (unsupported) where it has all the streams it may.
    static std::shared_ptr<Stream> create_for(std::shared_ptr<Tenant> tenant, Device& device,
                                              int priority = 0);
    ~Stream();
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;

    Device& device() const noexcept { return device_; }
    // Of a stream with a tenant it may change when the tenant's SMs do; it stays while one holds stay(), and
    // between a governor's before() and after().
    StreamHandle handle() const noexcept { return handle_.load(std::memory_order_acquire); }
    std::uint64_t id() const noexcept { return id_; }  // unique in the process, never reused
    int priority() const noexcept { return priority_; }
    const std::shared_ptr<Tenant>& tenant() const noexcept { return tenant_; }  // null for none
    // The SMs that it runs on: null for all, and their number, for kernels that size themselves by it.
    std::shared_ptr<SmPartition> sms() const;
    int multiprocessors() const noexcept { return multiprocessors_.load(std::memory_order_relaxed); }
    Meter& meter() const noexcept { return meter_; }  // of the device and the tenant

    void synchronize();
    bool query();  // true when all its work is done
    void wait(const Event& event);
    void wait(Stream& other);  // for what `other` holds now

    // The capture under way on this stream, or null. See runtime/graph.hpp.
    Graph* capture() const noexcept { return capture_.load(std::memory_order_acquire); }

    // Keeps a movable stream where it is.
    std::shared_lock<std::shared_mutex> stay() const {
        return tenant_ ? std::shared_lock(home_mutex_) : std::shared_lock<std::shared_mutex>();
    }
    // For whoever moves a tenant's streams. Nothing is queued on the stream nor being queued, and the mover
    // holds settle(). The old handle goes; `owned` says whether the new one goes with the stream.
    std::unique_lock<std::shared_mutex> settle() const { return std::unique_lock(home_mutex_); }
    void move_to(StreamHandle handle, std::shared_ptr<SmPartition> sms, bool owned) noexcept;

   private:
    friend class Graph;
    Stream(Device& device, std::shared_ptr<Tenant> tenant, std::shared_ptr<SmPartition> sms, int priority);

    Device& device_;
    std::shared_ptr<Tenant> tenant_;
    std::shared_ptr<SmPartition> sms_;
    Meter& meter_;
    std::atomic<StreamHandle> handle_;
    bool owns_handle_ = true;
    std::atomic<int> multiprocessors_;
    std::uint64_t id_;
    int priority_;
    mutable std::shared_mutex home_mutex_;  // over sms_ and the handle
    std::atomic<Graph*> capture_{nullptr};
    std::mutex marker_mutex_;
    std::unique_ptr<Event> marker_;  // records "now" for streams that wait for this one
};

// The calling thread's stream on a device: the device's default one unless a StreamScope is open.
const std::shared_ptr<Stream>& current_stream(Device& device);
// Returns the previous one, to be set again by whoever closes the scope.
std::shared_ptr<Stream> set_current_stream(std::shared_ptr<Stream> stream);

class StreamScope {
   public:
    explicit StreamScope(std::shared_ptr<Stream> stream) : previous_(set_current_stream(std::move(stream))) {}
    ~StreamScope() { set_current_stream(std::move(previous_)); }
    StreamScope(const StreamScope&) = delete;
    StreamScope& operator=(const StreamScope&) = delete;

   private:
    std::shared_ptr<Stream> previous_;
};

class Event {
   public:
    explicit Event(Device& device, bool timing = false);
    ~Event();
    Event(const Event&) = delete;
    Event& operator=(const Event&) = delete;

    Device& device() const noexcept { return device_; }
    EventHandle handle() const noexcept { return handle_; }
    void record(Stream& stream);
    bool query() const;  // true when reached, or never recorded
    void synchronize() const;
    // Milliseconds from `start` to this one; both recorded with timing, both reached.
    float elapsed_ms(const Event& start) const;

   private:
    Device& device_;
    EventHandle handle_;
    bool timing_;
};

}  // namespace gpk
