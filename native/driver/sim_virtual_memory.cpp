#include "driver/sim_virtual_memory.hpp"

#include <algorithm>
#include <bit>
#include <iterator>
#include <utility>

#include "base/log.hpp"
#include "base/platform.hpp"
#include "driver/sim_error.hpp"
#include "driver/sim_memory.hpp"

namespace gpk {

namespace {

std::uintptr_t number(DevicePtr address) { return static_cast<std::uintptr_t>(address); }
void* pointer(std::uintptr_t address) { return reinterpret_cast<void*>(address); }

}  // namespace

SimVirtualMemory::SimVirtualMemory(SimMemory& memory, std::size_t granularity)
    : memory_(memory), granularity_(granularity) {
    const std::size_t page = platform::page_bytes();
    if (granularity != 0 && (!std::has_single_bit(granularity) || granularity < page)) {
        throw error(ErrorKind::value, {.call = "SimDriver",
                                       .argument = "physical_granularity",
                                       .expected = str("0, or a power of two from ", page),
                                       .got = str(granularity)});
    }
}

SimVirtualMemory::~SimVirtualMemory() {
    for (auto& [begin, reservation] : reservations_) {
        for (auto& [address, map] : reservation.maps) {
            platform::release_pages(map.physical->home, map.physical->bytes);
        }
        platform::release_pages(pointer(begin), reservation.bytes);
    }
    for (auto& [handle, physical] : physical_) {
        if (!physical->mapped) platform::release_pages(physical->home, physical->bytes);
    }
}

void SimVirtualMemory::require(const char* call, std::uint64_t address, std::size_t bytes) const {
    if (granularity_ == 0) {
        throw error(ErrorKind::unsupported, {.call = call, .got = "a device without virtual memory calls"});
    }
    if (bytes == 0 || bytes % granularity_ != 0 || address % granularity_ != 0) {
        throw sim_error(
            call, sim_code::kInvalidValue,
            str(pointer(number(address)), ", ", bytes, " bytes: not multiples of ", granularity_));
    }
}

const SimVirtualMemory::Reservation* SimVirtualMemory::reservation_of(std::uintptr_t address,
                                                                      std::size_t bytes) const noexcept {
    const auto next = reservations_.upper_bound(address);
    if (next == reservations_.begin()) return nullptr;
    const auto& [begin, reservation] = *std::prev(next);
    const std::uintptr_t offset = address - begin;
    if (offset >= reservation.bytes || bytes > reservation.bytes - offset) return nullptr;
    return &reservation;
}

SimVirtualMemory::Reservation* SimVirtualMemory::reservation_of(std::uintptr_t address,
                                                                std::size_t bytes) noexcept {
    return const_cast<Reservation*>(std::as_const(*this).reservation_of(address, bytes));
}

void SimVirtualMemory::complain(const char* call, const char* what) noexcept {
    memory_.count_invalid_free();
    log(LogLevel::warning, str(call, ": ", what));
}

DevicePtr SimVirtualMemory::reserve(std::size_t bytes) {
    require("reserve_address", 0, bytes);
    std::lock_guard lock(mutex_);
    void* const begin = platform::reserve_pages(bytes, granularity_);
    if (begin == nullptr) {
        throw sim_error("reserve_address", sim_code::kOutOfMemory, str(bytes, " bytes of address space"));
    }
    const auto address = reinterpret_cast<std::uintptr_t>(begin);
    reservations_[address].bytes = bytes;
    reserved_.store(reservations_.size(), std::memory_order_release);
    return address;
}

void SimVirtualMemory::release(DevicePtr address, std::size_t bytes) noexcept {
    std::lock_guard lock(mutex_);
    const auto found = reservations_.find(number(address));
    if (found == reservations_.end() || found->second.bytes != bytes) {
        return complain("release_address", "not a reservation of that size");
    }
    if (!found->second.maps.empty()) return complain("release_address", "memory is still mapped there");
    platform::release_pages(pointer(found->first), bytes);
    reservations_.erase(found);
    reserved_.store(reservations_.size(), std::memory_order_release);
}

PhysicalHandle SimVirtualMemory::create(std::size_t bytes) {
    require("physical_create", 0, bytes);
    auto made = std::make_shared<Physical>();
    memory_.take("physical_create", bytes);
    made->home = platform::new_pages(bytes);
    made->bytes = bytes;
    if (made->home == nullptr) {
        memory_.give(bytes);
        throw sim_error("physical_create", sim_code::kOutOfMemory, str(bytes, " bytes of host memory"));
    }
    memory_.poison(made->home, bytes);
    std::lock_guard lock(mutex_);
    ++live_physical_;
    const auto handle = reinterpret_cast<PhysicalHandle>(made.get());
    physical_.emplace(handle, std::move(made));
    return handle;
}

void SimVirtualMemory::end(const std::shared_ptr<Physical>& physical) noexcept {
    platform::release_pages(physical->home, physical->bytes);
    memory_.give(physical->bytes);
    --live_physical_;
}

void SimVirtualMemory::destroy(PhysicalHandle handle) noexcept {
    std::lock_guard lock(mutex_);
    const auto found = physical_.find(handle);
    if (found == physical_.end()) return complain("physical_destroy", "not a live physical memory");
    found->second->destroyed = true;
    if (!found->second->mapped) end(found->second);
    physical_.erase(found);
}

void SimVirtualMemory::map(DevicePtr address, PhysicalHandle handle, std::size_t bytes) {
    require("map", address, bytes);
    std::lock_guard lock(mutex_);
    const auto found = physical_.find(handle);
    if (found == physical_.end()) {
        throw sim_error("map", sim_code::kInvalidValue, "not a live physical memory");
    }
    const auto& physical = found->second;
    if (physical->bytes != bytes) {
        throw sim_error("map", sim_code::kInvalidValue,
                        str(bytes, " bytes of a physical memory of ", physical->bytes));
    }
    if (physical->mapped) {
        throw sim_error("map", sim_code::kNotSupported, "the physical memory is mapped already");
    }
    Reservation* const reservation = reservation_of(number(address), bytes);
    if (reservation == nullptr) {
        throw sim_error("map", sim_code::kInvalidValue, "the range does not lie in one reservation");
    }
    const auto next = reservation->maps.lower_bound(number(address));
    const bool meets_next = next != reservation->maps.end() && next->first - number(address) < bytes;
    const bool meets_previous =
        next != reservation->maps.begin() &&
        number(address) - std::prev(next)->first < std::prev(next)->second.physical->bytes;
    if (meets_next || meets_previous) {
        throw sim_error("map", sim_code::kInvalidValue, "something is mapped there already");
    }
    const auto entry = reservation->maps.emplace_hint(next, number(address), Map{physical, maps_made_ + 1});
    if (!platform::move_pages(physical->home, pointer(number(address)), bytes)) {
        reservation->maps.erase(entry);
        throw sim_error("map", sim_code::kOutOfMemory, "the system refused to move the pages");
    }
    ++maps_made_;
    physical->mapped = true;
}

void SimVirtualMemory::allow_access(DevicePtr address, std::size_t bytes) {
    require("allow_access", address, bytes);
    std::lock_guard lock(mutex_);
    Reservation* const reservation = reservation_of(number(address), bytes);
    std::uintptr_t at = number(address);
    const std::uintptr_t end = at + bytes;
    if (reservation != nullptr) {
        const auto first = reservation->maps.find(at);
        auto last = first;
        for (; last != reservation->maps.end() && last->first == at && at < end; ++last) {
            at += last->second.physical->bytes;
        }
        if (at == end) {
            std::for_each(first, last, [](auto& each) { each.second.accessible = true; });
            return;
        }
    }
    throw sim_error("allow_access", sim_code::kInvalidValue, "the range is not one of whole maps");
}

void SimVirtualMemory::unmap(DevicePtr address, std::size_t bytes) noexcept {
    std::lock_guard lock(mutex_);
    Reservation* const reservation = bytes == 0 ? nullptr : reservation_of(number(address), bytes);
    std::uintptr_t at = number(address);
    const std::uintptr_t end_of_range = at + bytes;
    if (reservation == nullptr) return complain("unmap", "the range does not lie in one reservation");
    const auto first = reservation->maps.find(at);
    auto last = first;
    for (; last != reservation->maps.end() && last->first == at && at < end_of_range; ++last) {
        at += last->second.physical->bytes;
    }
    if (at != end_of_range) return complain("unmap", "the range is not one of whole maps");
    for (auto each = first; each != last; each = reservation->maps.erase(each)) {
        const auto& physical = each->second.physical;
        void* const from = pointer(each->first);
        const bool moved = physical->destroyed ? platform::drop_pages(from, physical->bytes)
                                               : platform::move_pages(from, physical->home, physical->bytes);
        if (!moved) return log(LogLevel::warning, "unmap: the system refused to move the pages");
        physical->mapped = false;
        if (physical->destroyed) end(physical);
    }
}

bool SimVirtualMemory::contains(DevicePtr address) const noexcept {
    if (reserved_.load(std::memory_order_acquire) == 0) return false;
    std::lock_guard lock(mutex_);
    return reservation_of(number(address), 1) != nullptr;
}

std::optional<std::uint64_t> SimVirtualMemory::newest_map(DevicePtr address,
                                                          std::size_t bytes) const noexcept {
    std::lock_guard lock(mutex_);
    const Reservation* const reservation = reservation_of(number(address), bytes);
    if (reservation == nullptr) return std::nullopt;
    std::uintptr_t at = number(address);
    const std::uintptr_t end_of_range = at + bytes;
    std::uint64_t newest = 0;
    auto map = reservation->maps.upper_bound(at);
    if (map == reservation->maps.begin()) return std::nullopt;
    for (--map; at < end_of_range; ++map) {
        if (map == reservation->maps.end() || map->first > at || !map->second.accessible) return std::nullopt;
        const std::uintptr_t end_of_map = map->first + map->second.physical->bytes;
        if (end_of_map <= at) return std::nullopt;
        newest = std::max(newest, map->second.number);
        at = end_of_map;
    }
    return newest;
}

void SimVirtualMemory::check_range(const char* call, DevicePtr address, std::size_t bytes) const {
    if (newest_map(address, bytes)) return;
    throw sim_error(call, sim_code::kInvalidValue,
                    str("device range ", pointer(number(address)), " + ", bytes,
                        " bytes is not all mapped and accessible"));
}

void SimVirtualMemory::check_touch(const SimTouch& touch) const {
    const auto now = newest_map(touch.address, touch.bytes);
    if (now && *now <= touch.newest_map) return;
    throw sim_error("launch", sim_code::kIllegalAddress,
                    str("queued work uses ", pointer(number(touch.address)), " + ", touch.bytes, " bytes, ",
                        now ? "where other memory was mapped since" : "where nothing is mapped any more"));
}

std::size_t SimVirtualMemory::live_reservations() const {
    std::lock_guard lock(mutex_);
    return reservations_.size();
}

std::size_t SimVirtualMemory::live_physical() const {
    std::lock_guard lock(mutex_);
    return live_physical_;
}

}  // namespace gpk
