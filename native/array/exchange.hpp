// Exchange: what a device needs to share arrays with other libraries: a stream that carries the order of
// their work, and the end of what was borrowed from them.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "runtime/device.hpp"
#include "runtime/stream.hpp"

namespace gpk {

class Exchange : public DeviceAttachment {
   public:
    static Exchange& of(Device& device) { return device.attached<Exchange>(); }

    explicit Exchange(Device& device);
    // Waits until all that was borrowed is released.
    ~Exchange() override;
    Exchange(const Exchange&) = delete;
    Exchange& operator=(const Exchange&) = delete;

    // A stream of no tenant, which never moves and is never captured. It runs no work: others' streams are
    // waited for there, and storages follow it.
    std::shared_ptr<Stream> stream();

    // Runs `release` once what these streams hold now is done: here and now where it is, else on a thread.
    // Not at all in a forked child of a process that used CUDA, whose parent has the memory.
    void release_after(const std::vector<std::shared_ptr<Stream>>& users,
                       std::function<void()> release) noexcept;

   private:
    struct Pending {
        std::vector<std::unique_ptr<Event>> events;
        std::vector<std::shared_ptr<Stream>> streams;  // captured now, so that no event tells of their work
        std::function<void()> release;
    };

    bool done(Stream& stream) noexcept;
    void wait_for(const Pending& pending) noexcept;
    void run();

    Device& device_;
    const unsigned process_;
    std::mutex stream_mutex_;
    std::shared_ptr<Stream> stream_;
    std::mutex mutex_;  // over all below
    std::condition_variable changed_;
    std::deque<Pending> pending_;
    bool stop_ = false;
    std::thread thread_;
};

}  // namespace gpk
