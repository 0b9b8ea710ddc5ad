#include "memory/transfer_engine.hpp"

#include <algorithm>
#include <system_error>
#include <utility>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/log.hpp"
#include "base/parallel.hpp"
#include "memory/pool.hpp"
#include "runtime/meter.hpp"
#include "runtime/observe.hpp"

namespace gpk {

namespace {

constexpr unsigned kMostThreads = 12;  // more gave no more bytes a second on 16 cores

unsigned thread_count(const TransferOptions& options) {
    if (options.threads != 0) return options.threads;
    return std::clamp(parallel_threads(), 2u, kMostThreads + 1) - 1;
}

std::size_t index_of(TransferKind kind) { return static_cast<std::size_t>(kind); }

void check_request(const TransferRequest& request, const TransferOptions& options) {
    const bool has_host =
        request.kind == TransferKind::on_device ||
        (request.kind == TransferKind::to_host ? request.target != nullptr
                                               : request.source != nullptr || request.fill != nullptr);
    if (request.bytes != 0 && !has_host) {
        throw error(ErrorKind::value, {.call = "transfer", .expected = "host memory", .got = "null"});
    }
    if (request.grain == 0 || request.grain > options.least_chunk_bytes) {
        throw error(ErrorKind::value, {.call = "transfer",
                                       .argument = "grain",
                                       .expected = str("1 to ", options.least_chunk_bytes, " bytes"),
                                       .got = str(request.grain)});
    }
}

}  // namespace

TransferEngine& TransferEngine::of(Device& device) { return device.attached<TransferEngine>(); }

// The pools are made first, so that they outlive the engine.
TransferEngine::TransferEngine(Device& device)
    : device_((MemoryPool::of(device), device)),
      pinned_(PinnedPool::of(device)),
      process_(process_generation()),
      sync_(std::make_shared<TransferSync>()),
      stagers_(std::make_unique<Stagers>(thread_count(options_))) {}

TransferEngine::~TransferEngine() {
    {
        std::lock_guard lock(sync_->mutex);
        stop_ = true;
        for (const auto& lane : lanes_) {
            lane->stop_all();
            lane->bump();
        }
        posted_.notify_all();
    }
    for (const auto& lane : lanes_) lane->join();
    lanes_.clear();
    stagers_.reset();
    if (notifier_.joinable()) notifier_.join();
}

void TransferEngine::check_process(const char* call) const {
    if (usable()) return;
    throw error(ErrorKind::unsupported,
                {.call = call,
                 .got = "a process forked after transfers began in its parent, whose threads it lacks",
                 .fix = "start child processes with multiprocessing's 'spawn' or 'forkserver' method"});
}

// The lane of the calling thread's tenant, made where there is none.
TransferLane& TransferEngine::lane_for(TransferKind kind, bool urgent, std::unique_lock<std::mutex>& lock) {
    const auto& tenant = current_stream(device_)->tenant();
    const auto find = [&]() -> TransferLane* {
        const auto found = std::find_if(lanes_.begin(), lanes_.end(), [&](const auto& lane) {
            return lane->kind() == kind && lane->urgent() == urgent && lane->stream()->tenant() == tenant;
        });
        return found != lanes_.end() ? found->get() : nullptr;
    };
    if (TransferLane* known = find()) return *known;
    lock.unlock();
    auto stream = Stream::create_for(tenant, device_, urgent ? device_.info().highest_priority : 0);
    lock.lock();
    if (TransferLane* known = find()) return *known;
    lanes_.push_back(std::make_unique<TransferLane>(*this, kind, urgent, std::move(stream)));
    return *lanes_.back();
}

std::shared_ptr<Stream> TransferEngine::stream_for(TransferKind kind, int priority) {
    check_process("transfer");
    std::unique_lock lock(sync_->mutex);
    TransferLane& lane = lane_for(kind, priority < 0, lock);
    start(lane);
    return lane.stream();
}

void TransferEngine::start(TransferLane& lane) {
    try {
        stagers_->start();
        if (!notifier_.joinable()) notifier_ = std::thread([this] { notify(); });
        lane.start();
    } catch (const std::system_error& failure) {
        throw error(ErrorKind::unsupported, {.call = "transfer",
                                             .expected = "threads of its own",
                                             .got = failure.what(),
                                             .fix = "allow the process more threads"});
    }
}

std::shared_ptr<Transfer> TransferEngine::prepare(TransferRequest request) {
    check_process("transfer");
    check_request(request, options_);
    auto end = std::make_shared<Event>(device_);
    std::unique_lock lock(sync_->mutex);
    TransferLane& lane = lane_for(request.kind, request.priority < 0, lock);
    auto transfer = std::make_shared<Transfer>(std::move(request), sync_, lane.stream());
    start(lane);
    const TransferRequest& asked = transfer->request_;
    if (asked.kind == TransferKind::to_device) {
        transfer->staged_ = asked.fill != nullptr || !pinned_.contains(asked.source, asked.bytes);
    } else if (asked.kind == TransferKind::to_host) {
        transfer->staged_ = !pinned_.contains(asked.target, asked.bytes);
    }
    transfer->end_ = std::move(end);
    lane.reserve();
    transfer->lane_ = &lane;
    ++active_;
    return transfer;
}

void TransferEngine::submit(const std::shared_ptr<Transfer>& transfer) {
    std::unique_lock lock(sync_->mutex);
    TransferLane& lane = *transfer->lane_;
    lane.unreserve();
    transfer->sequence_ = ++next_sequence_;
    count_queued(*transfer);
    if (transfer->bytes() == 0) return finish(transfer, TransferState::completed);
    if (lane.send_here(lock, transfer)) return;
    Gate& gate = gates_[index_of(transfer->kind())];
    transfer->bulk_ = !lane.urgent();
    if (transfer->bulk_) ++gate.bulk;
    transfer->holds_ = holds_others(*transfer) && transfer->after_.empty() && transfer->earlier_.empty();
    if (transfer->holds_) ++gate.held;
    lane.add(transfer);
}

bool TransferEngine::holds_others(const Transfer& transfer) const noexcept {
    return transfer.priority() < 0 && transfer.bytes() > options_.small_bytes;
}

void TransferEngine::count_queued(Transfer& transfer) noexcept {
    ++stats_.queued;
    transfer.queued_ns_ = steady_clock().now_ns();
    transfer.stream_->meter().change(Level::transfers_queued, 1);
}

void TransferEngine::count_begun(Transfer& transfer) noexcept {
    --stats_.queued;
    ++stats_.in_progress;
    Meter& meter = transfer.stream_->meter();
    meter.change(Level::transfers_queued, -1);
    meter.change(Level::transfers_in_progress, 1);
}

void TransferEngine::abandon(const std::shared_ptr<Transfer>& transfer) noexcept {
    const std::lock_guard lock(sync_->mutex);
    transfer->lane_->unreserve();
    count_queued(*transfer);
    finish(transfer, TransferState::cancelled);
}

void TransferEngine::finish(const std::shared_ptr<Transfer>& transfer, TransferState state) {
    TransferStats::Direction& direction = stats_.directions[index_of(transfer->kind())];
    const bool begun = transfer->state() != TransferState::queued;
    --(begun ? stats_.in_progress : stats_.queued);
    Meter& meter = transfer->stream_->meter();
    meter.change(begun ? Level::transfers_in_progress : Level::transfers_queued, -1);
    meter.add(state == TransferState::completed ? Count::transfers_completed
              : state == TransferState::failed  ? Count::transfers_failed
                                                : Count::transfers_cancelled);
    transfer->over_ns_ = steady_clock().now_ns();
    if (state == TransferState::completed) {
        ++direction.completed;
        direction.bytes += transfer->bytes();
        if (transfer->staged_) direction.staged_bytes += transfer->bytes();
    } else {
        ++(state == TransferState::failed ? direction.failed : direction.cancelled);
    }
    Gate& gate = gates_[index_of(transfer->kind())];
    if (transfer->holds_) --gate.held;
    if (transfer->bulk_) --gate.bulk;
    transfer->lane_ = nullptr;
    transfer->state_.store(state, std::memory_order_release);
    --active_;
    post(transfer);
    sync_->changed.notify_all();
    bump_all();  // for what follows it, and for what it held
}

void TransferEngine::bump_all() {
    for (const auto& lane : lanes_) {
        if (!lane->idle()) lane->bump();
    }
}

void TransferEngine::retire(TransferLane* lane) {
    const auto found =
        std::find_if(lanes_.begin(), lanes_.end(), [&](const auto& each) { return each.get() == lane; });
    if (stop_ || found == lanes_.end()) return;  // who stops the engine waits for them all
    retired_.push_back(std::move(*found));
    lanes_.erase(found);
    posted_.notify_all();
}

// -- The notifier: callbacks, and letting go, both of which may take Python's lock --------------------------

void TransferEngine::post(const std::shared_ptr<Transfer>& transfer) {
    posts_.push_back(transfer);
    posted_.notify_all();
}

void TransferEngine::tell_of(const Transfer& transfer, const Stream& stream) noexcept {
    static constexpr std::string_view kNames[kTransferKinds] = {"to_device", "to_host", "on_device"};
    observe::tell({.topic = observe::Topic::transfer,
                   .form = observe::Form::span,
                   .name = kNames[index_of(transfer.kind())],
                   .who = {device_, stream.tenant().get()},
                   .start_ns = transfer.queued_ns_,
                   .end_ns = transfer.over_ns_,
                   .amount = static_cast<double>(transfer.bytes_done()),
                   .detail = to_string(transfer.state()),
                   .failed = transfer.state() == TransferState::failed});
}

void TransferEngine::notify() {
    const auto guarded = [](const auto& call) {
        try {
            call();
        } catch (const std::exception& failure) {
            log(LogLevel::warning, str("transfer: a callback failed: ", failure.what()));
        }
    };
    std::unique_lock lock(sync_->mutex);
    for (;;) {
        posted_.wait(lock, [this] { return stop_ || !posts_.empty() || !retired_.empty(); });
        if (!retired_.empty()) {
            auto gone = std::exchange(retired_, {});
            lock.unlock();
            gone.clear();  // with their streams
            lock.lock();
            continue;
        }
        if (posts_.empty()) {
            if (stop_ && active_ == 0) return;
            posted_.wait(lock);
            continue;
        }
        auto transfer = std::move(posts_.front());
        posts_.pop_front();
        notifying_ = true;
        transfer->progress_posted_ = false;
        const bool over = transfer->over();
        TransferRequest& request = transfer->request_;
        const auto progress = request.progress;
        std::vector<std::function<void()>> calls;
        std::vector<std::shared_ptr<const void>> keep;
        std::vector<std::shared_ptr<Event>> after;
        std::vector<std::shared_ptr<Transfer>> earlier;
        std::shared_ptr<Event> end;
        std::shared_ptr<Stream> stream;
        const bool first = over && transfer->stream_ != nullptr;
        if (over) {
            end.swap(transfer->end_);
            stream.swap(transfer->stream_);
            calls.swap(transfer->calls_);
            if (transfer->state() == TransferState::completed) {
                after.swap(transfer->after_);
                earlier.swap(transfer->earlier_);
            }
        }
        lock.unlock();
        if (first && observe::listening()) tell_of(*transfer, *stream);
        const std::size_t done = transfer->bytes_done();
        if (progress && (!over || done == transfer->bytes())) {
            guarded([&] { progress(done, transfer->bytes()); });
        }
        for (const auto& call : calls) guarded(call);
        if (over) {
            // Nobody else reads these once it is over.
            keep.swap(request.keep);
            request.progress = nullptr;
            request.fill = nullptr;
        }
        keep.clear();
        calls.clear();
        after.clear();
        earlier.clear();
        end.reset();
        stream.reset();
        transfer.reset();
        lock.lock();
        notifying_ = false;
        sync_->changed.notify_all();
    }
}

// -- What it is doing ----------------------------------------------------------------------------------

TransferStats TransferEngine::stats() const {
    check_process("transfer");
    std::lock_guard lock(sync_->mutex);
    return stats_;
}

void TransferEngine::drain() {
    check_process("transfer");
    std::unique_lock lock(sync_->mutex);
    sync_->changed.wait(lock, [this] {
        return active_ == 0 && posts_.empty() && !notifying_ &&
               std::all_of(lanes_.begin(), lanes_.end(), [](const auto& lane) { return lane->rests(); });
    });
}

void TransferEngine::configure(const TransferOptions& options) {
    check_process("transfer");
    const std::lock_guard lock(sync_->mutex);
    if (!lanes_.empty()) {
        throw error(ErrorKind::value,
                    {.call = "transfer options", .got = "a change after the engine's first transfer"});
    }
    if (options.least_chunk_bytes == 0 || options.least_chunk_bytes > options.chunk_bytes ||
        options.direct_chunk_bytes == 0 || options.device_chunk_bytes == 0 || options.ring_chunks == 0 ||
        options.threads > 1024) {
        throw error(ErrorKind::value,
                    {.call = "transfer options",
                     .expected = "0 < least_chunk_bytes <= chunk_bytes, direct_chunk_bytes, "
                                 "device_chunk_bytes and ring_chunks above 0, at most 1024 threads"});
    }
    options_ = options;
    stagers_ = std::make_unique<Stagers>(thread_count(options));
}

TransferOptions TransferEngine::options() const {
    const std::lock_guard lock(sync_->mutex);
    return options_;
}

}  // namespace gpk
