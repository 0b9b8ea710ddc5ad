#include "memory/host_copy.hpp"

#include <algorithm>
#include <utility>

#include "base/error.hpp"
#include "base/platform.hpp"
#include "memory/size_classes.hpp"

namespace gpk {

namespace {

bool idle(const std::shared_ptr<Event>& event) noexcept {
    try {
        return !event || event->query();
    } catch (const Error&) {
        return false;  // and the next who asks the device learns of it
    }
}

}  // namespace

HostStore::HostStore(Device& device) : device_(device), limit_(platform::physical_memory_bytes() / 2) {}

HostStore::~HostStore() {
    for (auto& [class_bytes, pieces] : free_) {
        for (const Free& each : pieces) device_.driver().free_host(each.data);
    }
}

HostCopy HostStore::allocate(std::size_t bytes) {
    HostCopy copy;
    std::lock_guard lock(mutex_);
    try {
        for (std::size_t left = bytes; left > 0; left -= copy.back().bytes) {
            const std::size_t here = std::min(left, kPiece);
            copy.push_back({.bytes = here, .class_bytes = size_class::bytes_for(here)});
            copy.back().data = take(copy.back().class_bytes);
        }
    } catch (...) {
        copy.pop_back();
        for (const HostPiece& piece : copy) free_[piece.class_bytes].push_back({piece.data, nullptr});
        throw;
    }
    return copy;
}

std::byte* HostStore::take(std::size_t class_bytes) {
    auto& pieces = free_[class_bytes];
    const auto found =
        std::find_if(pieces.begin(), pieces.end(), [](const Free& each) { return idle(each.after); });
    if (found != pieces.end()) {
        std::byte* const data = found->data;
        pieces.erase(found);
        return data;
    }
    if (reserved_ + class_bytes > limit_) give_back_locked();
    if (reserved_ + class_bytes > limit_) {
        throw error(ErrorKind::memory, {.call = "eviction",
                                        .expected = str(class_bytes, " bytes of pinned host memory"),
                                        .got = str(reserved_, " of at most ", limit_, " in use"),
                                        .fix = "allow the pool more of it"});
    }
    auto* const data = static_cast<std::byte*>(device_.driver().allocate_host(class_bytes));
    reserved_ += class_bytes;
    return data;
}

void HostStore::release(HostCopy copy, const std::shared_ptr<Event>& after) noexcept {
    std::lock_guard lock(mutex_);
    for (const HostPiece& piece : copy) free_[piece.class_bytes].push_back({piece.data, after});
}

bool HostStore::could_hold(std::size_t bytes) const {
    const std::size_t rest = bytes % kPiece;
    std::lock_guard lock(mutex_);
    return bytes <= limit_ && bytes - rest + (rest > 0 ? size_class::bytes_for(rest) : 0) <= limit_;
}

bool HostStore::wait_for_one() {
    std::shared_ptr<Event> after;
    {
        std::lock_guard lock(mutex_);
        for (auto& [class_bytes, pieces] : free_) {
            const auto used = std::find_if(pieces.begin(), pieces.end(),
                                           [](const Free& each) { return each.after != nullptr; });
            if (used == pieces.end()) continue;
            after = used->after;
            break;
        }
    }
    if (!after) return false;
    after->synchronize();
    std::lock_guard lock(mutex_);
    for (auto& [class_bytes, pieces] : free_) {
        for (Free& each : pieces) {
            if (each.after == after) each.after = nullptr;
        }
    }
    return true;
}

std::size_t HostStore::give_back_locked() noexcept {
    std::size_t bytes = 0;
    for (auto& [class_bytes, pieces] : free_) {
        std::erase_if(pieces, [&](const Free& each) {
            if (!idle(each.after)) return false;
            device_.driver().free_host(each.data);
            bytes += class_bytes;
            return true;
        });
    }
    reserved_ -= bytes;
    return bytes;
}

std::size_t HostStore::give_back() noexcept {
    std::lock_guard lock(mutex_);
    return give_back_locked();
}

std::size_t HostStore::reserved_bytes() const {
    std::lock_guard lock(mutex_);
    return reserved_;
}

void HostStore::set_limit(std::size_t bytes) {
    std::lock_guard lock(mutex_);
    limit_ = bytes;
}

std::size_t HostStore::limit() const {
    std::lock_guard lock(mutex_);
    return limit_;
}

}  // namespace gpk
