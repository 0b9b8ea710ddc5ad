#include "driver/sim_memory.hpp"

#include <new>

#include "base/log.hpp"
#include "driver/sim_error.hpp"

namespace gpk {

namespace {

constexpr std::align_val_t kAlignment{256};
// As float16, bfloat16, float32 and float64 this is NaN whichever way it is cut, and its upper byte is
// float8_e4m3's NaN. As an integer it is conspicuous.
constexpr std::uint16_t kPoison = 0x7FFB;

// The exact size, so that AddressSanitizer sees the first byte past it.
void* new_block(std::size_t bytes) { return ::operator new(bytes, kAlignment, std::nothrow); }

void delete_block(std::uintptr_t address) noexcept {
    ::operator delete(reinterpret_cast<void*>(address), kAlignment);
}

// Whether one block holds all of [address, address + bytes).
bool covers(const std::map<std::uintptr_t, std::size_t>& blocks, std::uintptr_t address, std::size_t bytes,
            bool* begins_inside = nullptr) {
    auto next = blocks.upper_bound(address);
    if (next == blocks.begin()) return false;
    const auto& [begin, size] = *std::prev(next);
    const std::uintptr_t offset = address - begin;
    if (begins_inside != nullptr) *begins_inside = offset < size;
    return offset <= size && bytes <= size - offset;
}

}  // namespace

SimMemory::~SimMemory() {
    for (const auto& [address, bytes] : device_) delete_block(address);
    for (const auto& [address, bytes] : host_) delete_block(address);
}

void SimMemory::throw_full(const char* call, std::size_t bytes) const {
    throw sim_error(call, sim_code::kOutOfMemory,
                    str(bytes, " bytes asked for, ", capacity_ - device_bytes_, " of ", capacity_, " free"));
}

void SimMemory::poison(void* memory, std::size_t bytes) const noexcept {
    if (!poison_) return;
    auto* out = static_cast<unsigned char*>(memory);
    for (std::size_t i = 0; i < bytes; ++i) out[i] = static_cast<unsigned char>(kPoison >> (i % 2 * 8));
}

void SimMemory::take(const char* call, std::size_t bytes) {
    std::lock_guard lock(mutex_);
    if (bytes > capacity_ - device_bytes_) throw_full(call, bytes);
    device_bytes_ += bytes;
}

void SimMemory::give(std::size_t bytes) noexcept {
    std::lock_guard lock(mutex_);
    device_bytes_ -= bytes;
}

void SimMemory::count_invalid_free() noexcept {
    std::lock_guard lock(mutex_);
    ++invalid_frees_;
}

DevicePtr SimMemory::allocate(std::size_t bytes) {
    if (bytes == 0) throw sim_error("allocate", sim_code::kInvalidValue, "0 bytes");
    std::lock_guard lock(mutex_);
    void* memory = bytes <= capacity_ - device_bytes_ ? new_block(bytes) : nullptr;
    if (memory == nullptr) throw_full("allocate", bytes);
    poison(memory, bytes);
    const auto address = reinterpret_cast<std::uintptr_t>(memory);
    device_.emplace(address, bytes);
    device_bytes_ += bytes;
    return address;
}

void* SimMemory::allocate_host(std::size_t bytes) {
    if (bytes == 0) throw sim_error("allocate_host", sim_code::kInvalidValue, "0 bytes");
    std::lock_guard lock(mutex_);
    void* memory = new_block(bytes);
    if (memory == nullptr) {
        throw sim_error("allocate_host", sim_code::kOutOfMemory, str(bytes, " bytes of host memory"));
    }
    poison(memory, bytes);
    host_.emplace(reinterpret_cast<std::uintptr_t>(memory), bytes);
    host_bytes_ += bytes;
    return memory;
}

bool SimMemory::free_from(Blocks& blocks, std::size_t& used, std::uintptr_t address,
                          const char* call) noexcept {
    if (address == 0) return true;  // as cuMemFree(0) and cuMemFreeHost(nullptr) take it
    {
        std::lock_guard lock(mutex_);
        if (const auto found = blocks.find(address); found != blocks.end()) {
            used -= found->second;
            blocks.erase(found);
            delete_block(address);
            return true;
        }
        ++invalid_frees_;
    }
    log(LogLevel::warning, str(call, ": ", reinterpret_cast<void*>(address), " is not a live allocation"));
    return false;
}

bool SimMemory::free(DevicePtr pointer) noexcept {
    return free_from(device_, device_bytes_, static_cast<std::uintptr_t>(pointer), "free");
}

bool SimMemory::free_host(void* pointer) noexcept {
    return free_from(host_, host_bytes_, reinterpret_cast<std::uintptr_t>(pointer), "free_host");
}

void SimMemory::admit(DevicePtr pointer, std::size_t bytes) {
    std::lock_guard lock(mutex_);
    admitted_.emplace(static_cast<std::uintptr_t>(pointer), bytes);
}

bool SimMemory::dismiss(DevicePtr pointer, std::size_t bytes) noexcept {
    std::lock_guard lock(mutex_);
    const auto [first, last] = admitted_.equal_range(static_cast<std::uintptr_t>(pointer));
    for (auto each = first; each != last; ++each) {
        if (each->second != bytes) continue;
        admitted_.erase(each);
        return true;
    }
    ++invalid_frees_;
    return false;
}

void SimMemory::check_device_range(const char* call, DevicePtr pointer, std::size_t bytes) const {
    std::lock_guard lock(mutex_);
    const auto address = static_cast<std::uintptr_t>(pointer);
    if (covers(device_, address, bytes)) return;
    // Ranges of others may overlap: the nearest that begins before it need not be the one that holds it.
    for (auto next = admitted_.upper_bound(address); next != admitted_.begin();) {
        const auto& [begin, size] = *--next;
        if (address - begin <= size && bytes <= size - (address - begin)) return;
    }
    throw sim_error(call, sim_code::kInvalidValue,
                    str("device range ", reinterpret_cast<void*>(pointer), " + ", bytes,
                        " bytes does not lie in a live allocation"));
}

bool SimMemory::check_host_range(const char* call, const void* pointer, std::size_t bytes) const {
    if (pointer == nullptr) throw sim_error(call, sim_code::kInvalidValue, "null host pointer");
    std::lock_guard lock(mutex_);
    bool begins_inside = false;
    if (covers(host_, reinterpret_cast<std::uintptr_t>(pointer), bytes, &begins_inside)) return true;
    if (!begins_inside) return false;
    throw sim_error(call, sim_code::kInvalidValue,
                    str("host range ", pointer, " + ", bytes, " bytes leaves its pinned allocation"));
}

MemoryInfo SimMemory::info() const {
    std::lock_guard lock(mutex_);
    return {.free_bytes = capacity_ - device_bytes_, .total_bytes = capacity_};
}

std::size_t SimMemory::live_allocations() const {
    std::lock_guard lock(mutex_);
    return device_.size();
}

std::size_t SimMemory::live_host_allocations() const {
    std::lock_guard lock(mutex_);
    return host_.size();
}

std::size_t SimMemory::admitted() const {
    std::lock_guard lock(mutex_);
    return admitted_.size();
}

std::size_t SimMemory::host_bytes() const {
    std::lock_guard lock(mutex_);
    return host_bytes_;
}

std::uint64_t SimMemory::invalid_frees() const {
    std::lock_guard lock(mutex_);
    return invalid_frees_;
}

}  // namespace gpk
