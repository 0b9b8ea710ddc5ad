#include "runtime/trace.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <new>
#include <unordered_set>
#include <utility>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/log.hpp"
#include "base/platform.hpp"
#include "runtime/device.hpp"
#include "runtime/device_times.hpp"
#include "runtime/stream.hpp"
#include "runtime/trace_file.hpp"

namespace gpk {

namespace {

constexpr std::size_t kChunk = 128;         // events
constexpr std::size_t kMaxNames = 1 << 16;  // of a thread: the memory is bounded whatever kernels are called

std::atomic<std::uint64_t> next_recorder_id{1};

struct TextHash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const noexcept {
        return std::hash<std::string_view>{}(text);
    }
};

// Texts that are kept once each and do not move.
class Texts {
   public:
    const std::string* keep(std::string_view text) {
        Recent& recent = recent_[(reinterpret_cast<std::uintptr_t>(text.data()) >> 3) % recent_.size()];
        // Another text may since have come to the same address.
        if (recent.data == text.data() && recent.kept != nullptr && *recent.kept == text) return recent.kept;
        auto found = all_.find(text);
        if (found == all_.end()) {
            if (all_.size() >= kMaxNames) text = "(too many names)";
            found = all_.emplace(text).first;
        }
        recent = {text.data(), &*found};
        return &*found;
    }
    void clear() {
        all_.clear();
        recent_ = {};
    }

   private:
    struct Recent {
        const char* data = nullptr;
        const std::string* kept = nullptr;
    };
    std::unordered_set<std::string, TextHash, std::equal_to<>> all_;
    std::array<Recent, 64> recent_ = {};
};

using Chunk = std::array<TraceEvent, kChunk>;

// What one thread recorded. Its lock is free but while somebody reads.
struct Buffer {
    std::mutex mutex;
    std::atomic<bool> closed{false};
    std::uint32_t thread = 0;
    std::string thread_name;
    std::vector<std::unique_ptr<Chunk>> chunks;
    std::size_t in_last = kChunk;
    Texts texts;
    const Device* device = nullptr;  // of the last event
    int device_slot = -1;
    const std::string* device_name = nullptr;
    std::uint64_t tenant_id = 0;
    const std::string* tenant_name = nullptr;
    // Of the piece of work that the thread is queueing; its own, without the lock.
    DeviceTimes::Pair started;
    std::shared_ptr<DeviceTimes> times;
    std::uint64_t timed = 0;
};

// The buffers of this thread, by recorder.
struct Mine {
    std::uint64_t recorder_id;
    std::shared_ptr<Buffer> buffer;
};
thread_local std::vector<Mine> mine;

}  // namespace

class Trace::Recorder : public observe::Listener {
   public:
    explicit Recorder(const TraceOptions& options)
        : only_(options.only),
          device_times_(options.device_times),
          id_(next_recorder_id.fetch_add(1)),
          chunks_left_(static_cast<std::int64_t>((options.max_events - 1) / kChunk + 1)) {}

    void queueing(const observe::Happening& what) noexcept override {
        const Stream* stream = what.who.stream;
        if (!device_times_ || stream == nullptr || stream->capture() != nullptr) return;
        if (only_ != nullptr && what.who.device != only_) return;
        try {
            const std::shared_ptr<Buffer> buffer = buffer_here();
            if (!buffer) return;
            buffer->times = times_of(stream->device());
            if (buffer->times != nullptr) buffer->started = buffer->times->start(*stream);
        } catch (const std::bad_alloc&) {
            // Then it is not timed.
        }
    }
    void queued(const observe::Happening& what) noexcept override {
        if (!device_times_) return;
        for (Mine& each : mine) {
            if (each.recorder_id != id_ || each.buffer->times == nullptr) continue;
            each.buffer->timed = each.buffer->times->end(std::move(each.buffer->started), *what.who.stream);
        }
    }

    void happened(const observe::Happening& what) noexcept override {
        if (only_ != nullptr && what.who.device != only_) return;
        try {
            const std::shared_ptr<Buffer>& buffer = buffer_here();
            if (!buffer) return;
            std::shared_ptr<DeviceTimes> times;
            std::uint64_t timed = 0;
            if (what.work != nullptr && device_times_) {
                buffer->started = {};  // of work that the driver refused
                times = std::exchange(buffer->times, nullptr);
                timed = std::exchange(buffer->timed, 0);
            }
            if (buffer->closed.load(std::memory_order_relaxed)) return;  // and do not wait for a reader
            std::lock_guard lock(buffer->mutex);
            if (buffer->closed.load(std::memory_order_relaxed)) return;
            if (buffer->in_last == kChunk) {
                if (chunks_left_.fetch_sub(1, std::memory_order_relaxed) <= 0) {
                    chunks_left_.fetch_add(1, std::memory_order_relaxed);
                    dropped_.fetch_add(1, std::memory_order_relaxed);
                    return;
                }
                buffer->chunks.push_back(std::make_unique<Chunk>());
                buffer->in_last = 0;
            }
            TraceEvent& event = (*buffer->chunks.back())[buffer->in_last];
            fill(event, *buffer, what);
            event.times = times.get();
            event.timed = timed;
            ++buffer->in_last;
        } catch (const std::bad_alloc&) {
            dropped_.fetch_add(1, std::memory_order_relaxed);
        }
    }

    void close() noexcept {
        closed_ = true;
        for_each_buffer([](Buffer& buffer) { buffer.closed = true; });
        std::vector<std::shared_ptr<DeviceTimes>> timed;
        {
            std::lock_guard lock(mutex_);
            for (const auto& [device, times] : times_) {
                if (times) timed.push_back(times);
            }
        }
        for (const auto& each : timed) each->finish();
    }
    // Threads keep their buffer until they next look for one: what is in it goes now.
    void release() noexcept {
        for_each_buffer([](Buffer& buffer) {
            buffer.closed = true;
            buffer.chunks.clear();
            buffer.chunks.shrink_to_fit();
            buffer.in_last = kChunk;
            buffer.texts.clear();
        });
        decltype(times_) times;  // events go now, too: threads keep the recorder itself for as long
        std::lock_guard lock(mutex_);
        times.swap(times_);
    }

    // Calls with pointers to all events and the threads' names, while no thread writes.
    template <class Call>
    void read(Call&& call) const {
        std::lock_guard lock(mutex_);
        std::vector<std::unique_lock<std::mutex>> locks;
        std::vector<const TraceEvent*> events;
        std::vector<std::string> threads;
        for (const auto& buffer : buffers_) {
            locks.emplace_back(buffer->mutex);
            threads.push_back(buffer->thread_name);
            for (const auto& chunk : buffer->chunks) {
                const std::size_t count = chunk == buffer->chunks.back() ? buffer->in_last : kChunk;
                for (std::size_t i = 0; i < count; ++i) {
                    TraceEvent& event = (*chunk)[i];
                    if (event.timed != 0) {
                        const DeviceTimes::Times ran = (*event.times)[event.timed];
                        event.device_start_ns = ran.start_ns;
                        event.device_end_ns = ran.end_ns;
                    }
                    events.push_back(&event);
                }
            }
        }
        call(events, threads);
    }

    std::uint64_t dropped() const noexcept { return dropped_.load(std::memory_order_relaxed); }

   private:
    template <class Call>
    void for_each_buffer(Call&& call) {
        std::lock_guard lock(mutex_);
        for (const auto& buffer : buffers_) {
            std::lock_guard buffer_lock(buffer->mutex);
            call(*buffer);
        }
    }

    const std::shared_ptr<Buffer>& buffer_here() {
        static const std::shared_ptr<Buffer> none;
        for (const Mine& each : mine) {
            if (each.recorder_id == id_) return each.buffer;
        }
        std::erase_if(mine, [](const Mine& each) { return each.buffer->closed.load(); });
        std::lock_guard lock(mutex_);
        if (closed_.load()) return none;
        auto made = std::make_shared<Buffer>();
        made->thread = static_cast<std::uint32_t>(buffers_.size());
        made->thread_name = platform::thread_name();
        buffers_.push_back(made);
        return mine.emplace_back(Mine{id_, std::move(made)}).buffer;
    }

    // Null where the device's clock cannot be read.
    std::shared_ptr<DeviceTimes> times_of(Device& device) {
        std::string failed;
        std::shared_ptr<DeviceTimes> times;
        {
            std::lock_guard lock(mutex_);
            if (closed_.load()) return nullptr;
            const auto [found, added] = times_.try_emplace(device.slot());
            try {
                if (added) found->second = std::make_shared<DeviceTimes>(device);
            } catch (const Error& failure) {
                failed = failure.what();
            }
            times = found->second;
        }
        // Without the lock: the logger may wait for Python's, whose holder may wait for this one.
        if (!failed.empty()) {
            log(LogLevel::warning, str("trace: no device times on ", device.name(), ": ", failed));
        }
        return times;
    }

    static void fill(TraceEvent& event, Buffer& buffer, const observe::Happening& what) {
        const Device* device = what.who.device;
        const Stream* stream = what.who.stream;
        const Tenant* tenant = what.who.tenant != nullptr ? what.who.tenant->shown() : nullptr;
        if (device != nullptr && (device != buffer.device || device->slot() != buffer.device_slot)) {
            buffer.device_name = buffer.texts.keep(device->name());
            buffer.device = device;
            buffer.device_slot = device->slot();
        }
        if (tenant != nullptr && tenant->id() != buffer.tenant_id) {
            buffer.tenant_name = buffer.texts.keep(tenant->name());
            buffer.tenant_id = tenant->id();
        }
        event = {.topic = what.topic,
                 .form = what.form,
                 .kind = what.work != nullptr ? what.work->kind : WorkKind::kernel,
                 .failed = what.failed,
                 .captured = what.work != nullptr && what.work->captured,
                 .qos = tenant != nullptr ? tenant->qos() : QosClass::burstable,
                 .thread = buffer.thread,
                 .name = buffer.texts.keep(what.name),
                 .detail = what.detail.empty() ? nullptr : buffer.texts.keep(what.detail),
                 .device = device != nullptr ? buffer.device_name : nullptr,
                 .tenant = tenant != nullptr ? buffer.tenant_name : nullptr,
                 .tenant_id = tenant != nullptr ? tenant->id() : 0,
                 .stream_id = stream != nullptr ? stream->id() : 0,
                 .start_ns = what.start_ns,
                 .end_ns = what.end_ns,
                 .amount = what.amount,
                 .config = what.work != nullptr ? what.work->config : LaunchConfig{},
                 .cost = what.work != nullptr ? what.work->cost : Cost{}};
    }

    const Device* const only_;
    const bool device_times_;
    const std::uint64_t id_;
    std::atomic<std::int64_t> chunks_left_;
    std::atomic<std::uint64_t> dropped_{0};
    std::atomic<bool> closed_{false};
    mutable std::mutex mutex_;
    std::map<int, std::shared_ptr<DeviceTimes>> times_;  // by the devices' slots
    std::vector<std::shared_ptr<Buffer>> buffers_;
};

Trace::Trace(const TraceOptions& options)
    : start_ns_(steady_clock().now_ns()),
      start_unix_ns_(std::chrono::duration_cast<std::chrono::nanoseconds>(
                         std::chrono::system_clock::now().time_since_epoch())
                         .count()) {
    constexpr std::size_t kMost = std::size_t{1} << 32;
    if (options.max_events == 0 || options.max_events > kMost) {
        throw error(ErrorKind::value, {.call = "Trace",
                                       .argument = "max_events",
                                       .expected = str("1 to ", kMost),
                                       .got = str(options.max_events)});
    }
    recorder_ = std::make_shared<Recorder>(options);
    observe::add_listener(recorder_);
}

Trace::~Trace() {
    stop();
    recorder_->release();
}

void Trace::stop() noexcept {
    observe::remove_listener(recorder_.get());
    recorder_->close();
}

std::vector<TraceEntry> Trace::entries() const {
    std::vector<TraceEntry> out;
    recorder_->read([&](std::vector<const TraceEvent*>& events, const std::vector<std::string>&) {
        std::erase_if(events, [](const TraceEvent* each) {
            return each->topic != observe::Topic::work || each->form != observe::Form::span || each->failed;
        });
        std::stable_sort(events.begin(), events.end(),
                         [](const auto* a, const auto* b) { return a->end_ns < b->end_ns; });
        for (const TraceEvent* each : events) {
            out.push_back({each->kind, *each->name, each->stream_id, each->config, each->cost, each->start_ns,
                           each->end_ns, each->device_start_ns, each->device_end_ns});
        }
    });
    return out;
}

std::size_t Trace::event_count() const {
    std::size_t count = 0;
    recorder_->read([&](const auto& events, const auto&) { count = events.size(); });
    return count;
}

std::uint64_t Trace::dropped() const noexcept { return recorder_->dropped(); }

void Trace::write(const std::string& path) const {
    recorder_->read([&](std::vector<const TraceEvent*>& events, const std::vector<std::string>& threads) {
        write_trace(path, {std::move(events), threads, start_ns_, start_unix_ns_, dropped()});
    });
}

}  // namespace gpk
