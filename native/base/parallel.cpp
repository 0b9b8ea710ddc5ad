#include "base/parallel.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "base/error.hpp"
#include "base/platform.hpp"

namespace gpk {

namespace {

thread_local bool inside_loop = false;

// One loop at a time; a second caller runs its loop alone rather than wait for the workers.
class Workers {
   public:
    explicit Workers(unsigned count) {
        for (unsigned i = 0; i < count; ++i) std::thread([this] { work(); }).detach();
    }

    bool try_run(std::int64_t count, std::int64_t chunk,
                 const std::function<void(std::int64_t, std::int64_t)>& body) {
        std::unique_lock turn(turn_, std::try_to_lock);
        if (!turn.owns_lock()) return false;
        {
            std::lock_guard lock(mutex_);
            body_ = &body;
            count_ = count;
            chunk_ = chunk;
            next_.store(0, std::memory_order_relaxed);
            failure_ = nullptr;
            ++generation_;
        }
        wake_.notify_all();
        drain(body);
        std::unique_lock lock(mutex_);
        body_ = nullptr;  // a worker that wakes late finds nothing to do
        done_.wait(lock, [this] { return active_ == 0; });
        if (failure_) std::rethrow_exception(failure_);
        return true;
    }

   private:
    void work() {
        inside_loop = true;
        std::uint64_t seen = 0;
        std::unique_lock lock(mutex_);
        for (;;) {
            wake_.wait(lock, [&] { return generation_ != seen && body_ != nullptr; });
            seen = generation_;
            ++active_;
            const auto& body = *body_;
            lock.unlock();
            drain(body);
            lock.lock();
            if (--active_ == 0) done_.notify_all();
        }
    }

    void drain(const std::function<void(std::int64_t, std::int64_t)>& body) {
        const bool outer = std::exchange(inside_loop, true);
        for (;;) {
            const std::int64_t begin = next_.fetch_add(chunk_, std::memory_order_relaxed);
            if (begin >= count_) break;
            try {
                body(begin, std::min(begin + chunk_, count_));
            } catch (...) {
                std::lock_guard lock(mutex_);
                if (!failure_) failure_ = std::current_exception();
            }
        }
        inside_loop = outer;
    }

    std::mutex turn_, mutex_;
    std::condition_variable wake_, done_;
    const std::function<void(std::int64_t, std::int64_t)>* body_ = nullptr;
    std::int64_t count_ = 0, chunk_ = 1;
    std::atomic<std::int64_t> next_{0};
    std::uint64_t generation_ = 0;
    int active_ = 0;
    std::exception_ptr failure_;
};

Workers& workers() {
    static std::mutex mutex;
    static Workers* current = nullptr;
    static pid_t owner = 0;
    std::lock_guard lock(mutex);
    if (current == nullptr || owner != getpid()) {
        current = new Workers(parallel_threads() - 1);  // never destroyed: its threads run to the end
        owner = getpid();
    }
    return *current;
}

}  // namespace

unsigned parallel_threads() {
    static const unsigned threads = [] {
        const auto wanted = platform::environment("PYGPUKIT_NUM_THREADS");
        if (!wanted) return platform::hardware_threads();
        char* end = nullptr;
        const long value = std::strtol(wanted->c_str(), &end, 10);
        if (*end != '\0' || value < 1 || value > 1024) {
            throw error(ErrorKind::value, {.call = "PYGPUKIT_NUM_THREADS",
                                           .expected = "a number from 1 to 1024",
                                           .got = str("'", *wanted, "'")});
        }
        return static_cast<unsigned>(value);
    }();
    return threads;
}

void run_loops_alone() noexcept { inside_loop = true; }

void parallel_for(std::int64_t count, std::int64_t grain,
                  const std::function<void(std::int64_t, std::int64_t)>& body) {
    if (count <= 0) return;
    grain = std::max<std::int64_t>(grain, 1);
    const std::int64_t threads = parallel_threads();
    if (inside_loop || threads == 1 || count <= grain) return body(0, count);
    // Four pieces a thread, so that a slow core does not hold the loop up.
    const std::int64_t chunk = std::max(grain, (count + threads * 4 - 1) / (threads * 4));
    if (!workers().try_run(count, chunk, body)) body(0, count);
}

}  // namespace gpk
