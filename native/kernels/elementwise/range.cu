#include "kernels/device.cuh"
#include "kernels/elementwise/range_value.hpp"

namespace gpk::kernels {

extern "C" __global__ void range_float64(const __grid_constant__ RangeParams p) {
    wait_for_predecessor();
    for (std::int64_t i = global_thread(); i < p.count; i += grid_threads()) write_range(p, i);
}

extern "C" __global__ void range_int64(const __grid_constant__ IntegerRangeParams p) {
    wait_for_predecessor();
    for (std::int64_t i = global_thread(); i < p.count; i += grid_threads()) write_range(p, i);
}

}  // namespace gpk::kernels
