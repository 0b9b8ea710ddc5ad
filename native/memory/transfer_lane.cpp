#include "memory/transfer_lane.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/platform.hpp"
#include "kernels/elementwise/copy.hpp"
#include "memory/transfer_engine.hpp"
#include "runtime/meter.hpp"

namespace gpk {

namespace {

// Chunks end every 150 us, so their end is polled for; a thread that waits for a long kernel sleeps.
constexpr std::chrono::microseconds kPoll{1000};
constexpr std::chrono::microseconds kNap{50};
// A tenant's lane without work goes after this long; those of no tenant stay.
constexpr std::chrono::seconds kLinger{2};
// Filled and emptied by the lane's own thread: handing over would take longer.
constexpr std::size_t kHandleHere = 256 << 10;

// By the SMs, which reach pinned memory at its own address.
void copy_by_kernel(Stream& stream, void* to, const void* from, std::size_t bytes) {
    const std::uint64_t ends =
        reinterpret_cast<std::uintptr_t>(to) | reinterpret_cast<std::uintptr_t>(from) | bytes | 16;
    const auto element = static_cast<std::int32_t>(ends & (~ends + 1));  // the lowest bit: at most 16
    const auto count = static_cast<std::int64_t>(bytes) / element;
    kernels::CopyParams params{.layout = {.count = count, .rank = 1, .wide = 0, .axis = {}},
                               .to = to,
                               .from = from,
                               .element_bytes = element};
    params.layout.axis[0] = {.extent = count, .stride = {1, 1}, .magic = 0, .shift = 0};
    constexpr std::int64_t kThreads = 256;
    stream.device().launcher().launch(
        stream, kernels::copy_kernel(),
        {.grid = {static_cast<unsigned>((count + kThreads - 1) / kThreads)}, .block = {kThreads}}, params,
        {.bytes = static_cast<double>(bytes)});
}

}  // namespace

TransferLane::TransferLane(TransferEngine& engine, TransferKind kind, bool urgent,
                           std::shared_ptr<Stream> stream)
    : engine_(engine),
      kind_(kind),
      urgent_(urgent),
      stream_(std::move(stream)),
      most_slots_(engine.options_.ring_chunks) {}

TransferLane::~TransferLane() { join(); }

void TransferLane::join() {
    if (thread_.joinable()) thread_.join();
}

bool TransferLane::goes_before(const Transfer& a, const Transfer& b) noexcept {
    return std::pair(a.priority(), a.sequence_) < std::pair(b.priority(), b.sequence_);
}

void TransferLane::start() {
    if (started_) return;
    thread_ = std::thread([this] { run(); });
    started_ = true;
}

void TransferLane::bump() {
    ++changes_;
    wake_.notify_all();
}

void TransferLane::add(const std::shared_ptr<Transfer>& transfer) {
    const auto place = std::find_if(queue_.begin(), queue_.end(),
                                    [&](const auto& each) { return goes_before(*transfer, *each); });
    queue_.insert(place, transfer);
    if (transfer->staged_) waiting_ += transfer->bytes();
    bump();
}

bool TransferLane::fills(const Transfer& transfer) const noexcept {
    return transfer.staged_ && kind_ == TransferKind::to_device;
}

bool TransferLane::gate_open(std::size_t bytes) const noexcept {
    const TransferOptions& options = engine_.options_;
    const std::size_t most =
        kind_ == TransferKind::on_device ? options.device_in_flight_bytes : options.in_flight_bytes;
    if (urgent_) {
        std::size_t own = 0;
        for (const Chunk& chunk : in_flight_) own += chunk.bytes;
        return own == 0 || own + bytes <= most;
    }
    const auto& gate = engine_.gates_[static_cast<std::size_t>(kind_)];
    return gate.held == 0 && (gate.in_flight == 0 || gate.in_flight + bytes <= most);
}

bool TransferLane::idle() const noexcept {
    return queue_.empty() && ready_.empty() && in_flight_.empty() && working_ == 0;
}

// -- Its thread ----------------------------------------------------------------------------------------

void TransferLane::run() {
    using Clock = std::chrono::steady_clock;
    Lock lock(engine_.sync_->mutex);
    auto last_progress = Clock::now();
    for (;;) {
        const std::uint64_t seen = changes_;
        bool progress = retire(lock);
        progress |= grow(lock);
        progress |= stage(lock);
        progress |= submit(lock);
        if (progress) {
            last_progress = Clock::now();
        } else if (in_flight_.empty()) {
            if (changes_ == seen && !sleep(lock, seen)) return;
            last_progress = Clock::now();
        } else if (Clock::now() - last_progress < kPoll) {
            const std::shared_ptr<Event> first = in_flight_.front().event;
            lock.unlock();
            poll(*first, seen);
            lock.lock();
        } else {
            wake_.wait_for(lock, kNap, [&] { return changes_ != seen; });
        }
    }
}

// Until the event is reached or something changed, but no longer than kPoll. The mutex is free meanwhile.
void TransferLane::poll(const Event& event, std::uint64_t seen) const noexcept {
    const auto end = std::chrono::steady_clock::now() + kPoll;
    try {
        while (changes_.load(std::memory_order_acquire) == seen && !event.query() &&
               std::chrono::steady_clock::now() < end) {
            std::this_thread::yield();
        }
    } catch (const Error&) {
        // retire() meets it again.
    }
}

bool TransferLane::sleep(Lock& lock, std::uint64_t seen) {
    if (idle()) {
        most_slots_ = engine_.options_.ring_chunks;
        slots_ -= free_slots_.size();
        for (const PinnedBlock& slot : std::exchange(free_slots_, {})) engine_.pinned_.release(slot);
        engine_.sync_->changed.notify_all();
        if (engine_.stop_) return false;
    }
    const auto changed = [&] { return changes_ != seen; };
    if (stream_->tenant() == nullptr || !idle()) {
        wake_.wait(lock, changed);
    } else if (!wake_.wait_for(lock, kLinger, changed) && reserved_ == 0) {
        engine_.retire(this);
        return false;
    }
    return true;
}

// After a failure: what is in flight must be over before its memory is let go.
void TransferLane::settle() noexcept {
    try {
        stream_->synchronize();
    } catch (const std::exception& failure) {
        log(LogLevel::warning, str("transfer: waiting after a failure: ", failure.what()));
    }
}

bool TransferLane::retire(Lock& lock) {
    if (in_flight_.empty()) return false;
    const std::shared_ptr<Event> first = in_flight_.front().event;
    const std::uint64_t number = in_flight_.front().number;
    lock.unlock();
    bool reached = false;
    std::exception_ptr failure;
    try {
        reached = first->query();
    } catch (...) {
        failure = std::current_exception();
        settle();
    }
    lock.lock();
    // Another thread may have seen to it.
    if (in_flight_.empty() || in_flight_.front().number != number) return true;
    if (!reached && !failure) return false;
    Chunk chunk = std::move(in_flight_.front());
    in_flight_.pop_front();
    events_.push_back(std::move(chunk.event));
    if (!urgent_) {
        auto& gate = engine_.gates_[static_cast<std::size_t>(kind_)];
        gate.in_flight -= chunk.bytes;
        engine_.bump_all();  // another tenant's lane may wait for the room
    }
    const auto transfer = chunk.transfer;
    if (failure) {
        give_back(chunk.slot);
        --transfer->chunks_;
        stop(transfer, failure);
    } else if (kind_ == TransferKind::to_host && transfer->staged_ && !transfer->stopping_) {
        ++working_;
        if (handled_here(chunk)) {
            lock.unlock();
            empty(std::move(chunk));
            lock.lock();
        } else {
            engine_.stagers_->run(urgent_, [this, chunk = std::move(chunk)] { empty(chunk); });
        }
    } else if (kind_ == TransferKind::to_host && transfer->staged_) {
        give_back(chunk.slot);
        --transfer->chunks_;
        conclude(transfer);
    } else {
        give_back(chunk.slot);
        chunk_done(transfer, chunk.bytes);
    }
    return true;
}

void TransferLane::help(Lock& lock) {
    ++working_;  // so that the lane stays
    const bool done = retire(lock);
    --working_;
    if (done) bump();
}

// Takes a pinned chunk more where one is needed. With none left to be had, it makes do with those it has.
bool TransferLane::grow(Lock& lock) {
    if (!free_slots_.empty() || slots_ >= most_slots_) return false;
    const auto needs = std::find_if(queue_.begin(), queue_.end(),
                                    [](const auto& each) { return each->staged_ && !each->blocked(); });
    if (needs == queue_.end()) return false;
    const auto transfer = *needs;
    lock.unlock();
    PinnedBlock slot;
    std::exception_ptr failure;
    try {
        slot = engine_.pinned_.allocate(engine_.options_.chunk_bytes);
    } catch (...) {
        failure = std::current_exception();
    }
    lock.lock();
    if (!failure) {
        ++slots_;
        free_slots_.push_back(slot);
    } else if (slots_ > 0) {
        most_slots_ = slots_;
    } else if (!transfer->over()) {
        stop(transfer, failure);
    }
    return true;
}

// Of the ring a whole slot where many bytes wait. A short copy alone is cut finer, two chunks for each
// thread, so that a slow one does not hold the end up.
std::size_t TransferLane::next_bytes(const Transfer& transfer) const noexcept {
    const std::size_t left = transfer.bytes() - transfer.claimed_;
    const TransferOptions& options = engine_.options_;
    if (!transfer.staged_) {
        return std::min(
            kind_ == TransferKind::on_device ? options.device_chunk_bytes : options.direct_chunk_bytes, left);
    }
    const std::size_t share =
        std::max(transfer.bytes(), waiting_) / (std::size_t{2} * engine_.stagers_->threads());
    const std::size_t chunk = std::clamp(share, options.least_chunk_bytes, options.chunk_bytes);
    return std::min(chunk - chunk % transfer.request_.grain, left);
}

TransferLane::Chunk TransferLane::claim(const std::shared_ptr<Transfer>& transfer) {
    Chunk chunk{.transfer = transfer, .offset = transfer->claimed_, .bytes = next_bytes(*transfer)};
    if (transfer->staged_) {
        chunk.slot = free_slots_.back();
        free_slots_.pop_back();
        waiting_ -= std::min(waiting_, chunk.bytes);
    }
    transfer->claimed_ += chunk.bytes;
    ++transfer->chunks_;
    if (transfer->state() == TransferState::queued) {
        engine_.count_begun(*transfer);
        transfer->state_.store(TransferState::in_progress, std::memory_order_release);
    }
    if (transfer->claimed_ == transfer->bytes()) std::erase(queue_, std::shared_ptr(transfer));
    return chunk;
}

bool TransferLane::stage(Lock& lock) {
    if (kind_ != TransferKind::to_device) return false;
    bool any = false;
    while (!free_slots_.empty()) {
        const auto next = std::find_if(queue_.begin(), queue_.end(),
                                       [this](const auto& each) { return fills(*each) && !each->blocked(); });
        if (next == queue_.end()) break;
        Chunk chunk = claim(std::shared_ptr(*next));
        any = true;
        ++working_;
        if (handled_here(chunk)) {
            lock.unlock();
            fill(std::move(chunk));
            lock.lock();
        } else {
            engine_.stagers_->run(urgent_, [this, chunk = std::move(chunk)] { fill(chunk); });
        }
    }
    return any;
}

bool TransferLane::handled_here(const Chunk& chunk) noexcept {
    return chunk.bytes == chunk.transfer->bytes() && chunk.bytes <= kHandleHere;
}

void TransferLane::fill(Chunk chunk) noexcept {
    const auto transfer = chunk.transfer;
    const TransferRequest& request = transfer->request_;
    std::exception_ptr failure;
    try {
        if (request.fill) {
            request.fill(chunk.offset, {chunk.slot.data, chunk.bytes});
        } else {
            copy_bytes(chunk.slot.data, static_cast<const std::byte*>(request.source) + chunk.offset,
                       chunk.bytes, engine_.options_.streaming_stores);
        }
    } catch (...) {
        failure = std::current_exception();
    }
    const std::lock_guard lock(engine_.sync_->mutex);
    --working_;
    if (failure || transfer->stopping_) {
        give_back(chunk.slot);
        --transfer->chunks_;
        if (failure) {
            stop(transfer, failure);
        } else {
            conclude(transfer);
        }
    } else {
        ready_.push_back(std::move(chunk));
    }
    bump();
}

void TransferLane::empty(Chunk chunk) noexcept {
    const auto transfer = chunk.transfer;
    std::byte* const to = static_cast<std::byte*>(transfer->request_.target) + chunk.offset;
    if (engine_.options_.populate_targets) platform::populate(to, chunk.bytes);
    copy_bytes(to, chunk.slot.data, chunk.bytes, engine_.options_.streaming_stores);
    const std::lock_guard lock(engine_.sync_->mutex);
    --working_;
    give_back(chunk.slot);
    chunk_done(transfer, chunk.bytes);
    bump();
}

bool TransferLane::submit(Lock& lock) {
    const auto filled = std::min_element(ready_.begin(), ready_.end(), [](const Chunk& a, const Chunk& b) {
        return goes_before(*a.transfer, *b.transfer);
    });
    const auto direct = std::find_if(queue_.begin(), queue_.end(), [this](const auto& each) {
        return !fills(*each) && !each->blocked() && (!each->staged_ || !free_slots_.empty());
    });
    if (filled == ready_.end() && direct == queue_.end()) return false;
    const bool from_queue =
        direct != queue_.end() && (filled == ready_.end() || goes_before(**direct, *filled->transfer));
    const std::size_t bytes = from_queue ? next_bytes(**direct) : filled->bytes;
    if (!gate_open(bytes)) return false;
    Chunk chunk;
    if (from_queue) {
        chunk = claim(std::shared_ptr(*direct));
    } else {
        chunk = std::move(*filled);
        ready_.erase(filled);
    }
    send(lock, std::move(chunk));
    return true;
}

bool TransferLane::send_here(Lock& lock, const std::shared_ptr<Transfer>& transfer) {
    if (!urgent_ || stream_->tenant() != nullptr || !idle() || transfer->blocked() ||
        transfer->bytes() > std::min(engine_.options_.small_bytes, next_bytes(*transfer)) ||
        (transfer->staged_ && (free_slots_.empty() || transfer->request_.fill))) {
        return false;
    }
    Chunk chunk = claim(transfer);
    ++working_;  // so that the lane stays
    if (fills(*transfer)) {
        ++working_;  // which fill() takes back
        lock.unlock();
        fill(std::move(chunk));
        lock.lock();
        submit(lock);
    } else {
        send(lock, std::move(chunk));
    }
    --working_;
    bump();
    return true;
}

// Queues a chunk's copy.
void TransferLane::send(Lock& lock, Chunk chunk) {
    const auto transfer = chunk.transfer;
    const bool first = !std::exchange(transfer->ordered_, true);
    const bool last = transfer->submitted_ + chunk.bytes == transfer->bytes();
    const bool by_kernel = passes_engine(chunk);
    auto& gate = engine_.gates_[static_cast<std::size_t>(kind_)];
    if (!urgent_) gate.in_flight += chunk.bytes;
    if (!events_.empty()) {
        chunk.event = std::move(events_.back());
        events_.pop_back();
    }
    lock.unlock();
    std::exception_ptr failure;
    bool holds = false;
    try {
        holds = first && engine_.holds_others(*transfer) && transfer->waits_for_nothing();
        if (!chunk.event) chunk.event = std::make_shared<Event>(stream_->device());
        queue_copy(chunk, first, last, by_kernel);
    } catch (...) {
        failure = std::current_exception();
        settle();
    }
    lock.lock();
    if (holds && !std::exchange(transfer->holds_, true)) ++gate.held;
    if (failure) {
        if (!urgent_) gate.in_flight -= chunk.bytes;
        if (chunk.event) events_.push_back(std::move(chunk.event));
        give_back(chunk.slot);
        --transfer->chunks_;
        stop(transfer, failure);
        return;
    }
    transfer->submitted_ += chunk.bytes;
    chunk.number = ++next_number_;
    in_flight_.push_back(std::move(chunk));
    if (last) {
        transfer->queued_.store(true, std::memory_order_release);
        engine_.sync_->changed.notify_all();
        engine_.bump_all();  // for what follows it
    }
}

// A GPU's copy engine serves one stream for as long as that has copies, however urgent another stream's are.
// The SMs copy beside it.
bool TransferLane::passes_engine(const Chunk& chunk) const noexcept {
    return urgent_ && kind_ != TransferKind::on_device && chunk.bytes <= engine_.options_.small_bytes &&
           engine_.gates_[static_cast<std::size_t>(kind_)].bulk > 0;
}

void TransferLane::queue_copy(const Chunk& chunk, bool first, bool last, bool by_kernel) {
    Transfer& transfer = *chunk.transfer;
    const TransferRequest& request = transfer.request_;
    Launcher& launcher = stream_->device().launcher();
    if (first) {
        for (const auto& event : transfer.after_) stream_->wait(*event);
        for (const auto& earlier : transfer.earlier_) earlier->order_before(*stream_);
    }
    const DevicePtr device = request.device + chunk.offset;
    switch (kind_) {
        case TransferKind::to_device: {
            const std::byte* const from = transfer.staged_
                                              ? chunk.slot.data
                                              : static_cast<const std::byte*>(request.source) + chunk.offset;
            if (by_kernel) {
                copy_by_kernel(*stream_, reinterpret_cast<void*>(device), from, chunk.bytes);
                stream_->meter().add(Count::to_device_bytes, chunk.bytes);
            } else {
                launcher.copy_to_device(*stream_, device, from, chunk.bytes);
            }
            break;
        }
        case TransferKind::to_host: {
            std::byte* const to =
                transfer.staged_ ? chunk.slot.data : static_cast<std::byte*>(request.target) + chunk.offset;
            if (by_kernel) {
                copy_by_kernel(*stream_, to, reinterpret_cast<const void*>(device), chunk.bytes);
                stream_->meter().add(Count::to_host_bytes, chunk.bytes);
            } else {
                launcher.copy_to_host(*stream_, to, device, chunk.bytes);
            }
            break;
        }
        case TransferKind::on_device:
            launcher.copy_on_device(*stream_, device, request.device_source + chunk.offset, chunk.bytes);
            break;
    }
    chunk.event->record(*stream_);
    if (last) transfer.end_->record(*stream_);
}

// -- The end of chunks and of transfers ----------------------------------------------------------------

void TransferLane::give_back(PinnedBlock& slot) {
    if (slot.data != nullptr) free_slots_.push_back(std::exchange(slot, {}));
}

void TransferLane::chunk_done(const std::shared_ptr<Transfer>& transfer, std::size_t bytes) {
    --transfer->chunks_;
    transfer->done_.fetch_add(bytes, std::memory_order_acq_rel);
    if (transfer->request_.progress && !std::exchange(transfer->progress_posted_, true)) {
        engine_.post(transfer);
    }
    conclude(transfer);
}

void TransferLane::conclude(const std::shared_ptr<Transfer>& transfer) {
    if (transfer->chunks_ > 0 || transfer->over()) return;
    if (transfer->failure_) {
        engine_.finish(transfer, TransferState::failed);
    } else if (transfer->stopping_) {
        // Also where all of it was copied even so: whoever cancelled it was told that it is.
        engine_.finish(transfer, TransferState::cancelled);
    } else if (transfer->bytes_done() == transfer->bytes()) {
        engine_.finish(transfer, TransferState::completed);
    }
}

void TransferLane::stop(const std::shared_ptr<Transfer>& transfer, std::exception_ptr failure) {
    if (failure && !transfer->failure_) transfer->failure_ = std::move(failure);
    transfer->stopping_ = true;
    if (std::erase(queue_, transfer) > 0 && transfer->staged_)
        waiting_ -= transfer->bytes() - transfer->claimed_;
    std::erase_if(ready_, [&](Chunk& chunk) {
        if (chunk.transfer != transfer) return false;
        give_back(chunk.slot);
        --transfer->chunks_;
        return true;
    });
    conclude(transfer);
    bump();
}

void TransferLane::stop_all() {
    std::vector<std::shared_ptr<Transfer>> all = queue_;
    for (const Chunk& chunk : ready_) all.push_back(chunk.transfer);
    for (const auto& transfer : all) {
        if (!transfer->over()) stop(transfer, nullptr);
    }
}

}  // namespace gpk
