#include "driver/sim_work.hpp"

#include <cstring>
#include <new>

namespace gpk {

void SimWork::own_source() {
    if (bytes == 0) return;
    constexpr std::align_val_t kAlignment{64};  // of any parameter struct
    void* memory = ::operator new(bytes, kAlignment);
    owned = std::shared_ptr<void>(memory, [](void* held) { ::operator delete(held, kAlignment); });
    std::memcpy(memory, from, bytes);
    from = memory;
}

void SimWork::run() const {
    switch (kind) {
        case Kind::kernel: twin(from, config); break;
        case Kind::copy:
            if (bytes > 0) std::memmove(to, from, bytes);
            break;
        case Kind::fill:
            if (bytes > 0) std::memset(to, value, bytes);
            break;
    }
}

}  // namespace gpk
