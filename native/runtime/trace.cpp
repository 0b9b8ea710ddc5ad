#include "runtime/trace.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <mutex>
#include <new>
#include <unordered_set>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/platform.hpp"
#include "runtime/device.hpp"
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
          id_(next_recorder_id.fetch_add(1)),
          chunks_left_(static_cast<std::int64_t>((options.max_events - 1) / kChunk + 1)) {}

    void happened(const observe::Happening& what) noexcept override {
        if (only_ != nullptr && what.who.device != only_) return;
        try {
            const std::shared_ptr<Buffer>& buffer = buffer_here();
            if (!buffer || buffer->closed.load(std::memory_order_relaxed))
                return;  // do not wait for a reader
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
            fill((*buffer->chunks.back())[buffer->in_last], *buffer, what);
            ++buffer->in_last;
        } catch (const std::bad_alloc&) {
            dropped_.fetch_add(1, std::memory_order_relaxed);
        }
    }

    void close() noexcept {
        for_each_buffer([](Buffer& buffer) { buffer.closed = true; });
        closed_ = true;
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
                for (std::size_t i = 0; i < count; ++i) events.push_back(&(*chunk)[i]);
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

    static void fill(TraceEvent& event, Buffer& buffer, const observe::Happening& what) {
        const auto& [device, tenant, stream] = what.who;
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
    const std::uint64_t id_;
    std::atomic<std::int64_t> chunks_left_;
    std::atomic<std::uint64_t> dropped_{0};
    std::atomic<bool> closed_{false};
    mutable std::mutex mutex_;
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
                           each->end_ns});
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
