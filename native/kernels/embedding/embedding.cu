#include "kernels/embedding/embedding.hpp"

#include "kernels/device.cuh"

namespace gpk::kernels {

template <class Unit>
__device__ __forceinline__ void copy_rows(const EmbeddingParams& p) {
    const std::int64_t units = p.row_bytes / static_cast<std::int64_t>(sizeof(Unit));
    for (std::int64_t i = global_thread(); i < p.count * units; i += grid_threads()) {
        const std::int64_t row = i / units, column = i % units;
        const std::int64_t id = p.ids_are_int64 ? static_cast<const std::int64_t*>(p.ids)[row]
                                                : static_cast<const std::int32_t*>(p.ids)[row];
        Unit value = {};
        if (id >= 0 && id < p.rows) value = static_cast<const Unit*>(p.table)[id * units + column];
        static_cast<Unit*>(p.out)[i] = value;
    }
}

extern "C" __global__ void embedding(const __grid_constant__ EmbeddingParams p) {
    wait_for_predecessor();
    if (p.unit == 16) {
        copy_rows<Vector<std::uint32_t, 4>>(p);
    } else {
        copy_rows<std::uint16_t>(p);
    }
}

}  // namespace gpk::kernels
