// Transfer: one copy between host and device, or on the device, that the engine carries out in the
// background. A future: it can be waited for, cancelled and followed.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/device.hpp"
#include "runtime/stream.hpp"

namespace gpk {

class TransferEngine;
class TransferLane;

enum class TransferKind : std::uint8_t { to_device, to_host, on_device };
inline constexpr std::size_t kTransferKinds = 3;

enum class TransferState : std::uint8_t { queued, in_progress, completed, failed, cancelled };
std::string_view to_string(TransferState state) noexcept;  // "queued" and so on

struct TransferRequest {
    TransferKind kind = TransferKind::to_device;
    std::size_t bytes = 0;
    DevicePtr device = 0;          // the source of to_host, the target of the others
    DevicePtr device_source = 0;   // of on_device
    const void* source = nullptr;  // of to_device: host memory, or instead
    // what writes bytes [offset, offset + out.size()) of the source. Several threads call it at once; each
    // offset is a multiple of `grain`.
    std::function<void(std::size_t offset, std::span<std::byte> out)> fill = nullptr;
    std::size_t grain = 1;
    void* target = nullptr;  // of to_host
    // As a stream's: 0 is normal, smaller is more urgent. Below 0 it passes what is under way.
    int priority = 0;
    // What must live until the transfer is over: storages, a Python buffer. Let go on the engine's own
    // thread.
    std::vector<std::shared_ptr<const void>> keep = {};
    // Called on the engine's own thread, now and then, with the bytes done and all bytes.
    std::function<void(std::size_t, std::size_t)> progress = nullptr;
};

// What transfers of one engine share. Outlives it where somebody holds a transfer.
struct TransferSync {
    std::mutex mutex;
    std::condition_variable changed;  // a transfer is over, or all of it is queued on its stream
};

class Transfer : public std::enable_shared_from_this<Transfer> {
   public:
    using Timeout = std::optional<std::chrono::nanoseconds>;  // nothing: for ever

    Transfer(TransferRequest request, std::shared_ptr<TransferSync> sync, std::shared_ptr<Stream> stream);
    Transfer(const Transfer&) = delete;
    Transfer& operator=(const Transfer&) = delete;

    TransferState state() const noexcept { return state_.load(std::memory_order_acquire); }
    bool over() const noexcept { return state() >= TransferState::completed; }
    std::size_t bytes() const noexcept { return request_.bytes; }
    std::size_t bytes_done() const noexcept { return done_.load(std::memory_order_acquire); }
    TransferKind kind() const noexcept { return request_.kind; }
    int priority() const noexcept { return request_.priority; }
    const std::shared_ptr<Stream>& stream() const noexcept {
        return stream_;
    }  // that copies it; not once it is over

    // Blocks until it is over; false where the time is up first.
    bool wait(Timeout timeout = {});
    // Waits for its end; throws what it failed with, and Error (value) where it was cancelled.
    void get();
    std::exception_ptr failure() const;  // null unless it failed

    // A queued one ends at once, one in progress after the chunks under way. False where it is over or where
    // nothing is left to be stopped.
    bool cancel();
    // Called once it is over, on the engine's own thread; on this one where it is over already. Exceptions
    // are logged.
    void on_done(std::function<void()> call);

    // Order. Before it is submitted: the copy waits, on the device, for what `earlier` holds now, or for an
    // earlier transfer.
    void follow(Stream& earlier);
    void follow(std::shared_ptr<Transfer> earlier);
    // Whether another stream can be ordered behind it: all of it is queued, or it is over.
    bool queued() const noexcept { return queued_.load(std::memory_order_acquire) || over(); }
    void wait_queued();  // blocks
    // Later work on `next` waits, on the device, for the transfer. Blocks as wait_queued() does.
    void order_before(Stream& next);

   private:
    friend class TransferEngine;
    friend class TransferLane;

    void check_process(const char* call) const;
    void help();
    bool waits_for_nothing() const;  // what it follows is over
    bool blocked() const noexcept;   // until what it follows is queued

    TransferRequest request_;
    const std::shared_ptr<TransferSync> sync_;
    std::shared_ptr<Stream> stream_;
    const unsigned process_;  // the forks that came before it
    std::atomic<TransferState> state_{TransferState::queued};
    std::atomic<bool> queued_{false};
    std::atomic<std::size_t> done_{0};

    // Under the shared mutex, as all that follows.
    TransferLane* lane_ = nullptr;  // until it is over
    std::uint64_t sequence_ = 0;
    std::int64_t queued_ns_ = 0, over_ns_ = 0;  // on the steady clock
    bool staged_ = false;
    std::size_t claimed_ = 0;    // bytes handed to a stager or to the stream
    std::size_t submitted_ = 0;  // bytes queued on the stream
    std::size_t chunks_ = 0;     // claimed and not done
    bool ordered_ = false;       // its stream waits for what it follows
    bool stopping_ = false;      // failed or cancelled; over once no chunk is under way
    bool holds_ = false;         // others' copies in its direction until it is over
    bool bulk_ = false;          // counted as such until then
    bool progress_posted_ = false;
    std::exception_ptr failure_;
    std::shared_ptr<Event> end_;  // behind its last chunk
    std::vector<std::shared_ptr<Event>> after_;
    std::vector<std::shared_ptr<Transfer>> earlier_;
    std::vector<std::function<void()>> calls_;
};

// Threads that hold a lock of a higher layer (Python's) give it away around a blocking wait through this.
// Null, the default, waits plainly.
void set_around_wait(void (*around)(const std::function<void()>& wait));

// How often this process, or one above it, has been forked from another since the engine was first used.
unsigned process_generation() noexcept;

}  // namespace gpk
