// The threads that copy between pageable memory and the pinned ring.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace gpk {

// As memcpy; `streaming` writes past the caches where the processor can.
void copy_bytes(void* to, const void* from, std::size_t bytes, bool streaming) noexcept;

class Stagers {
   public:
    explicit Stagers(unsigned threads) : wanted_(threads) {}
    // Runs what was asked for first.
    ~Stagers();
    Stagers(const Stagers&) = delete;
    Stagers& operator=(const Stagers&) = delete;

    // Starts the threads, where they do not run yet. Throws std::system_error where the system has none.
    void start();
    // `job` throws nothing. Urgent ones go before the others.
    void run(bool urgent, std::function<void()> job);
    unsigned threads() const noexcept { return wanted_; }

   private:
    void work();

    const unsigned wanted_;
    std::mutex mutex_;
    std::condition_variable wake_;
    std::deque<std::function<void()>> urgent_, others_;
    bool stop_ = false;
    std::vector<std::thread> threads_;
};

}  // namespace gpk
