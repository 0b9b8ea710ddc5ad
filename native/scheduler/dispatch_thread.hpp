// DispatchThread: sends what a dispatcher has queued when there is room, so that nobody has to ask.
#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

namespace gpk {

class DispatchQueue;

class DispatchThread {
   public:
    DispatchThread() : pulse_(std::make_shared<Pulse>()) {}
    // The thread is over when this returns, unless it is the calling one, which then ends soon.
    ~DispatchThread() { end(*pulse_, nullptr); }
    DispatchThread(const DispatchThread&) = delete;
    DispatchThread& operator=(const DispatchThread&) = delete;

    // There is something to look after. Begins the thread where there is none; where the system has none,
    // what is queued goes when it is asked.
    void wake(const std::shared_ptr<DispatchQueue>& queue) noexcept;

    // For the end of a program; see end_dispatch_threads().
    static bool end_all(std::chrono::nanoseconds timeout) noexcept;

   private:
    // Shared with the thread, which may outlive this object where it ends it itself.
    struct Pulse {
        std::mutex mutex;
        std::condition_variable changed;
        std::weak_ptr<DispatchQueue> queue;
        std::thread::id id;
        bool running = false, idle = false, woken = false, stop = false;
    };
    struct Registry;
    static void run(const std::shared_ptr<Pulse>& pulse, std::shared_ptr<DispatchQueue> queue) noexcept;
    static bool end(Pulse& pulse, const std::chrono::nanoseconds* timeout) noexcept;

    const std::shared_ptr<Pulse> pulse_;
};

}  // namespace gpk
