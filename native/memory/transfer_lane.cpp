#include "memory/transfer_lane.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/platform.hpp"
#include "memory/transfer_engine.hpp"

namespace gpk {

namespace {

// Chunks end every 30 us, so their end is polled for; a thread that waits for a long kernel sleeps.
constexpr std::chrono::microseconds kPoll{1000};
constexpr std::chrono::microseconds kNap{50};
// A tenant's lane without work goes after this long; those of no tenant stay.
constexpr std::chrono::seconds kLinger{2};
// Filled by the lane's own thread: handing over would take longer.
constexpr std::size_t kFillHere = 256 << 10;

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
            lock.unlock();
            std::this_thread::yield();
            lock.lock();
        } else {
            wake_.wait_for(lock, kNap, [&] { return changes_ != seen; });
        }
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
    lock.unlock();
    bool reached = false;
    std::exception_ptr failure;
    try {
        reached = in_flight_.front().event->query();
    } catch (...) {
        failure = std::current_exception();
        settle();
    }
    lock.lock();
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
        engine_.stagers_->run(urgent_, [this, chunk = std::move(chunk)] { empty(chunk); });
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

TransferLane::Chunk TransferLane::claim(const std::shared_ptr<Transfer>& transfer) {
    Chunk chunk{.transfer = transfer,
                .offset = transfer->claimed_,
                .bytes = std::min(transfer->chunk_bytes_, transfer->bytes() - transfer->claimed_)};
    if (transfer->staged_) {
        chunk.slot = free_slots_.back();
        free_slots_.pop_back();
    }
    transfer->claimed_ += chunk.bytes;
    ++transfer->chunks_;
    if (transfer->state() == TransferState::queued) {
        transfer->state_.store(TransferState::in_progress, std::memory_order_release);
        --engine_.stats_.queued;
        ++engine_.stats_.in_progress;
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
        if (chunk.bytes == chunk.transfer->bytes() && chunk.bytes <= kFillHere) {
            lock.unlock();
            fill(std::move(chunk));
            lock.lock();
        } else {
            engine_.stagers_->run(urgent_, [this, chunk = std::move(chunk)] { fill(chunk); });
        }
    }
    return any;
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
    const std::size_t bytes =
        from_queue ? std::min((*direct)->chunk_bytes_, (*direct)->bytes() - (*direct)->claimed_)
                   : filled->bytes;
    if (!gate_open(bytes)) return false;
    Chunk chunk;
    if (from_queue) {
        chunk = claim(std::shared_ptr(*direct));
    } else {
        chunk = std::move(*filled);
        ready_.erase(filled);
    }
    const auto transfer = chunk.transfer;
    const bool first = !std::exchange(transfer->ordered_, true);
    const bool last = transfer->submitted_ + chunk.bytes == transfer->bytes();
    auto& gate = engine_.gates_[static_cast<std::size_t>(kind_)];
    if (!urgent_) gate.in_flight += chunk.bytes;
    lock.unlock();
    std::exception_ptr failure;
    bool holds = false;
    try {
        holds = first && urgent_ && transfer->waits_for_nothing();
        if (events_.empty()) events_.push_back(std::make_shared<Event>(stream_->device()));
        chunk.event = events_.back();
        events_.pop_back();
        queue_copy(chunk, first, last);
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
        return true;
    }
    transfer->submitted_ += chunk.bytes;
    in_flight_.push_back(std::move(chunk));
    if (last) {
        transfer->queued_.store(true, std::memory_order_release);
        engine_.sync_->changed.notify_all();
        engine_.bump_all();  // for what follows it
    }
    return true;
}

void TransferLane::queue_copy(const Chunk& chunk, bool first, bool last) {
    Transfer& transfer = *chunk.transfer;
    const TransferRequest& request = transfer.request_;
    Launcher& launcher = stream_->device().launcher();
    if (first) {
        for (const auto& event : transfer.after_) stream_->wait(*event);
        for (const auto& earlier : transfer.earlier_) earlier->order_before(*stream_);
    }
    switch (kind_) {
        case TransferKind::to_device:
            launcher.copy_to_device(*stream_, request.device + chunk.offset,
                                    transfer.staged_
                                        ? chunk.slot.data
                                        : static_cast<const std::byte*>(request.source) + chunk.offset,
                                    chunk.bytes);
            break;
        case TransferKind::to_host:
            launcher.copy_to_host(
                *stream_,
                transfer.staged_ ? chunk.slot.data : static_cast<std::byte*>(request.target) + chunk.offset,
                request.device + chunk.offset, chunk.bytes);
            break;
        case TransferKind::on_device:
            launcher.copy_on_device(*stream_, request.device + chunk.offset,
                                    request.device_source + chunk.offset, chunk.bytes);
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
    } else if (transfer->bytes_done() == transfer->bytes()) {
        engine_.finish(transfer, TransferState::completed);
    } else if (transfer->stopping_) {
        engine_.finish(transfer, TransferState::cancelled);
    }
}

void TransferLane::stop(const std::shared_ptr<Transfer>& transfer, std::exception_ptr failure) {
    if (failure && !transfer->failure_) transfer->failure_ = std::move(failure);
    transfer->stopping_ = true;
    std::erase(queue_, transfer);
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
