#include "memory/stagers.hpp"

#include <cstdint>
#include <cstring>
#include <system_error>
#include <utility>

#include "base/parallel.hpp"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace gpk {

void copy_bytes(void* to, const void* from, std::size_t bytes, bool streaming) noexcept {
#if defined(__SSE2__)
    if (streaming && bytes >= 256) {
        auto* out = static_cast<std::byte*>(to);
        const auto* in = static_cast<const std::byte*>(from);
        const std::size_t head = (64 - (reinterpret_cast<std::uintptr_t>(out) & 63)) & 63;
        std::memcpy(out, in, head);
        out += head, in += head, bytes -= head;
        for (; bytes >= 64; bytes -= 64, out += 64, in += 64) {
            for (int i = 0; i < 64; i += 16) {
                _mm_stream_si128(reinterpret_cast<__m128i*>(out + i),
                                 _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i)));
            }
        }
        std::memcpy(out, in, bytes);
        _mm_sfence();
        return;
    }
#else
    static_cast<void>(streaming);
#endif
    std::memcpy(to, from, bytes);
}

Stagers::~Stagers() {
    {
        std::lock_guard lock(mutex_);
        stop_ = true;
    }
    wake_.notify_all();
    for (std::thread& each : threads_) each.join();
}

void Stagers::start() {
    std::lock_guard lock(mutex_);
    if (!threads_.empty()) return;
    threads_.reserve(wanted_);
    try {
        while (threads_.size() < wanted_) threads_.emplace_back([this] { work(); });
    } catch (const std::system_error&) {
        if (threads_.empty()) throw;  // fewer than wanted will do
    }
}

void Stagers::run(bool urgent, std::function<void()> job) {
    {
        std::lock_guard lock(mutex_);
        (urgent ? urgent_ : others_).push_back(std::move(job));
    }
    wake_.notify_one();
}

void Stagers::work() {
    run_loops_alone();
    std::unique_lock lock(mutex_);
    for (;;) {
        wake_.wait(lock, [this] { return stop_ || !urgent_.empty() || !others_.empty(); });
        auto& jobs = urgent_.empty() ? others_ : urgent_;
        if (jobs.empty()) return;
        std::function<void()> job = std::move(jobs.front());
        jobs.pop_front();
        lock.unlock();
        job();
        job = nullptr;  // with what it holds, before the lock
        lock.lock();
    }
}

}  // namespace gpk
