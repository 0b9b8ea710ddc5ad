#include "array/exchange.hpp"

#include <chrono>
#include <utility>

#include "base/error.hpp"
#include "base/log.hpp"
#include "memory/transfer.hpp"

namespace gpk {

namespace {

void run_release(const std::function<void()>& release) noexcept {
    try {
        release();
    } catch (const std::exception& failure) {
        log(LogLevel::warning, str("the end of borrowed memory: ", failure.what()));
    }
}

// Where waiting fails, the device is broken and nothing runs there any more.
template <class Wait>
void quietly(Wait&& wait) noexcept {
    try {
        wait();
    } catch (const std::exception& failure) {
        log(LogLevel::warning, str("waiting for the users of borrowed memory: ", failure.what()));
    }
}

}  // namespace

Exchange::Exchange(Device& device) : device_(device), process_(process_generation()) {}

Exchange::~Exchange() {
    {
        std::lock_guard lock(mutex_);
        stop_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
}

std::shared_ptr<Stream> Exchange::stream() {
    std::lock_guard lock(stream_mutex_);
    if (!stream_) stream_ = Stream::create_for(nullptr, device_);
    return stream_;
}

bool Exchange::done(Stream& stream) noexcept {
    try {
        return stream.capture() == nullptr && stream.query();
    } catch (const std::exception&) {
        return device_.lost();
    }
}

void Exchange::release_after(const std::vector<std::shared_ptr<Stream>>& users,
                             std::function<void()> release) noexcept {
    const bool forked = process_ != process_generation();
    if (forked && device_.is_cuda()) return;
    Pending pending;
    try {
        for (const auto& user : users) {
            if (done(*user)) continue;
            if (forked) return;  // the thread that used it is the parent's, and so is the memory
            if (user->capture() == nullptr) {
                auto event = std::make_unique<Event>(device_);
                event->record(*user);
                pending.events.push_back(std::move(event));
            } else {
                pending.streams.push_back(user);
            }
        }
        if (pending.events.empty() && pending.streams.empty()) return run_release(release);
        pending.release = release;
        std::lock_guard lock(mutex_);
        if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
        pending_.push_back(std::move(pending));
        changed_.notify_one();
        return;
    } catch (const std::exception& failure) {
        log(LogLevel::warning, str("the end of borrowed memory is waited for: ", failure.what()));
    }
    for (const auto& user : users) {
        if (user->capture() != nullptr) return;  // it may end after this call only: kept for ever
        quietly([&] { user->synchronize(); });
    }
    run_release(release);
}

void Exchange::wait_for(const Pending& pending) noexcept {
    for (const auto& event : pending.events) {
        quietly([&] { event->synchronize(); });
    }
    for (const auto& stream : pending.streams) {
        // What it held before the capture ends with whatever else it holds by then.
        while (stream->capture() != nullptr) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        quietly([&] { stream->synchronize(); });
    }
}

void Exchange::run() {
    std::unique_lock lock(mutex_);
    while (true) {
        changed_.wait(lock, [&] { return stop_ || !pending_.empty(); });
        if (pending_.empty()) return;
        {
            const Pending next = std::move(pending_.front());
            pending_.pop_front();
            lock.unlock();
            wait_for(next);
            run_release(next.release);
        }
        lock.lock();
    }
}

}  // namespace gpk
