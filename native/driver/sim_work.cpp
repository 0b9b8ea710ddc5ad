#include "driver/sim_work.hpp"

#include <cstring>
#include <new>

#include "driver/sim_virtual_memory.hpp"

namespace gpk {

namespace {

thread_local const SimPartition* running = nullptr;

struct Running {
    explicit Running(const SimPartition* partition) { running = partition; }
    ~Running() { running = nullptr; }
};

}  // namespace

std::span<const int> sim_running_groups() noexcept {
    return running != nullptr ? std::span<const int>(running->groups) : std::span<const int>();
}

void SimWork::own_source() {
    if (bytes == 0) return;
    constexpr std::align_val_t kAlignment{64};  // of any parameter struct
    void* memory = ::operator new(bytes, kAlignment);
    owned = std::shared_ptr<void>(memory, [](void* held) { ::operator delete(held, kAlignment); });
    std::memcpy(memory, from, bytes);
    from = memory;
}

void SimWork::run() const {
    for (const SimTouch& touch : touches) virtual_memory->check_touch(touch);
    switch (kind) {
        case Kind::kernel: {
            const Running here(partition.get());
            twin(from, config);
            break;
        }
        case Kind::copy:
            if (bytes > 0) std::memmove(to, from, bytes);
            break;
        case Kind::fill:
            if (bytes > 0) std::memset(to, value, bytes);
            break;
    }
}

}  // namespace gpk
