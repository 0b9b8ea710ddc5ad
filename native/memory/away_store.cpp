#include "memory/away_store.hpp"

#include <utility>

#include "base/log.hpp"
#include "runtime/observe.hpp"

namespace gpk {

using State = AwayData::State;

void AwayStore::set_spill(std::unique_ptr<platform::ScratchFile> file, std::size_t limit) {
    auto made = std::make_shared<SpillFile>(std::move(file), limit);
    std::lock_guard lock(mutex_);
    std::erase_if(files_, [](const auto& each) { return each->used_bytes() == 0; });
    files_.push_back(std::move(made));
    problem_.clear();
}

bool AwayStore::set_disk_limit(std::size_t bytes) {
    std::lock_guard lock(mutex_);
    if (files_.empty()) return false;
    files_.back()->set_limit(bytes);
    problem_.clear();
    return true;
}

std::shared_ptr<AwayData> AwayStore::allocate(std::size_t bytes, Meter& meter) {
    auto data = std::make_shared<AwayData>();
    try {
        data->memory = host_.allocate(bytes);
    } catch (const Error& failure) {
        if (failure.kind() != ErrorKind::memory) throw;
        throw HostFullError(failure);
    }
    data->bytes = bytes;
    data->meter = &meter;
    return data;
}

void AwayStore::settle(const std::shared_ptr<AwayData>& data) {
    std::lock_guard lock(mutex_);
    data->wanted = false;
    if (data->state != State::held) return;
    data->in_queue = settled_.insert(settled_.end(), data);
    data->state = State::settled;
}

bool AwayStore::hold(const std::shared_ptr<AwayData>& data) {
    std::lock_guard lock(mutex_);
    if (data->state == State::on_disk) return false;
    if (data->state == State::settled) {
        settled_.erase(data->in_queue);
        data->state = State::held;
    }
    data->wanted = true;
    return true;
}

void AwayStore::put_back(AwayData& data, HostCopy& room) {
    observe::Span span(observe::Topic::memory, "read from disk", {device_});
    span.bytes(static_cast<double>(data.bytes));
    data.file->read(data.place, room);
    std::lock_guard lock(mutex_);
    left_disk(data);
    data.memory = std::move(room);
    data.state = State::held;
}

// The caller holds the lock.
void AwayStore::left_disk(AwayData& data) noexcept {
    std::exchange(data.file, nullptr)->give(std::exchange(data.place, {}));
    spilled_.fetch_sub(data.bytes, std::memory_order_relaxed);
    data.meter->change(Level::spilled_bytes, -static_cast<std::int64_t>(data.bytes));
}

void AwayStore::release(const std::shared_ptr<AwayData>& data, const std::shared_ptr<Event>& after) noexcept {
    if (data == nullptr) return;
    std::lock_guard lock(mutex_);
    switch (data->state) {
        case State::on_disk: return left_disk(*data);
        case State::spilling:
            data->released = true;
            data->after = after;
            return;
        case State::settled: settled_.erase(data->in_queue); break;
        case State::held: break;
    }
    data->state = State::held;
    host_.release(std::move(data->memory), after);
}

// Without the lock while the disk is asked for room.
std::shared_ptr<AwayData> AwayStore::next_to_spill() {
    std::unique_lock lock(mutex_);
    while (!settled_.empty() && !files_.empty()) {
        const std::shared_ptr<AwayData> data = settled_.front();
        const std::shared_ptr<SpillFile> file = files_.back();
        lock.unlock();
        std::string problem;
        auto place = file->take(data->bytes, &problem);
        lock.lock();
        problem_ = problem;
        if (!place) return nullptr;
        if (data->state == State::settled) {
            settled_.erase(data->in_queue);
            data->file = file;
            data->place = std::move(*place);
            data->state = State::spilling;
            return data;
        }
        file->give(*place);  // used or gone by now
    }
    return nullptr;
}

bool AwayStore::spill() {
    const std::shared_ptr<AwayData> data = next_to_spill();
    if (!data) return false;
    observe::Span span(observe::Topic::memory, "write to disk", {device_});
    span.bytes(static_cast<double>(data->bytes));
    std::string problem;
    const bool written = data->file->write(data->place, data->memory, &problem);
    if (!written) {
        log(LogLevel::warning, str("eviction: ", problem, "; the data stays in pinned memory"));
        std::lock_guard lock(mutex_);
        problem_ = problem;
    }
    finish_spill(data, written);
    return written;
}

void AwayStore::finish_spill(const std::shared_ptr<AwayData>& data, bool written) noexcept {
    std::lock_guard lock(mutex_);
    if (written && !data->wanted && !data->released) {
        data->state = State::on_disk;
        host_.release(std::move(data->memory), nullptr);
        spilled_.fetch_add(data->bytes, std::memory_order_relaxed);
        data->meter->change(Level::spilled_bytes, static_cast<std::int64_t>(data->bytes));
        return;
    }
    std::exchange(data->file, nullptr)->give(std::exchange(data->place, {}));
    data->state = State::held;
    if (data->released) {
        host_.release(std::move(data->memory), data->after);
    } else if (!data->wanted) {
        data->in_queue = settled_.insert(settled_.begin(), data);
        data->state = State::settled;
    }
}

std::size_t AwayStore::disk_bytes() const {
    std::lock_guard lock(mutex_);
    std::size_t bytes = 0;
    for (const auto& each : files_) bytes += each->file_bytes();
    return bytes;
}

std::size_t AwayStore::give_back() noexcept {
    {
        std::lock_guard lock(mutex_);
        for (const auto& each : files_) each->trim();
    }
    return host_.give_back();
}

std::string AwayStore::limits() const {
    std::string text = str("pinned memory for evicted blocks: ", host_.reserved_bytes(), " of at most ",
                           host_.limit(), " bytes");
    std::lock_guard lock(mutex_);
    if (files_.empty()) return text;
    const SpillFile& file = *files_.back();
    text += str("; spill file: ", file.used_bytes(), " of at most ", file.limit(), " bytes");
    return problem_.empty() ? text : str(text, " (", problem_, ")");
}

}  // namespace gpk
