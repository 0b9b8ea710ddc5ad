// What the tests of transfers share: small chunks, patterns, and a hook that stops work where a test wants.
#pragma once

#include <condition_variable>
#include <cstring>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "array/array_transfer.hpp"
#include "memory/pinned.hpp"
#include "memory/transfer_engine.hpp"
#include "sim_support.hpp"

namespace transfers {

// Chunks so small that some kilobytes cross the ring several times.
inline constexpr std::size_t kChunk = 4096;
inline constexpr gpk::TransferOptions kSmall{.direct_chunk_bytes = kChunk,
                                             .in_flight_bytes = 2 * kChunk,
                                             .chunk_bytes = kChunk,
                                             .small_bytes = 1024,
                                             .device_chunk_bytes = kChunk,
                                             .device_in_flight_bytes = 2 * kChunk,
                                             .least_chunk_bytes = 4096,
                                             .ring_chunks = 4,
                                             .threads = 3};

inline std::vector<std::uint8_t> pattern(std::size_t bytes, unsigned seed = 1) {
    std::vector<std::uint8_t> out(bytes);
    std::uint32_t state = seed * 2654435761u + 1;
    for (auto& byte : out) {
        state = state * 1664525u + 1013904223u;
        byte = static_cast<std::uint8_t>(state >> 24);
    }
    return out;
}

inline gpk::Array bytes_on(gpk::Device& device, std::size_t bytes, int priority = 0) {
    return gpk::empty_for_transfer(device, {static_cast<std::int64_t>(bytes)}, gpk::DType::uint8, priority);
}

class Pinned {
   public:
    Pinned(gpk::Device& device, std::size_t bytes)
        : pool_(gpk::PinnedPool::of(device)), block_(pool_.allocate(bytes)) {}
    ~Pinned() { pool_.release(block_); }
    Pinned(const Pinned&) = delete;
    Pinned& operator=(const Pinned&) = delete;
    std::byte* data() const { return block_.data; }

   private:
    gpk::PinnedPool& pool_;
    gpk::PinnedBlock block_;
};

// Remembers each copy, in the order of the hook's calls, and holds those that `stop` names until let go.
class Watch : public gpk::LaunchHook {
   public:
    struct Copy {
        int priority;  // of its stream
        std::size_t bytes;
        bool by_kernel = false;
        std::thread::id thread = {};
    };

    explicit Watch(std::function<bool(const Copy&, std::size_t index)> stop) : stop_(std::move(stop)) {}

    void before(const gpk::WorkRecord& work) override {
        const Copy copy{work.stream->priority(), static_cast<std::size_t>(work.cost.bytes),
                        work.kind == gpk::WorkKind::kernel, std::this_thread::get_id()};
        std::unique_lock lock(mutex_);
        copies_.push_back(copy);
        if (!stop_(copy, copies_.size() - 1)) return;
        ++stopped_;
        changed_.notify_all();
        changed_.wait(lock, [this, turn = stopped_] { return let_go_ >= turn; });
    }
    void after(const gpk::WorkRecord&, bool) noexcept override {}

    void wait_stopped(int count) {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return stopped_ >= count; });
    }
    void let_go(int count) {
        const std::lock_guard lock(mutex_);
        let_go_ = count;
        changed_.notify_all();
    }
    std::vector<Copy> copies() const {
        const std::lock_guard lock(mutex_);
        return copies_;
    }

   private:
    const std::function<bool(const Copy&, std::size_t)> stop_;
    mutable std::mutex mutex_;
    std::condition_variable changed_;
    std::vector<Copy> copies_;
    int stopped_ = 0, let_go_ = 0;
};

inline std::shared_ptr<Watch> watch(gpk::Device& device,
                                    std::function<bool(const Watch::Copy&, std::size_t)> stop) {
    auto hook = std::make_shared<Watch>(std::move(stop));
    device.launcher().add_hook(hook);
    return hook;
}

}  // namespace transfers
